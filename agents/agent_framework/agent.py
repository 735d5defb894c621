"""A tool-using agent built with Microsoft's Agent Framework, in chat mode.

It knows nothing of how it is trained: it gets a task and two URLs.
Run by path, in an environment of its own: `harness train --agent agents/agent_framework/agent.py`.
"""

from __future__ import annotations

from typing import Any

from agent_framework import Agent, MCPStreamableHTTPTool
from agent_framework.openai import OpenAIChatCompletionClient

ANY_NUMBER = 1_000_000
"""The gateway ends a rollout at its limits: the agent needs none of its own."""


async def run(task: Any, door: Any) -> str:
    """Work on one task; returns the agent's last words."""
    client = OpenAIChatCompletionClient(door.model, base_url=door.base_url, api_key=door.api_key)
    client.function_invocation_configuration.update(
        max_iterations=ANY_NUMBER, max_consecutive_errors_per_request=ANY_NUMBER
    )
    tools = MCPStreamableHTTPTool(task.server, door.mcp_url, approval_mode="never_require", load_prompts=False)
    async with tools, Agent(client, task.system_prompt, tools=[tools]) as agent:
        return (await agent.run(task.user_message)).text
