"""A tool-using agent with the `anthropic` client, which speaks the Messages dialect, the `mcp` client, and a loop.

It knows nothing of how it is trained: it gets a task and two URLs.
Run by path: `harness train --agent agents/anthropic_client/agent.py`.
"""

from __future__ import annotations

from typing import Any

from anthropic import AsyncAnthropic
from mcp import Client, MCPError

MAX_TOKENS = 4096
"""The dialect wants one; the rollout's own limit is in force."""


async def run(task: Any, door: Any) -> str:
    """Work on one task; returns the model's last words."""
    messages: list[Any] = [{"role": "user", "content": task.user_message}]
    url = door.base_url.removesuffix("/v1")  # this client adds it
    async with AsyncAnthropic(base_url=url, api_key=door.api_key) as client, Client(door.mcp_url) as server:
        tools: list[Any] = [
            {"name": tool.name, "description": tool.description or "", "input_schema": tool.input_schema}
            for tool in (await server.list_tools()).tools
        ]
        while True:
            answer = await client.messages.create(
                model="claude", max_tokens=MAX_TOKENS, system=task.system_prompt, messages=messages, tools=tools
            )
            calls = [block for block in answer.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in answer.content if block.type == "text")
            messages.append({"role": "assistant", "content": answer.content})
            messages.append({"role": "user", "content": [await _call(server, call) for call in calls]})


async def _call(server: Client, call: Any) -> dict[str, Any]:
    """One tool call; what goes wrong in it is text that the model reads."""
    try:
        result = await server.call_tool(call.name, call.input)
        content = "\n".join(part.text for part in result.content if part.type == "text")
    except MCPError as error:
        content = f"Error: {error}"
    return {"type": "tool_result", "tool_use_id": call.id, "content": content}
