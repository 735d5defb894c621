"""A tool-using agent without any framework: the `openai` client, the `mcp` client, and a loop.

It knows nothing of how it is trained: it gets a task and two URLs.
Run by path: `harness train --agent agents/plain/agent.py`.
"""

from __future__ import annotations

import json
import ssl
from typing import Any

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

# Loading the certificates costs more than a whole rollout does: once a process.
_TLS = ssl.create_default_context()


async def run(task: Any, door: Any) -> str:
    """Work on one task; returns the model's last words."""
    messages: list[Any] = [
        {"role": "system", "content": task.system_prompt},
        {"role": "user", "content": task.user_message},
    ]
    http = DefaultAsyncHttpxClient(verify=_TLS)
    async with (
        AsyncOpenAI(base_url=door.base_url, api_key=door.api_key, http_client=http) as model,
        httpx2.AsyncClient(timeout=120, verify=_TLS) as mcp_http,
        Client(streamable_http_client(door.mcp_url, http_client=mcp_http)) as server,
    ):
        tools: list[Any] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema},
            }
            for tool in (await server.list_tools()).tools
        ]
        while True:
            completion = await model.chat.completions.create(model=door.model, messages=messages, tools=tools)
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                said = await _tell_user(mcp_http, door, message.content or "")
                if said is None:
                    return message.content or ""
                messages.append({"role": "user", "content": said})
            for call in message.tool_calls or ():
                content = await _call(server, call)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


async def _tell_user(http: httpx2.AsyncClient, door: Any, message: str) -> str | None:
    """What the task's user answers; None where there is no user, or it has left."""
    if not door.user_url:
        return None
    answer = (await http.post(door.user_url, json={"message": message})).raise_for_status().json()
    return None if answer["done"] else answer["message"]


async def _call(server: Client, call: Any) -> str:
    """One tool call; what goes wrong in it is text that the model reads."""
    try:
        result = await server.call_tool(call.function.name, json.loads(call.function.arguments or "{}"))
    except (ValueError, MCPError) as error:
        return f"Error: {error}"
    return "\n".join(part.text for part in result.content if part.type == "text")
