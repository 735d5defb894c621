"""A tool-using agent built with LlamaIndex: its `FunctionAgent`, which streams every answer.

It knows nothing of how it is trained: it gets a task and two URLs.
Run by path, in an environment of its own: `harness train --agent agents/llama_index/agent.py`.
"""

from __future__ import annotations

from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike
from llama_index.tools.mcp import BasicMCPClient, McpToolSpec

MAX_ITERATIONS = 100
"""More than any rollout is given: the gateway ends it at its turn limit."""


async def run(task: Any, door: Any) -> str:
    """Work on one task; returns the agent's last words."""
    address = {"model": door.model, "api_base": door.base_url, "api_key": door.api_key}
    llm = OpenAILike(**address, is_chat_model=True, is_function_calling_model=True, context_window=32_768)
    tools = await McpToolSpec(BasicMCPClient(door.mcp_url)).to_tool_list_async()
    agent = FunctionAgent(tools=tools, llm=llm, system_prompt=task.system_prompt, timeout=None)
    return str(await agent.run(task.user_message, max_iterations=MAX_ITERATIONS))
