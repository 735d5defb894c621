"""What an MCP server offers: its tools, resources and instructions, read over streamable HTTP or stdio.

It knows nothing about scenarios or models. The server is asked, never changed: no tool is called.
Called by cli_tasks.py.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
from dataclasses import dataclass
from typing import Any

from mcp import Client, StdioServerParameters

from harness.agent import describe_error
from harness.errors import ToolServerError

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as the server describes it."""

    name: str
    """Its name."""
    description: str
    """What it does."""
    parameters: dict[str, Any]
    """JSON schema of its arguments."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a server offers."""

    name: str
    """The server's own name."""
    instructions: str
    """What it tells its clients; empty where it tells nothing."""
    tools: tuple[Tool, ...]
    """Its tools."""
    resources: tuple[str, ...]
    """Addresses and names of its resources."""


async def read_offer(server: str) -> Offer:
    """Ask the server at a URL, or the one that a command line starts on stdio, what it offers.

    Raises ToolServerError: no such command, no answer, no MCP, or no tools.
    """
    asked = f"the tools of the MCP server {server!r}"
    try:
        async with asyncio.timeout(_TIMEOUT_S), Client(_transport(server, asked)) as client:
            tools = [
                Tool(tool.name, tool.description or "", dict(tool.input_schema))
                for tool in (await client.list_tools()).tools
            ]
            offers_resources = client.server_capabilities.resources is not None
            listed = (await client.list_resources()).resources if offers_resources else []
            info = client.server_info
            offer = Offer(
                name=info.name if info is not None else "server",
                instructions=client.instructions or "",
                tools=tuple(tools),
                resources=tuple(f"{resource.uri} {resource.name}" for resource in listed),
            )
    except ToolServerError:
        raise
    except Exception as error:
        found = f"no answer as MCP gives it: {describe_error(error)[:500]}"
        fix = "give the address of its endpoint, as in http://127.0.0.1:8000/mcp, or a command that speaks MCP on stdio"
        raise ToolServerError(asked, found, fix) from error
    if not offer.tools:
        raise ToolServerError(asked, "it offers none", "name another server: scenarios are made from tools")
    return offer


def _transport(server: str, asked: str) -> str | StdioServerParameters:
    if server.startswith(("http://", "https://")):
        return server
    command = shlex.split(server)
    if not command or shutil.which(command[0]) is None:
        found = f"no command {command[0]!r} on the PATH" if command else "it is empty"
        raise ToolServerError(asked, found, "give a URL that begins with http, or a command line in quotes")
    return StdioServerParameters(command=command[0], args=command[1:])
