"""A tool-using agent built with smolagents: its `ToolCallingAgent`, which ends by calling a tool `final_answer`.

It knows nothing of how it is trained: it gets a task and two URLs.
Run by path, in an environment of its own: `harness train --agent agents/smolagents/agent.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from smolagents import LogLevel, MCPClient, OpenAIModel, ToolCallingAgent

MAX_STEPS = 100
"""More than any rollout is given: the gateway ends it at its turn limit."""


async def run(task: Any, door: Any) -> str:
    """Work on one task; returns the agent's answer."""
    return await asyncio.to_thread(_run, task, door)


def _run(task: Any, door: Any) -> str:
    model = OpenAIModel(door.model, api_base=door.base_url, api_key=door.api_key)
    with MCPClient({"url": door.mcp_url, "transport": "streamable-http"}, structured_output=False) as tools:
        agent = ToolCallingAgent(
            tools, model, instructions=task.system_prompt, max_steps=MAX_STEPS, verbosity_level=LogLevel.OFF
        )
        return str(agent.run(task.user_message))
