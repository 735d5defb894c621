"""The OpenAI Agents SDK as it comes: the Responses dialect, streamed.

It knows nothing of how it is trained: it gets a task and two URLs.
Run by path: `harness train --agent agents/openai_responses/agent.py`.
"""

from __future__ import annotations

from typing import Any

from agents.mcp import MCPServerStreamableHttp
from openai import AsyncOpenAI

from agents import Agent, OpenAIResponsesModel, RunConfig, Runner

MAX_TURNS = 100
"""More than any rollout is given: the gateway ends it at its turn limit."""


async def run(task: Any, door: Any) -> str:
    """Work on one task; returns the agent's last words."""
    async with (
        AsyncOpenAI(base_url=door.base_url, api_key=door.api_key) as client,
        MCPServerStreamableHttp({"url": door.mcp_url}, cache_tools_list=True, name=task.server) as tools,
    ):
        model = OpenAIResponsesModel(door.model, client)
        agent = Agent(name=task.server, instructions=task.system_prompt, model=model, mcp_servers=[tools])
        config = RunConfig(tracing_disabled=True)  # the SDK uploads its own traces unless told not to
        result = Runner.run_streamed(agent, task.user_message, max_turns=MAX_TURNS, run_config=config)
        async for _ in result.stream_events():
            pass  # a user interface would show them
    return str(result.final_output)
