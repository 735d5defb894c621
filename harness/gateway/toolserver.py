"""One tool server of one rollout, as the tool gateway asks it: one HTTP exchange at a time over pooled connections.

What the server answers is passed on as it came, so both protocol versions and whatever comes next look the same on
both sides of the gateway. It knows nothing about rollouts, spans or models. Called by servers.py and tools.py.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import aiohttp
from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_NAME_HEADER, encode_header_value
from multidict import CIMultiDict

from harness.gateway.events import MOST_BYTES, Event, EventTooLong, parse_message, read_events
from harness.gateway.keys import ToolDoor

Headers = Sequence[tuple[str, str]]
"""Names in lower case; a name may come twice, which servers have to see."""

KEY_HEADER = "x-idempotency-key"
"""HTTP header of the once law; the same value rides in `_meta` under `KEY_META`."""
KEY_META = "harness/idempotency-key"
"""`_meta` name of the once law's key, for servers behind another transport than HTTP."""
SESSION_HEADER = "mcp-session-id"
"""Header of protocols up to 2025-11-25 that names a server's session."""

_CONNECT_TIMEOUT_S = 5.0
# An agent's credentials are for the gateway and stay there.
_TO_SERVER = ("accept", "content-type", "last-event-id")
_TO_AGENT = ("content-type", "cache-control", "allow", "retry-after")
# Else aiohttp adds headers of its own, and a server that looks for a missing one finds it.
_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class ToolServerFailure(Exception):
    """The server could not be asked, or gave no MCP answer: a failure of infrastructure, not of a tool."""

    def __init__(self, kind: str, detail: str, *, reached: bool) -> None:
        super().__init__(detail)
        self.kind = kind
        """`unreachable`, `timeout`, `lost` (the connection broke), `refused` (an HTTP status without MCP answer), or
        `cancelled` by the agent, which is nobody's failure."""
        self.reached = reached
        """True where the request may have arrived, so that only a server that keeps the once law may be asked again."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answers, while it does."""

    status: int
    """HTTP status."""
    headers: Headers
    """Those an agent may see."""
    response: aiohttp.ClientResponse
    """Where the rest comes from."""

    @property
    def streams(self) -> bool:
        """True for an event stream."""
        return self.response.content_type == "text/event-stream"

    @property
    def session(self) -> str | None:
        """The session the server opened with this answer."""
        return self.response.headers.get(SESSION_HEADER)

    async def events(self) -> AsyncIterator[Event]:
        """Every event of the stream, or the one body; raises ToolServerFailure where the connection breaks."""
        try:
            if self.streams:
                async for event in read_events(self.response.content.iter_any()):
                    yield event
            else:
                body = await self.body()
                yield Event(body, parse_message(body), framed=False)
        except EventTooLong as error:
            raise ToolServerFailure("refused", str(error), reached=True) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise ToolServerFailure("lost", f"the connection broke: {_plain(error)}", reached=True) from error

    async def body(self) -> bytes:
        """The whole body, at most `MOST_BYTES`; raises ToolServerFailure, aiohttp.ClientError or ConnectionError."""
        parts: list[bytes] = []
        size = 0
        async for part in self.response.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > MOST_BYTES:
                raise ToolServerFailure("refused", f"an answer of more than {MOST_BYTES} bytes", reached=True)
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class ToolServerLink:
    """One server of one rollout."""

    door: ToolDoor
    """How it is reached."""
    http: aiohttp.ClientSession
    """The process's shared connections."""

    @asynccontextmanager
    async def ask(self, method: str, headers: Headers, message: Any = None) -> AsyncGenerator[Answer]:
        """One HTTP exchange; the connection ends with the block. Raises ToolServerFailure."""
        sent = CIMultiDict(headers)
        for name, value in self.door.headers.items():
            sent[name] = value
        content = None if message is None else json.dumps(message).encode()
        try:
            async with self.http.request(
                method, self.door.url, data=content, headers=sent, skip_auto_headers=_NOT_ADDED, allow_redirects=False
            ) as response:
                seen = [(name.lower(), value) for name, value in response.headers.items()]
                passed = [(n, v) for n, v in seen if n in _TO_AGENT or n.startswith("mcp-")]
                yield Answer(response.status, passed, response)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise ToolServerFailure("unreachable", _plain(error), reached=False) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise ToolServerFailure("lost", f"the connection broke: {_plain(error)}", reached=True) from error


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


def forwarded_headers(headers: Headers) -> list[tuple[str, str]]:
    """Of an agent's request headers, those that a server may see: MCP's own and what HTTP needs."""
    return [(name, value) for name, value in headers if name in _TO_SERVER or name.startswith("mcp-")]


def with_header(headers: Headers, name: str, value: str | None) -> list[tuple[str, str]]:
    """The headers with one of them set, or left out for None."""
    others = [pair for pair in headers if pair[0] != name]
    return others if value is None else [*others, (name, value)]


def with_name(headers: Headers, name: str) -> list[tuple[str, str]]:
    """The headers with the `Mcp-Name` of protocol 2026-07-28 changed, where there is one."""
    if not any(pair[0] == MCP_NAME_HEADER for pair in headers):
        return list(headers)
    return with_header(headers, MCP_NAME_HEADER, encode_header_value(name))


def with_method(headers: Headers, method: str) -> list[tuple[str, str]]:
    """The headers of protocol 2026-07-28 for a request of our own, which names no item."""
    if not any(pair == (MCP_METHOD_HEADER, method) for pair in headers) and any(
        n == MCP_METHOD_HEADER for n, _ in headers
    ):
        return with_header(with_header(headers, MCP_METHOD_HEADER, method), MCP_NAME_HEADER, None)
    return list(headers)


def objects_of(listed: object) -> list[dict[str, Any]]:
    """The objects of a list that a server wrote; whatever else there is in it, or instead of it, is left out."""
    items = cast("list[Any]", listed) if isinstance(listed, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


def params_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message's parameters, empty where there are none."""
    params = message.get("params")
    return cast("dict[str, Any]", params) if isinstance(params, dict) else {}
