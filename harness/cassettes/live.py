"""A miss answered by the live server: from the first one on, the whole session is played there.

The calls made so far are made there first, in their order, so that the live state is what the agent has seen. A server
of ours (a folder of `mcp_servers/`) gets a session for the recorded task and grades it; any other MCP server is reached
by URL, holds a state of its own that nobody resets, and is asked only what is not on record.
Chosen by `--on-miss live`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx2
import mcp_types
from mcp import Client, MCPError

from harness.cassettes.deck import Answered, Deck
from harness.errors import ToolServerError
from harness.session import ControlledSession, ToolServer
from harness.task import task_from_dict
from traces.cassette import RecordedCall

LIVE = "live"


class LiveUrl:
    """Any MCP server (streamable HTTP), asked only what is not on record."""

    knows_changes = False

    def __init__(self, url: str) -> None:
        self._url = url

    async def answer(self, deck: Deck, name: str, arguments: str) -> Answered:
        """What the server says; raises ToolServerError."""
        del deck
        return Answered(await call_live(self._url, name, arguments), LIVE)

    def has_taken_over(self, deck: Deck) -> bool:
        """Never: its state is not this session's."""
        del deck
        return False

    async def grade(self, deck: Deck, answer: str) -> dict[str, Any] | None:
        """The record's own grade stands."""
        del deck, answer

    async def close(self, deck: Deck) -> None:
        """Nothing is held."""
        del deck


@dataclass(slots=True)
class _Taken:
    session: ControlledSession
    """The live session."""
    task: dict[str, Any]
    """The task it was opened for."""


class LiveServer:
    """A tool server with a control API: a session for each that misses, brought to where the agent stands."""

    knows_changes = True

    def __init__(self, server: ToolServer) -> None:
        self._server = server
        self._taken: dict[str, _Taken] = {}

    async def answer(self, deck: Deck, name: str, arguments: str) -> Answered:
        """What the server says, in a session that has seen all earlier calls; raises ToolServerError."""
        taken = await self._take_over(deck)
        return Answered(await call_live(taken.session.door.url, name, arguments), LIVE)

    def has_taken_over(self, deck: Deck) -> bool:
        """True after the first miss."""
        return deck.id in self._taken

    async def grade(self, deck: Deck, answer: str) -> dict[str, Any] | None:
        """The server's own checks of a session in which the agent's calls were made; None without a recorded task."""
        if not deck.cassette.task:
            return None
        taken = await self._take_over(deck)
        return await taken.session.grade(task_from_dict(taken.task), answer)

    async def close(self, deck: Deck) -> None:
        """Drop the live session, if there is one; raises ToolServerError."""
        taken = self._taken.pop(deck.id, None)
        if taken is not None:
            await taken.session.close()

    async def _take_over(self, deck: Deck) -> _Taken:
        if deck.id not in self._taken:
            if not deck.cassette.task:
                raise ToolServerError(
                    f"a live session for task {deck.cassette.task_id!r}",
                    "the cassette doesn't hold the task as its server stated it: it was imported",
                    "give the live server by URL (tools.url), or take tools.on_miss = 'refuse'",
                )
            session = await self._server.open_session(task_from_dict(deck.cassette.task))
            for earlier in deck.answered:
                await call_live(session.door.url, earlier.call.name, earlier.call.arguments)
            self._taken[deck.id] = _Taken(session, deck.cassette.task)
        return self._taken[deck.id]


async def call_live(url: str, name: str, arguments: str) -> RecordedCall:
    """One tool call of an MCP server and its text; raises ToolServerError where the server can't be asked."""
    try:
        async with Client(url) as client:
            result = await client.call_tool(name, json.loads(arguments))
    except MCPError as error:
        return RecordedCall(name=name, arguments=arguments, result=f"Error: {error}", is_error=True)
    except (httpx2.HTTPError, OSError, ExceptionGroup) as error:
        asked = f"{name} of the live server"
        raise ToolServerError(asked, f"{type(error).__name__}", "look whether it runs, and into its log") from error
    text = "\n".join(part.text for part in result.content if isinstance(part, mcp_types.TextContent))
    return RecordedCall(name=name, arguments=arguments, result=text, is_error=bool(result.is_error))
