"""A small MCP server with one of everything, to look at directly and through something that should change nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import Completion, ElicitResult
from pydantic import BaseModel


class Confirmation(BaseModel):
    """What an agent's user is asked for."""

    yes: bool


@dataclass
class Reference:
    """The server, and what it sees of its clients."""

    started: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when `endless` runs."""
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when `endless` was cancelled."""

    def mcp(self) -> MCPServer:
        """Tools, resources, prompts and completion."""
        server = MCPServer("reference", version="7", instructions="Ask me anything.", log_level="WARNING")

        @server.tool()
        async def count(to: int, ctx: Context[Any]) -> str:
            """Counts, and says how far it is."""
            for number in range(1, to + 1):
                await ctx.report_progress(number, to, f"counted {number}")
            return f"counted to {to}"

        @server.tool()
        async def confirm(ctx: Context[Any]) -> str:
            """Asks the user."""
            answer = await ctx.elicit("Really?", Confirmation)
            return f"{answer.action} {answer.data.yes if answer.action == 'accept' else '-'}"

        @server.tool()
        async def endless() -> str:
            """Runs until it is cancelled."""
            self.started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped.set()
            return "never"

        @server.tool()
        async def rename(ctx: Context[Any]) -> str:
            """Says that the list of tools has changed."""
            await ctx.notify_tools_changed()
            return "renamed"

        @server.resource("note://first", mime_type="text/plain")
        def first() -> str:
            """A note."""
            return "the first note"

        @server.resource("note://{number}/text")
        def numbered(number: str) -> str:
            """Any note."""
            return f"note number {number}"

        @server.prompt()
        def greet(name: str) -> str:
            """Greets."""
            return f"Say hello to {name}."

        @server.completion()
        async def complete(ref: Any, argument: Any, context: Any) -> Completion:
            return Completion(values=[f"{argument.value}a", f"{argument.value}b"], total=2, has_more=False)

        return server


async def accept(context: Any, params: Any) -> ElicitResult:
    """A user who says yes."""
    return ElicitResult(action="accept", content={"yes": True})


async def look_at_everything(client: Client, *, stateful: bool) -> dict[str, Any]:
    """Everything a client can see of the reference server; `stateful` adds what needs a way back to the client."""
    progress: list[tuple[float, float | None, str | None]] = []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        progress.append((done, total, message))

    greeting = {"type": "ref/prompt", "name": "greet"}
    seen: dict[str, Any] = {
        "version": client.protocol_version,
        "server": client.server_info,
        "can": client.server_capabilities,
        "instructions": client.instructions,
        "tools": await client.list_tools(),
        "resources": await client.list_resources(),
        "templates": await client.list_resource_templates(),
        "prompts": await client.list_prompts(),
        "note": await client.read_resource("note://first"),
        "any note": await client.read_resource("note://7/text"),
        "prompt": await client.get_prompt("greet", {"name": "Ada"}),
        "completion": await client.complete(greeting, {"name": "name", "value": "Ad"}),  # type: ignore[arg-type]
        "call": await client.call_tool("count", {"to": 3}, progress_callback=on_progress),
        "wrong": await client.call_tool("count", {"to": "three"}),
    }
    if stateful:
        seen["asked"] = await client.call_tool("confirm", {})
        await client.send_ping()
    return seen | {"progress": progress}


if __name__ == "__main__":
    Reference().mcp().run("stdio")
