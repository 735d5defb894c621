"""A tool-using agent built with the OpenAI Agents SDK, in chat mode.

It knows nothing of how it is trained: it gets a task and two URLs, and the SDK does the rest.
Run by path: `harness train --agent agents/openai_agents/agent.py`.
"""

from __future__ import annotations

import ssl
from typing import Any

import httpx2
from agents.mcp import MCPServerStreamableHttp
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, set_tracing_disabled

set_tracing_disabled(True)  # the SDK uploads its own traces unless told not to

MAX_TURNS = 100
"""More than any rollout is given: the gateway ends it at its turn limit, and says so in the record."""

# Loading the certificates costs more than a whole rollout does: once a process.
_TLS = ssl.create_default_context()


def _mcp_http(headers: dict[str, str] | None = None, timeout: Any = None, auth: Any = None) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(headers=headers, timeout=timeout, auth=auth, verify=_TLS)


async def run(task: Any, door: Any) -> str:
    """Work on one task; returns the agent's last words."""
    http = DefaultAsyncHttpxClient(verify=_TLS)
    tools = MCPServerStreamableHttp(
        {"url": door.mcp_url, "timeout": 120, "httpx_client_factory": _mcp_http},
        cache_tools_list=True,
        client_session_timeout_seconds=120,
        name=task.server,
    )
    async with AsyncOpenAI(base_url=door.base_url, api_key=door.api_key, http_client=http) as client, tools:
        agent = Agent(
            name=task.server,
            instructions=task.system_prompt,
            model=OpenAIChatCompletionsModel(door.model, client),
            mcp_servers=[tools],
        )
        heard: Any = task.user_message
        while True:
            config = RunConfig(tracing_disabled=True)
            result = await Runner.run(agent, heard, max_turns=MAX_TURNS, run_config=config)
            said = await _tell_user(http, door, str(result.final_output))
            if said is None:
                return str(result.final_output)
            heard = [*result.to_input_list(), {"role": "user", "content": said}]


async def _tell_user(http: Any, door: Any, message: str) -> str | None:
    """What the task's user answers; None where there is no user, or it has left."""
    if not door.user_url:
        return None
    answer = (await http.post(door.user_url, json={"message": message}, timeout=120)).raise_for_status().json()
    return None if answer["done"] else answer["message"]
