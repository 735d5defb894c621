"""The servers of one rollout as one: a single server is passed through as it is, several are joined (many_servers.py).

It knows nothing about the once law or spans: tool calls only ask it for the way (`route`). Called by tools.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from harness.gateway.events import Event
from harness.gateway.exchange import Exchange, Reply
from harness.gateway.toolserver import Answer, Headers, ToolServerFailure, ToolServerLink, forwarded_headers, objects_of

Change = Callable[[Event], Awaitable[Event]]
"""Looks at an event on its way to the agent, and may put another in its place."""

_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class Route:
    """The way to a tool."""

    link: ToolServerLink
    """Its server."""
    own_name: str
    """The tool's name there."""
    headers: Headers
    """Headers for that server."""
    change: Change
    """What happens to its events on their way to the agent."""


class Servers(Protocol):
    """What the gateway asks of a rollout's servers."""

    async def relay(self, exchange: Exchange, method: str, message: dict[str, Any] | None, change: Change) -> None:
        """Answer anything but a tool call; raises ToolServerFailure."""
        ...

    async def route(self, exchange: Exchange, name: str) -> Route | None:
        """The way to the tool of this name; None where the agent has no such tool. Raises ToolServerFailure."""
        ...


@dataclass(frozen=True, slots=True)
class OneServer:
    """A rollout with one server: what goes through is changed only where the task allows less than there is."""

    link: ToolServerLink
    """The server."""
    allowed: frozenset[str] | None
    """Tools that are listed and may be called; None for all."""

    async def relay(self, exchange: Exchange, method: str, message: dict[str, Any] | None, change: Change) -> None:
        """Pass the request on, and its answer back."""
        listing = self.allowed is not None and message is not None and message.get("method") == "tools/list"

        async def changed(event: Event) -> Event:
            return await change(self._filtered(event) if listing else event)

        async with self.link.ask(method, forwarded_headers(exchange.headers), message) as answer:
            await pass_on(exchange, answer, changed)

    async def route(self, exchange: Exchange, name: str) -> Route | None:
        """The server itself says what it doesn't know."""
        if self.allowed is not None and name not in self.allowed:
            return None
        return Route(self.link, name, forwarded_headers(exchange.headers), _unchanged)

    def _filtered(self, event: Event) -> Event:
        message = event.message or {}
        result: Any = message.get("result")
        if self.allowed is None or not event.answers or type(result) is not dict:
            return event
        found = cast("dict[str, Any]", result)
        tools = [tool for tool in objects_of(found.get("tools")) if str(tool.get("name")) in self.allowed]
        return event.replaced({**message, "result": {**found, "tools": tools}})


async def _unchanged(event: Event) -> Event:
    return event


async def pass_on(exchange: Exchange, answer: Answer, change: Change) -> None:
    """Send what a server answers on to the agent, event by event; raises ToolServerFailure."""
    if answer.streams:
        # The headers alone tell a client that its stream is open.
        await exchange.emit(b"", answer)
    async for event in answer.events():
        if answer.status >= _SERVER_ERROR and not event.answers:
            raise refusal(answer, event.raw)
        changed = await change(event)
        if answer.streams:
            await exchange.emit(changed.raw, answer)
        else:
            await exchange.reply(Reply(changed, answer.status, answer.headers))
    await exchange.finish()


def refusal(answer: Answer, body: bytes) -> ToolServerFailure:
    """The failure of a server that answers with something else than MCP."""
    text = body[:200].decode(errors="replace")
    return ToolServerFailure("refused", f"HTTP status {answer.status} without an MCP answer: {text!r}", reached=True)
