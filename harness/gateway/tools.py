"""The tool gateway: `/r/<key>/mcp`, MCP in and MCP out, both protocol versions through the MCP SDK's own server.

It gathers the tools of a rollout's servers, keeps to the task's allow-list, holds the once law and the time-outs, and
records every call as a span. It knows nothing about models, tasks or what the tools do.
app.py hands it the requests of live rollouts and closes them at the seal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
import mcp_types
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Message, Receive, Scope, Send

from harness.gateway.calls import CallRecorder
from harness.gateway.keys import LiveRollout
from harness.gateway.once import CallLedger
from harness.gateway.toolserver import (
    KEY_HEADER,
    KEY_META,
    ToolServerFailure,
    ToolServerLink,
    forwarded_headers,
    open_connections,
)
from traces.span import Span
from traces.trajectory import Ending

RecordSpan = Callable[[Span], Awaitable[None]]
"""Makes a span durable before it returns (law 8)."""

_EXCHANGE = "harness.exchange"
_RETRY_PAUSES_S = (0.1, 0.5)


@dataclass(slots=True)
class _Exchange:
    """One request of an agent; sees whether the agent's connection breaks before the reply is sent."""

    rollout: LiveRollout
    """Whose request it is."""
    headers: Mapping[str, str]
    """HTTP headers, names in lower case."""
    receive: Receive
    """The connection's incoming messages."""
    send: Send
    """The connection's outgoing messages."""
    gone: asyncio.Future[Message] | None = None
    """Done when the connection breaks or its reply is through; None before the body has been read."""
    reply_lost: bool = False
    """True where the connection broke first."""
    replied: bool = False
    """True once the reply has been started."""

    def watch(self) -> None:
        """Wait for the agent to go away; the whole body has been read."""
        self.gone = asyncio.ensure_future(self.receive())
        self.gone.add_done_callback(self._on_gone)

    def _on_gone(self, message: asyncio.Future[Message]) -> None:
        if not message.cancelled() and not self.replied:
            self.reply_lost = True

    async def forward(self, message: Message) -> None:
        """Send, and note that the reply is on its way."""
        self.replied = True
        await self.send(message)


@dataclass(slots=True)
class _Toolbox:
    """What the gateway holds for one live rollout."""

    rollout: LiveRollout
    """Whose tools these are."""
    links: list[ToolServerLink]
    """Its servers, in the order in which their tools are listed."""
    ledger: CallLedger
    """Its calls."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the tools are listed for the first time."""
    listing: list[dict[str, Any]] | None = None
    """Tools as the agent sees them, in wire form; None before the first listing."""
    routes: dict[str, tuple[ToolServerLink, str]] = field(default_factory=dict[str, tuple[ToolServerLink, str]])
    """Name that the agent uses → server, and the tool's name there."""


class ToolGateway:
    """Serves the MCP door of every live rollout. Made by `open_tool_gateway`."""

    def __init__(self, record: RecordSpan, http: aiohttp.ClientSession, call_timeout_s: float) -> None:
        self._record = record
        self._http = http
        self._call_timeout_s = call_timeout_s
        self._toolboxes: dict[str, _Toolbox] = {}
        # The tool's own server checks header parameters; without the lookup the SDK lists all tools before every call.
        server: Server[Any] = Server("harness-tool-gateway", version="1", get_tool_input_schema=lambda _name: None)
        server.add_request_handler("tools/list", mcp_types.PaginatedRequestParams, self._list_tools)
        server.add_request_handler("tools/call", mcp_types.CallToolRequestParams, self._call_tool)
        self.sessions = StreamableHTTPSessionManager(server, json_response=True, stateless=True)

    async def handle_mcp(self, rollout: LiveRollout, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request to a live rollout's MCP door (an ASGI call with the rollout looked up)."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        exchange = _Exchange(rollout, headers, receive, send)
        try:
            await self.sessions.handle_request({**scope, _EXCHANGE: exchange}, receive, exchange.forward)
        finally:
            if exchange.gone is not None:
                exchange.gone.cancel()

    async def close_rollout(self, rollout: LiveRollout, timeout_s: float = 5.0) -> None:
        """Let running calls end, at most `timeout_s`, and drop what is held for the rollout. Part of the seal.

        A call that still runs then has an unknown effect on what will be graded: the rollout fails for it.
        """
        toolbox = self._toolboxes.pop(rollout.rollout_id, None)
        if toolbox is None:
            return
        given_up = await toolbox.ledger.settle(timeout_s)
        if given_up:
            rollout.fail(
                Ending.TOOL_ERROR, f"{given_up} tool calls still ran {timeout_s:g} s after the agent had ended"
            )
        for link in toolbox.links:
            await link.close()

    def _toolbox(self, rollout: LiveRollout) -> _Toolbox:
        toolbox = self._toolboxes.get(rollout.rollout_id)
        if toolbox is None:
            links = [ToolServerLink(door, self._http) for door in rollout.tool_servers]
            toolbox = _Toolbox(rollout, links, CallLedger(rollout.rollout_id))
            self._toolboxes[rollout.rollout_id] = toolbox
        return toolbox

    async def _list_tools(self, ctx: ServerRequestContext[Any, Any], _params: object) -> dict[str, Any]:
        tools = await self._listing(self._toolbox(_exchange(ctx).rollout))
        return {"tools": tools, "ttlMs": 0, "cacheScope": "private", "resultType": "complete"}

    async def _listing(self, toolbox: _Toolbox) -> list[dict[str, Any]]:
        async with toolbox.lock:
            if toolbox.listing is None:
                try:
                    async with asyncio.timeout(self._call_timeout_s):
                        listed = await asyncio.gather(*(link.list_tools() for link in toolbox.links))
                except (ToolServerFailure, TimeoutError) as error:
                    detail = f"the tools could not be listed: {error or 'time-out'}"
                    toolbox.rollout.fail(Ending.TOOL_ERROR, detail)
                    raise MCPError(mcp_types.INTERNAL_ERROR, detail) from error
                toolbox.listing = _gather_tools(toolbox, listed)
            return toolbox.listing

    async def _call_tool(
        self, ctx: ServerRequestContext[Any, Any], params: mcp_types.CallToolRequestParams
    ) -> dict[str, Any]:
        exchange = _exchange(ctx)
        exchange.watch()
        toolbox = self._toolbox(exchange.rollout)
        await self._listing(toolbox)
        raw = dict(ctx.params or {})
        meta = cast("Mapping[str, Any]", raw.get("_meta") or {})
        headers = exchange.headers
        recorder = CallRecorder(toolbox.rollout, params.name, raw.get("arguments") or {}, ctx.protocol_version)

        async def perform(key: str) -> dict[str, Any]:
            return await self._perform(toolbox, recorder, key, raw, forwarded_headers(headers))

        call, repeated = toolbox.ledger.claim(
            params.name,
            raw.get("arguments"),
            exchange,
            agent_key=headers.get(KEY_HEADER) or cast("str | None", meta.get(KEY_META)),
            perform=perform,
        )
        if not repeated:
            recorder.note_request(ctx.request_id, meta.get("traceparent") or headers.get("traceparent"))
        try:
            return await asyncio.shield(call.outcome)
        except asyncio.CancelledError:
            if call.outcome.cancelled():
                raise MCPError(mcp_types.INTERNAL_ERROR, "The rollout has ended") from None
            raise

    async def _perform(
        self, toolbox: _Toolbox, recorder: CallRecorder, key: str, params: dict[str, Any], headers: Mapping[str, str]
    ) -> dict[str, Any]:
        """One call to its end: ask, retry what is safe to retry, record, and only then tell."""
        toolbox.rollout.tool_calls += 1
        route = toolbox.routes.get(recorder.name)
        try:
            if route is None:
                raise MCPError(mcp_types.INVALID_PARAMS, f"Unknown tool: {recorder.name}")
            link, own_name = route
            meta = {**cast("dict[str, Any]", params.get("_meta") or {}), "traceparent": recorder.traceparent}
            result = await self._ask(link, {**params, "name": own_name, "_meta": meta}, key, headers)
        except MCPError as error:
            await self._record(recorder.span(key, route, error=error))
            raise
        except ToolServerFailure as failure:
            server = route[0].door.name if route else "?"
            detail = f"tool server {server!r} failed on {recorder.name!r} ({failure.kind}): {failure}"
            toolbox.rollout.fail(Ending.TOOL_ERROR, detail)
            result = _error_result(f"Error: {detail}. It is unknown whether the call took effect.")
            await self._record(recorder.span(key, route, result=result, failure=failure))
            return result
        await self._record(recorder.span(key, route, result=result))
        return result

    async def _ask(
        self, link: ToolServerLink, params: dict[str, Any], key: str, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        """Ask the server; ask again under the same key where no effect can be doubled."""
        pauses_s = iter(_RETRY_PAUSES_S)
        deadline = asyncio.get_running_loop().time() + self._call_timeout_s
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await link.call_tool(params, key, headers)
            except TimeoutError as error:
                detail = f"no answer in {self._call_timeout_s:g} s"
                raise ToolServerFailure("timeout", detail, reached=True) from error
            except ToolServerFailure as failure:
                repeatable = not failure.reached or (failure.kind == "lost" and link.door.repeats_safely)
                pause_s = next(pauses_s, None) if repeatable else None
                if pause_s is None:
                    raise
            await asyncio.sleep(pause_s)


def _exchange(ctx: ServerRequestContext[Any, Any]) -> _Exchange:
    return cast("_Exchange", cast("Any", ctx.request).scope[_EXCHANGE])


def _gather_tools(toolbox: _Toolbox, listed: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The tools of all servers under names that are unique, without those the task does not allow; fills the routes."""
    owners: dict[str, int] = {}
    for tools in listed:
        for tool in tools:
            owners[tool["name"]] = owners.get(tool["name"], 0) + 1
    allowed = toolbox.rollout.allowed_tools
    listing: list[dict[str, Any]] = []
    for link, tools in zip(toolbox.links, listed, strict=True):
        for tool in tools:
            own_name: str = tool["name"]
            name = own_name if owners[own_name] == 1 else f"{link.door.name}__{own_name}"
            if allowed is None or name in allowed or own_name in allowed:
                toolbox.routes[name] = (link, own_name)
                listing.append({**tool, "name": name})
    return listing


def _error_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True, "resultType": "complete"}


@asynccontextmanager
async def open_tool_gateway(record: RecordSpan, *, call_timeout_s: float = 60.0) -> AsyncGenerator[ToolGateway]:
    """The tool gateway for as long as the block runs.

    `record` makes a span durable before it returns. `call_timeout_s` bounds a tool call with all its attempts.
    """
    async with open_connections() as http:
        gateway = ToolGateway(record, http, call_timeout_s)
        async with _running(gateway.sessions):
            yield gateway


@asynccontextmanager
async def _running(sessions: StreamableHTTPSessionManager) -> AsyncGenerator[None]:
    """The SDK's manager in a task of its own: its task group would wrap every error of the block in a group."""
    up, down = asyncio.Event(), asyncio.Event()

    async def run() -> None:
        async with sessions.run():
            up.set()
            await down.wait()

    running = asyncio.create_task(run())
    await up.wait()
    try:
        yield
    finally:
        down.set()
        await running
