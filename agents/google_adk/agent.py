"""A tool-using agent built with Google's ADK, through its LiteLLM model.

It knows nothing of how it is trained: it gets a task and two URLs.
Run by path, in an environment of its own: `harness train --agent agents/google_adk/agent.py`.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it asks the network for prices, as it is imported

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.adk.tools.mcp_tool import McpToolset, StreamableHTTPConnectionParams
from google.genai import types


async def run(task: Any, door: Any) -> str:
    """Work on one task; returns the agent's last words."""
    model = LiteLlm(f"openai/{door.model}", api_base=door.base_url, api_key=door.api_key)
    tools = McpToolset(connection_params=StreamableHTTPConnectionParams(url=door.mcp_url))
    # A function: ADK would fill in what stands in braces in a plain text.
    agent = LlmAgent(name="agent", model=model, instruction=lambda _: task.system_prompt, tools=[tools])
    runner = InMemoryRunner(agent)
    session = await runner.session_service.create_session(app_name=runner.app_name, user_id="user")
    request = types.UserContent(task.user_message)
    answer = ""
    async for event in runner.run_async(user_id="user", session_id=session.id, new_message=request):
        if event.is_final_response() and event.content:
            answer = "".join(part.text or "" for part in event.content.parts or ())
    await runner.close()
    return answer
