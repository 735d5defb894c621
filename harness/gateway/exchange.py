"""One HTTP request of an agent to its MCP door, and what has become of its reply.

It knows nothing about servers or tools. tools.py makes one for each request; servers.py answers through it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

from starlette.types import Message, Receive, Scope, Send

from harness.gateway.events import Event
from harness.gateway.http import read_body
from harness.gateway.keys import LiveRollout
from harness.gateway.toolserver import SESSION_HEADER, Answer, Headers

_MAX_BODY_BYTES = 16 * 2**20
_NO_CONTENT = 204
_EVENT_STREAM = [("content-type", "text/event-stream"), ("cache-control", "no-cache, no-transform")]


class BadMessage(Exception):
    """A body that is no single JSON-RPC message; `args` are the JSON-RPC code and the words."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What answers a request."""

    event: Event
    """The message, in the form it came in."""
    status: int = 200
    """HTTP status."""
    headers: Headers = (("content-type", "application/json"),)
    """HTTP headers."""

    def to(self, request_id: object) -> Reply:
        """The same as the answer to the request of that id."""
        message = self.event.message
        if message is None or message.get("id") == request_id:
            return self
        return Reply(self.event.replaced({**message, "id": request_id}), self.status, self.headers)


def our_reply(message: Mapping[str, Any], status: int = 200) -> Reply:
    """A JSON-RPC message of our own."""
    return Reply(Event(json.dumps(message).encode(), dict(message), framed=False), status)


def error_reply(request_id: object, code: int, words: str, status: int = 200) -> Reply:
    """A JSON-RPC error of our own."""
    return our_reply({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": words}}, status)


@dataclass(slots=True)
class Exchange:
    """The agent's side; sees whether the agent's connection breaks before the reply is sent."""

    rollout: LiveRollout
    """Whose request it is."""
    scope: Scope
    """Its ASGI scope."""
    receive: Receive
    """The connection's incoming messages."""
    send: Send
    """The connection's outgoing messages."""
    headers: Headers = field(init=False)
    """HTTP headers, names in lower case."""
    gone: asyncio.Future[Message] | None = None
    """Done when the connection breaks or its reply is through; None before the body has been read."""
    reply_lost: bool = False
    """True where the connection broke first."""
    replied: bool = False
    """True once the reply is being sent."""
    streaming: bool = False
    """True once events have been sent ahead of the reply."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nothing more can be sent."""

    def __post_init__(self) -> None:
        """Read the headers."""
        pairs = cast("list[tuple[bytes, bytes]]", self.scope["headers"])
        self.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs]

    def header(self, name: str) -> str | None:
        """First value of a header."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def session(self) -> str | None:
        """The session of the agent's client; None without one, as in protocol 2026-07-28."""
        return self.header(SESSION_HEADER)

    def is_foreign(self) -> bool:
        """Whether a page of another site sends this request to our loopback address (DNS rebinding)."""
        here = (self.scope.get("server") or ("", 0))[0]
        if not _is_loopback(str(here)):
            return False
        origin = self.header("origin")
        try:
            hosts = [urlsplit(f"//{self.header('host') or ''}").hostname, origin and urlsplit(origin).hostname]
        except ValueError:
            return True  # no address of ours is written like that
        return any(host is not None and not _is_loopback(str(host)) for host in hosts)

    async def read_message(self) -> dict[str, Any]:
        """The one JSON-RPC message of the body; raises BadMessage, BodyTooLarge or ClientGone."""
        content = await read_body(self.receive, _MAX_BODY_BYTES)
        try:
            message = json.loads(content, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise BadMessage(-32700, f"Parse error: the body is no JSON: {error}") from error
        if not isinstance(message, dict):
            # A batch would carry tool calls past the once law; MCP has none since 2025-06-18.
            raise BadMessage(-32600, "Invalid Request: the body must be a single JSON-RPC message")
        return cast("dict[str, Any]", message)

    async def read_nothing(self) -> None:
        """Read the body of a request that needs none; after it comes only word of the agent's going."""
        await read_body(self.receive, _MAX_BODY_BYTES)

    def watch(self) -> asyncio.Future[Message]:
        """Wait for the agent to go away; the whole body has been read."""
        if self.gone is None:
            self.gone = asyncio.ensure_future(self.receive())
            self.gone.add_done_callback(self._on_gone)
        return self.gone

    def _on_gone(self, message: asyncio.Future[Message]) -> None:
        if not message.cancelled() and not self.replied:
            self.reply_lost = True

    def leave(self) -> None:
        """Stop watching."""
        if self.gone is not None:
            self.gone.cancel()

    async def emit(self, raw: bytes, answer: Answer | None = None) -> None:
        """Send something ahead of the reply, as an event stream with that answer's headers."""
        if not self.streaming:
            self.streaming = True
            await self._start(answer.status if answer else 200, answer.headers if answer else _EVENT_STREAM)
        await self.send({"type": "http.response.body", "body": raw, "more_body": True})

    async def finish(self) -> None:
        """End a reply that events were sent of."""
        self.replied = True
        if self.streaming and not self.ended.is_set():
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})
        self.ended.set()

    async def reply(self, reply: Reply) -> None:
        """Send the reply itself: as the last event where some were sent, else in the form it came in."""
        self.replied = True
        if not self.streaming:
            bare = reply.event.framed or reply.status == _NO_CONTENT
            length = [] if bare else [("content-length", str(len(reply.event.raw)))]
            await self._start(reply.status, [*reply.headers, *length])
        raw = reply.event.frame if self.streaming else reply.event.raw
        await self.send({"type": "http.response.body", "body": raw, "more_body": False})
        self.ended.set()

    async def _start(self, status: int, headers: Headers) -> None:
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self.send({"type": "http.response.start", "status": status, "headers": pairs})


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
