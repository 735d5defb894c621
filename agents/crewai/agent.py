"""A tool-using agent built with CrewAI: one agent without a crew around it.

It knows nothing of how it is trained: it gets a task and two URLs.
Run by path, in an environment of its own: `harness train --agent agents/crewai/agent.py`.
"""

from __future__ import annotations

import os
from typing import Any

os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"  # it reports to its maker unless told not to, as it is imported

from crewai import LLM, Agent
from crewai.mcp import MCPServerHTTP

MAX_ITERATIONS = 100
"""More than any rollout is given: the gateway ends it at its turn limit."""


async def run(task: Any, door: Any) -> str:
    """Work on one task; returns the agent's last words."""
    agent = Agent(
        role="support agent",
        goal="Do what the user asks, within the rules.",
        backstory=task.system_prompt,
        llm=LLM(model=door.model, custom_openai=True, base_url=door.base_url, api_key=door.api_key),
        max_iter=MAX_ITERATIONS,
    )
    agent.tools = agent.get_mcp_tools([MCPServerHTTP(url=door.mcp_url)])
    for tool in agent.tools:
        tool.name = tool.original_tool_name  # it writes the server's address, rollout key and all, before every name
    result = await agent.kickoff_async(task.user_message)
    return result.raw
