"""A tool-using agent with LiteLLM as its model client, the `mcp` client, and a loop.

It knows nothing of how it is trained: it gets a task and two URLs.
Run by path: `harness train --agent agents/litellm/agent.py`.
"""

from __future__ import annotations

import json
import os
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it asks the network for prices, as it is imported

from litellm import acompletion
from mcp import Client, MCPError


async def run(task: Any, door: Any) -> str:
    """Work on one task; returns the model's last words."""
    model = {"model": f"openai/{door.model}", "api_base": door.base_url, "api_key": door.api_key}
    messages: list[Any] = [
        {"role": "system", "content": task.system_prompt},
        {"role": "user", "content": task.user_message},
    ]
    async with Client(door.mcp_url) as server:
        tools = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema},
            }
            for tool in (await server.list_tools()).tools
        ]
        while True:
            answer: Any = await acompletion(**model, messages=messages, tools=tools)
            message = answer.choices[0].message
            if not message.tool_calls:
                return message.content or ""
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                content = await _call(server, call.function)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


async def _call(server: Client, function: Any) -> str:
    """One tool call; what goes wrong in it is text that the model reads."""
    try:
        result = await server.call_tool(function.name, json.loads(function.arguments or "{}"))
    except (ValueError, MCPError) as error:
        return f"Error: {error}"
    return "\n".join(part.text for part in result.content if part.type == "text")
