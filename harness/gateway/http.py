"""Bodies, answers and event streams over bare ASGI: what both the doors and the admin API need of HTTP.

It knows nothing about rollouts, models or tools. A framework's routing and validation would cost more than a whole
call may; there are five paths. Called by app.py, admin.py and model.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

_JSON = (b"content-type", b"application/json")
_EVENTS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))


class BodyTooLarge(Exception):
    """The request's body is longer than is taken."""


class ClientGone(Exception):
    """The connection broke before the body was through."""


@dataclass(frozen=True, slots=True)
class Client:
    """The two ends of one request's connection."""

    receive: Receive
    """Incoming messages."""
    send: Send
    """Outgoing messages."""

    async def outlasts(self, task: asyncio.Task[Any]) -> bool:
        """Wait for `task` or for the client to go away; whether the task was done first. The body has been read."""
        gone = asyncio.ensure_future(self.receive())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        return task.done()


async def read_body(receive: Receive, limit_bytes: int) -> bytes:
    """The whole body; raises BodyTooLarge or ClientGone."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise BodyTooLarge
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def header(scope: Scope, name: bytes) -> str:
    """Value of a header (name in lower case), empty where it is absent."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return ""


async def send_json(send: Send, status: int, body: bytes, extra: Mapping[bytes, bytes] | None = None) -> None:
    """A whole JSON answer."""
    headers = [_JSON, (b"content-length", str(len(body)).encode()), *(extra or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def start_events(send: Send) -> None:
    """Begin an event stream."""
    await send({"type": "http.response.start", "status": 200, "headers": list(_EVENTS)})


async def send_frames(send: Send, frames: Iterable[bytes]) -> None:
    """Some whole server-sent events."""
    content = b"".join(frames)
    if content:
        await send({"type": "http.response.body", "body": content, "more_body": True})


async def end_events(send: Send) -> None:
    """End an event stream."""
    await send({"type": "http.response.body", "body": b"", "more_body": False})
