"""The tool gateway: `/r/<key>/mcp`, MCP in and MCP out, whatever version and form of HTTP both sides speak.

What agent and servers say to each other passes through as it is. Only tool calls are held up: they keep to the task's
allow-list, take effect once, end in time, and are spans on disk before the agent reads the result. It knows nothing
about models, tasks or what the tools do. app.py hands it the requests of live rollouts and closes them at the seal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
from starlette.types import Receive, Scope, Send

from harness.gateway.calls import CallRecorder
from harness.gateway.events import Event
from harness.gateway.exchange import BadMessage, Exchange, error_reply
from harness.gateway.keys import LiveRollout
from harness.gateway.many_servers import ManyServers
from harness.gateway.once import Call, CallLedger
from harness.gateway.servers import OneServer, Servers
from harness.gateway.toolcall import RecordSpan, ToolCall
from harness.gateway.toolserver import (
    KEY_HEADER,
    KEY_META,
    ToolServerFailure,
    ToolServerLink,
    open_connections,
    params_of,
)
from traces.trajectory import Ending

INVALID_REQUEST = -32600
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
_STREAMS = ("subscriptions/listen",)
_VERSION_HEADER = "mcp-protocol-version"
_STATELESS = "2026-07-28"
_UNNAMED_VERSION = "2025-03-26"  # what a request without the header speaks, by the specification
REPEAT_GRACE_S = 2.0
"""How long a call whose connection broke may wait to be asked for again before it counts as cancelled."""


@dataclass(slots=True)
class _Toolbox:
    """What the gateway holds for one live rollout."""

    rollout: LiveRollout
    """Whose tools these are."""
    servers: Servers
    """Its servers."""
    ledger: CallLedger
    """Its calls."""
    calls: dict[tuple[str | None, str], ToolCall] = field(default_factory=dict[tuple[str | None, str], ToolCall])
    """Calls under way: session and JSON-RPC id of the agent's request → call."""
    streams: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    """What is being passed through."""

    def call(self, session: str | None, request_id: object) -> ToolCall | None:
        """The call under way that a message of that session names."""
        return self.calls.get((session, repr(request_id)))


class ToolGateway:
    """Serves the MCP door of every live rollout. Made by `open_tool_gateway`."""

    def __init__(self, record: RecordSpan, http: aiohttp.ClientSession, call_timeout_s: float) -> None:
        self._record = record
        self._http = http
        self._call_timeout_s = call_timeout_s
        self._toolboxes: dict[str, _Toolbox] = {}

    async def handle_mcp(self, rollout: LiveRollout, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request to a live rollout's MCP door (an ASGI call with the rollout looked up)."""
        exchange = Exchange(rollout, scope, receive, send)
        method: str = scope["method"]
        if exchange.is_foreign():
            await exchange.reply(error_reply(None, INVALID_REQUEST, "Host or Origin is of another site", 403))
            return
        try:
            message = await exchange.read_message() if method == "POST" else await exchange.read_nothing()
        except BadMessage as error:
            await exchange.reply(error_reply(None, *error.args, status=400))
            return
        exchange.watch()
        toolbox = self._toolbox(rollout)
        try:
            if message is not None and message.get("method") == "tools/call" and _names_a_tool(message):
                await self._call_tool(toolbox, exchange, message)
            else:
                await self._while_there(toolbox, exchange, self._relay(toolbox, exchange, method, message))
        finally:
            exchange.leave()

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
        for stream in list(toolbox.streams):
            stream.cancel()

    def _toolbox(self, rollout: LiveRollout) -> _Toolbox:
        toolbox = self._toolboxes.get(rollout.rollout_id)
        if toolbox is None:
            links = [ToolServerLink(door, self._http) for door in rollout.tool_servers]
            one = len(links) == 1
            servers = OneServer(links[0], rollout.allowed_tools) if one else ManyServers(links, rollout.allowed_tools)
            toolbox = _Toolbox(rollout, servers, CallLedger(rollout.rollout_id))
            self._toolboxes[rollout.rollout_id] = toolbox
        return toolbox

    async def _while_there(self, toolbox: _Toolbox, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        """Do the work until it is done, the agent goes away or the rollout ends."""
        task = asyncio.create_task(work)
        toolbox.streams.add(task)
        try:
            await asyncio.wait({task, exchange.watch()}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            toolbox.streams.discard(task)
            task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()
        elif not exchange.reply_lost and not exchange.streaming:
            await exchange.reply(error_reply(None, INTERNAL_ERROR, "The rollout has ended"))
        await exchange.finish()

    async def _relay(self, toolbox: _Toolbox, exchange: Exchange, method: str, message: dict[str, Any] | None) -> None:
        """Pass one request through, with its answer."""
        endless = message is None or message.get("method") in _STREAMS
        self._note_cancellation(toolbox, exchange, message)

        async def change(event: Event) -> Event:
            # The answer to a call whose own stream the server closed comes on a stream that the agent opens again.
            if method == "GET" and event.answers and event.message is not None:
                call = toolbox.call(exchange.session, event.message.get("id"))
                if call is not None:
                    await call.answer_elsewhere(event)
            return event

        try:
            async with asyncio.timeout(None if endless else self._call_timeout_s):
                await toolbox.servers.relay(exchange, method, message, change)
        except (ToolServerFailure, TimeoutError) as error:
            what = (message or {}).get("method") or method
            detail = f"a tool server failed on {what}: {error or f'no answer in {self._call_timeout_s:g} s'}"
            if not endless:
                toolbox.rollout.fail(Ending.TOOL_ERROR, detail)
            if not exchange.ended.is_set():
                await exchange.reply(error_reply((message or {}).get("id"), INTERNAL_ERROR, detail))

    def _note_cancellation(self, toolbox: _Toolbox, exchange: Exchange, message: dict[str, Any] | None) -> None:
        """The agent takes a call back: what the server makes of it is no failure of ours."""
        # Without a session ids say little: each client of an agent begins them again.
        if message is not None and exchange.session and message.get("method") == "notifications/cancelled":
            call = toolbox.call(exchange.session, params_of(message).get("requestId"))
            if call is not None:
                call.cancel(REPEAT_GRACE_S)

    async def _call_tool(self, toolbox: _Toolbox, exchange: Exchange, message: dict[str, Any]) -> None:
        """Answer one tool call, or a repeat of one that is under way or done."""
        params = params_of(message)
        meta: Any = params.get("_meta") or {}
        if not isinstance(meta, dict):
            await exchange.reply(error_reply(message.get("id"), INVALID_PARAMS, "_meta is no object"))
            return
        meta = cast("dict[str, Any]", meta)
        key = meta.get(KEY_META)
        version = exchange.header(_VERSION_HEADER) or _UNNAMED_VERSION
        recorder = CallRecorder(toolbox.rollout, params["name"], params.get("arguments") or {}, version)
        made = ToolCall(toolbox.rollout, message, recorder, self._record)
        call, repeated = toolbox.ledger.claim(
            {name: value for name, value in params.items() if name != "_meta"},
            exchange,
            agent_key=exchange.header(KEY_HEADER) or (key if isinstance(key, str) else None),
            perform=lambda call: made.perform(toolbox.servers, call, self._call_timeout_s),
        )
        if not repeated:
            recorder.note_request(message.get("id"), meta.get("traceparent") or exchange.header("traceparent"))
            at = (exchange.session, repr(message.get("id")))
            toolbox.calls[at] = made
            call.outcome.add_done_callback(lambda _: toolbox.calls.pop(at) if toolbox.calls.get(at) is made else None)
        ended = asyncio.create_task(exchange.ended.wait())
        try:
            await asyncio.wait({call.outcome, exchange.watch(), ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if not call.outcome.done() and exchange.reply_lost and version >= _STATELESS:
            # Closing the stream is how protocol 2026-07-28 takes a call back, and what a lost connection looks like.
            await asyncio.wait({call.outcome}, timeout=REPEAT_GRACE_S)
            if call.exchange is exchange:
                made.cancel(0)
        await self._tell(exchange, call, message.get("id"))

    async def _tell(self, exchange: Exchange, call: Call, request_id: object) -> None:
        """Send the outcome once there is one, unless the agent's stream has ended without it."""
        if not call.outcome.done() or exchange.ended.is_set():
            return
        if call.outcome.cancelled():
            await exchange.reply(error_reply(request_id, INTERNAL_ERROR, "The rollout has ended"))
        else:
            await exchange.reply(call.outcome.result().to(request_id))


def _names_a_tool(message: Mapping[str, Any]) -> bool:
    """Whether a server could take it for a call; what it can't take is for the server itself to refuse."""
    return isinstance(params_of(message).get("name"), str) and message.get("id") is not None


@asynccontextmanager
async def open_tool_gateway(record: RecordSpan, *, call_timeout_s: float = 60.0) -> AsyncGenerator[ToolGateway]:
    """The tool gateway for as long as the block runs.

    `record` makes a span durable before it returns. `call_timeout_s` bounds a tool call with all its attempts.
    """
    async with open_connections() as http:
        yield ToolGateway(record, http, call_timeout_s)
