"""Server-sent events as MCP uses them: the events of a byte stream, kept as they came, with the message each carries.

It knows nothing about HTTP connections or what a message means (WHATWG HTML, 9.2; MCP streamable HTTP).
Called by toolserver.py and the stdio bridge.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

MOST_BYTES = 16 * 2**20
"""Longest event, and longest answer, that is read."""
_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventTooLong(Exception):
    """An event of more than `MOST_BYTES`."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event, or a whole JSON answer, which is passed on in the same way."""

    raw: bytes
    """As it came, with the blank line that ends it."""
    message: dict[str, Any] | None = None
    """The JSON-RPC message in it; None for comments, for empty events and for what is no JSON object."""
    event_id: str = ""
    """Where a client that lost the stream may go on from; empty where it can't."""
    framed: bool = True
    """False for a whole JSON answer."""

    @property
    def answers(self) -> bool:
        """True for the result or error of a request."""
        return self.message is not None and "method" not in self.message and self.message.get("id") is not None

    def replaced(self, message: dict[str, Any]) -> Event:
        """The same event with another message in it."""
        whole = json.dumps(message).encode()
        return Event(_frame(whole, self.event_id) if self.framed else whole, message, self.event_id, self.framed)

    @property
    def frame(self) -> bytes:
        """As part of an event stream, whatever it came in."""
        return self.raw if self.framed else _frame(self.raw)


def _frame(data: bytes, event_id: str = "") -> bytes:
    identity = f"id: {event_id}\r\n".encode() if event_id else b""
    return identity + b"event: message\r\ndata: " + data + b"\r\n\r\n"


def parse_message(content: bytes) -> dict[str, Any] | None:
    """One JSON object, or None for anything else, an answer whose result is none included."""
    try:
        message = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or not isinstance(cast("dict[str, Any]", message).get("result", {}), dict):
        return None
    return cast("dict[str, Any]", message)


def parse_event(raw: bytes) -> Event:
    """One event from its lines."""
    data: list[bytes] = []
    event_id = ""
    for line in _LINE_END.split(raw):
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif name == b"id":
            event_id = value.removeprefix(b" ").decode(errors="replace")
    return Event(raw, parse_message(b"\n".join(data)) if data else None, event_id)


async def read_events(chunks: AsyncIterable[bytes]) -> AsyncIterator[Event]:
    """The whole events of a stream; one that is cut off at its end is left out. Raises EventTooLong."""
    buffer = b""
    searched = 0
    async for chunk in chunks:
        buffer += chunk
        while (end := _BLANK_LINE.search(buffer, max(0, searched - 3))) is not None:
            yield parse_event(buffer[: end.end()])
            buffer = buffer[end.end() :]
            searched = 0
        searched = len(buffer)
        if searched > MOST_BYTES:
            raise EventTooLong(f"an event of more than {MOST_BYTES} bytes")
