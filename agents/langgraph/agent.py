"""A tool-using agent built with LangGraph, through LangChain's `create_agent`; tools come by langchain-mcp-adapters.

It knows nothing of how it is trained: it gets a task and two URLs.
Run by path, in an environment of its own: `harness train --agent agents/langgraph/agent.py`.
"""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from langchain_openai import ChatOpenAI


async def run(task: Any, door: Any) -> str:
    """Work on one task; returns the agent's last words."""
    model = ChatOpenAI(model=door.model, base_url=door.base_url, api_key=door.api_key)
    servers = MultiServerMCPClient({"tools": {"transport": "streamable_http", "url": door.mcp_url}})
    async with servers.session("tools") as session:
        agent = create_agent(model, await load_mcp_tools(session), system_prompt=task.system_prompt)
        state = await agent.ainvoke({"messages": [{"role": "user", "content": task.user_message}]})
    return state["messages"][-1].text
