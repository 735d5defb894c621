"""A tool-using agent built with Strands Agents, which streams every answer.

It knows nothing of how it is trained: it gets a task and two URLs.
Run by path, in an environment of its own: `harness train --agent agents/strands/agent.py`.
"""

from __future__ import annotations

from typing import Any

from strands import Agent
from strands.models.openai import OpenAIModel
from strands.tools.mcp import MCPClient


async def run(task: Any, door: Any) -> str:
    """Work on one task; returns the agent's last words."""
    address = {"base_url": door.base_url, "api_key": door.api_key}
    model = OpenAIModel(client_args=address, model_id=door.model)
    agent = Agent(
        model=model, tools=[MCPClient(url=door.mcp_url)], system_prompt=task.system_prompt, callback_handler=None
    )
    return str(await agent.invoke_async(task.user_message))
