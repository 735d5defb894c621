"""A tool-using agent built with pydantic-ai.

It knows nothing of how it is trained: it gets a task and two URLs.
Run by path, in an environment of its own: `harness train --agent agents/pydantic_ai/agent.py`.
"""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent, UsageLimits
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

ANY_NUMBER = 1_000_000
"""The gateway ends a rollout at its limits: the agent needs none of its own."""


async def run(task: Any, door: Any) -> str:
    """Work on one task; returns the agent's last words."""
    model = OpenAIChatModel(door.model, provider=OpenAIProvider(base_url=door.base_url, api_key=door.api_key))
    tools = MCPToolset(door.mcp_url, max_retries=ANY_NUMBER)
    agent = Agent(model, instructions=task.system_prompt, toolsets=[tools], retries=ANY_NUMBER)
    async with agent:
        result = await agent.run(task.user_message, usage_limits=UsageLimits(request_limit=None))
    return result.output
