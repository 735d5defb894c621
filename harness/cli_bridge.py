"""`harness mcp-bridge`: a stdio MCP server in front of a rollout's tool door. Reads flags; bridge.py does the work."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer

from harness.bridge import run_bridge
from harness.errors import ConfigError


def mcp_bridge(
    url: Annotated[str | None, typer.Option("--url", help="MCP address; MCP_URL by default.")] = None,
) -> None:
    """Speak MCP on standard input and output, for agents that start their tool servers as commands.

    Name `harness mcp-bridge` as the command of a stdio server in the agent's own configuration; the rollout's
    MCP_URL has to be in its environment. Both protocol versions pass through.
    """
    door = url or os.environ.get("MCP_URL")
    if not door:
        raise ConfigError("harness mcp-bridge", "neither --url nor MCP_URL is given", "hand on the rollout's MCP_URL")
    asyncio.run(run_bridge(door))
