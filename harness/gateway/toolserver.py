"""One tool server of one rollout, as the tool gateway calls it: MCP requests over pooled HTTP connections.

A server of protocol 2026-07-28 is asked in plain JSON-RPC over the process's shared connections (0.4 ms of CPU a call);
an older one through the MCP SDK's client with its handshake and session (3 ms). Which it is shows at the first listing.
It knows nothing about rollouts, spans or models. Called by tools.py.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from typing import Any, Protocol, cast

import aiohttp
import httpx2
import mcp_types
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PARAM_HEADER_PREFIX,
    MCP_PROTOCOL_VERSION_HEADER,
    encode_header_value,
)

from harness.gateway.keys import ToolDoor

PROTOCOL = "2026-07-28"
"""The stateless protocol version that servers are asked in first."""
KEY_HEADER = "x-idempotency-key"
"""HTTP header of the once law; the same value rides in `_meta` under `KEY_META`."""
KEY_META = "harness/idempotency-key"
"""`_meta` name of the once law's key, for servers behind another transport than HTTP."""

_DEFAULT_META: dict[str, Any] = {
    mcp_types.CLIENT_INFO_META_KEY: {"name": "harness-tool-gateway", "version": "1"},
    mcp_types.CLIENT_CAPABILITIES_META_KEY: {},
}
_MAX_PAGES = 100
_MAX_ANSWER_BYTES = 16 * 2**20
_CONNECT_TIMEOUT_S = 5.0


class ToolServerFailure(Exception):
    """The server could not be asked, or gave no MCP answer: a failure of infrastructure, not of a tool."""

    def __init__(self, kind: str, detail: str, *, reached: bool) -> None:
        super().__init__(detail)
        self.kind = kind
        """`unreachable`, `timeout`, `lost` (the connection broke) or `refused` (an HTTP status without MCP answer)."""
        self.reached = reached
        """True where the request may have arrived, so that only a server that keeps the once law may be asked again."""


class Peer(Protocol):
    """A server of either protocol version. Raises MCPError for the server's own JSON-RPC errors."""

    async def request(self, method: str, params: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """One MCP request and its result in wire form; raises ToolServerFailure."""
        ...

    async def close(self) -> None:
        """Let go of what the server was reached through."""
        ...


class ToolServerLink:
    """One server of one rollout, whatever protocol version it speaks."""

    def __init__(self, door: ToolDoor, http: aiohttp.ClientSession) -> None:
        self.door = door
        self._peer: Peer = StatelessPeer(door, http)

    async def list_tools(self) -> list[dict[str, Any]]:
        """All tools in wire form, page by page; raises ToolServerFailure or MCPError."""
        try:
            return await self._list_tools()
        except (MCPError, ToolServerFailure) as error:
            # A refusal is how a server without protocol 2026-07-28 answers a request that no handshake precedes.
            refused = isinstance(error, MCPError) or error.kind == "refused"
            if isinstance(self._peer, HandshakePeer) or not refused:
                raise
        self._peer = HandshakePeer(self.door)
        return await self._list_tools()

    async def _list_tools(self) -> list[dict[str, Any]]:
        tools: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        for _ in range(_MAX_PAGES):
            page = await self._peer.request("tools/list", params, {})
            tools += page.get("tools", [])
            cursor = page.get("nextCursor")
            if cursor is None:
                return tools
            params = {"cursor": cursor}
        raise ToolServerFailure("refused", f"the listing of tools did not end after {_MAX_PAGES} pages", reached=True)

    async def call_tool(self, params: dict[str, Any], key: str, headers: Mapping[str, str]) -> dict[str, Any]:
        """One `tools/call` under an idempotency key; raises ToolServerFailure or MCPError."""
        meta = {**cast("dict[str, Any]", params.get("_meta") or {}), KEY_META: key}
        return await self._peer.request("tools/call", {**params, "_meta": meta}, {**headers, KEY_HEADER: key})

    async def close(self) -> None:
        """Let go of the server."""
        await self._peer.close()


class StatelessPeer:
    """A server of protocol 2026-07-28: every request stands for itself."""

    def __init__(self, door: ToolDoor, http: aiohttp.ClientSession) -> None:
        self._door = door
        self._http = http
        self._ids = itertools.count(1)

    async def request(self, method: str, params: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """One POST; the answer may come as JSON or as an event stream."""
        request_id = next(self._ids)
        given = cast("dict[str, Any]", params.get("_meta") or {})
        meta = {**_DEFAULT_META, **given, mcp_types.PROTOCOL_VERSION_META_KEY: PROTOCOL}
        # Progress has no way back to the agent in a JSON answer.
        meta.pop("progressToken", None)
        body = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {**params, "_meta": meta}}
        named = {MCP_NAME_HEADER: encode_header_value(str(params["name"]))} if "name" in params else {}
        routing = {MCP_PROTOCOL_VERSION_HEADER: PROTOCOL, MCP_METHOD_HEADER: method, **named}
        content = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        answer = await self._post(body, {**self._door.headers, **content, **routing, **headers})
        error = answer.get("error")
        if isinstance(error, dict):
            fields = cast("dict[str, Any]", error)
            raise MCPError(int(fields.get("code", -32603)), str(fields.get("message", "")), fields.get("data"))
        result = answer.get("result")
        if not isinstance(result, dict):
            raise ToolServerFailure("refused", "its answer holds neither a result nor an error", reached=True)
        return cast("dict[str, Any]", result)

    async def _post(self, body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        try:
            async with self._http.post(self._door.url, data=json.dumps(body).encode(), headers=headers) as response:
                if response.content_type == "text/event-stream":
                    return await _event_answer(response, body["id"])
                if (response.content_length or 0) > _MAX_ANSWER_BYTES:
                    raise ToolServerFailure("refused", f"an answer of {response.content_length} bytes", reached=True)
                return _json_answer(response.status, await response.read())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise ToolServerFailure("unreachable", _plain(error), reached=False) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise ToolServerFailure("lost", f"the connection broke: {_plain(error)}", reached=True) from error

    async def close(self) -> None:
        """Nothing of its own: the connections belong to the process."""


def _json_answer(status: int, content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except ValueError:
        answer = None
    # An HTTP refusal without a JSON-RPC id is about the transport, not about this request.
    if not isinstance(answer, dict) or (status >= 400 and cast("dict[str, Any]", answer).get("id") is None):
        text = content[:200].decode(errors="replace")
        raise ToolServerFailure("refused", f"HTTP status {status} without an MCP answer: {text!r}", reached=True)
    return cast("dict[str, Any]", answer)


async def _event_answer(response: aiohttp.ClientResponse, request_id: int) -> dict[str, Any]:
    """The answer among the events of a stream (WHATWG server-sent events; `data` lines until an empty line)."""
    data: list[bytes] = []
    async for raw in response.content:
        line = raw.rstrip(b"\r\n")
        if line.startswith(b"data:"):
            data.append(line[5:].lstrip())
        elif not line and data:
            message = json.loads(b"\n".join(data))
            data.clear()
            if isinstance(message, dict) and cast("dict[str, Any]", message).get("id") == request_id:
                return cast("dict[str, Any]", message)
    raise ToolServerFailure("lost", "the event stream ended without an answer", reached=True)


class HandshakePeer:
    """A server of protocol 2025-11-25 or older, held open by the SDK's client in a task of its own.

    The client's context must be left by the task that entered it, and rollouts are sealed from another one.
    """

    def __init__(self, door: ToolDoor) -> None:
        self._door = door
        self._close = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._client: asyncio.Future[Client] | None = None

    async def request(self, method: str, params: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """One request through the open client; HTTP headers can't ride along, `_meta` does."""
        client = await self._connected()
        meta = cast("mcp_types.RequestParamsMeta | None", params.get("_meta"))
        try:
            if method == "tools/call":
                called = client.session.call_tool(params["name"], params.get("arguments"), meta=meta)
                return (await called).model_dump(by_alias=True, mode="json", exclude_none=True)
            listed = client.session.list_tools(params=mcp_types.PaginatedRequestParams(cursor=params.get("cursor")))
            return (await listed).model_dump(by_alias=True, mode="json", exclude_none=True)
        except (httpx2.HTTPError, OSError) as error:
            raise ToolServerFailure("lost", f"the connection broke: {_plain(error)}", reached=True) from error

    async def _connected(self) -> Client:
        if self._client is None:
            self._client = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._hold_open(self._client))
        return await asyncio.shield(self._client)

    async def _hold_open(self, opened: asyncio.Future[Client]) -> None:
        try:
            async with httpx2.AsyncClient(headers=dict(self._door.headers), timeout=None) as http:
                transport = streamable_http_client(self._door.url, http_client=http)
                async with Client(transport, mode="legacy", cache=None) as client:
                    opened.set_result(client)
                    await self._close.wait()
        except (MCPError, httpx2.HTTPError, OSError, ExceptionGroup) as error:
            if not opened.done():
                opened.set_exception(ToolServerFailure("unreachable", _plain(error), reached=False))

    async def close(self) -> None:
        """End the MCP session and its connections."""
        self._close.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_CONNECT_TIMEOUT_S)
            self._task.cancel()


def _plain(error: BaseException) -> str:
    """The error without its address: a session's URL is a secret, and details go into spans."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect to {error.host}:{error.port} ({error.strerror or type(error.os_error).__name__})"
    return f"{type(error).__name__}"


def open_connections() -> aiohttp.ClientSession:
    """The process's shared connections to tool servers, to be closed with it.

    Idle connections are dropped after 4 s: uvicorn closes its end after 5 s, and a request that meets a closing
    connection is lost.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=True)


def forwarded_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Of an agent's request headers, those a server may check against the tool's schema (`Mcp-Param-*`)."""
    prefix = MCP_PARAM_HEADER_PREFIX.lower()
    return {name: value for name, value in headers.items() if name.lower().startswith(prefix)}
