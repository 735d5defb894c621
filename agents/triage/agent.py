"""Two agents of the OpenAI Agents SDK: one that reads the request and hands over, one that has the tools.

Each asks for a model name of its own, so that either can be trained alone:
`harness train --agent agents/triage/agent.py --set 'training.models=["specialist"]'`.
"""

from __future__ import annotations

from typing import Any

from agents.mcp import MCPServerStreamableHttp
from openai import AsyncOpenAI

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner

MAX_TURNS = 100
"""More than any rollout is given: the gateway ends it at its turn limit."""
TRIAGE = "You are the front desk of a shop. Hand every request about orders, products or accounts to the specialist."


async def run(task: Any, door: Any) -> str:
    """Work on one task; returns the last words of whoever had it last."""
    async with (
        AsyncOpenAI(base_url=door.base_url, api_key=door.api_key) as client,
        MCPServerStreamableHttp({"url": door.mcp_url}, cache_tools_list=True, name=task.server) as tools,
    ):
        specialist = Agent(
            name="specialist",
            handoff_description="Looks up and changes orders, products and accounts.",
            instructions=task.system_prompt,
            model=OpenAIChatCompletionsModel("specialist", client),
            mcp_servers=[tools],
        )
        triage = Agent(
            name="triage",
            instructions=TRIAGE,
            model=OpenAIChatCompletionsModel("triage", client),
            handoffs=[specialist],
        )
        config = RunConfig(tracing_disabled=True)  # the SDK uploads its own traces unless told not to
        result = await Runner.run(triage, task.user_message, max_turns=MAX_TURNS, run_config=config)
    return str(result.final_output)
