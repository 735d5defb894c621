"""A tool-using agent built with the Claude Agent SDK: the program of Claude Code, with the task's tools for its own.

It knows nothing of how it is trained: it gets a task and two URLs.
Run by path, in an environment of its own: `harness train --agent agents/claude_agent_sdk/agent.py`.
"""

from __future__ import annotations

import tempfile
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

QUIET = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "ENABLE_TOOL_SEARCH": "false"}
"""It reports to its maker unless told not to, and may hide tools until the model searches for them."""


async def run(task: Any, door: Any) -> str:
    """Work on one task; returns the agent's last words."""
    door_env = {"ANTHROPIC_BASE_URL": door.base_url.removesuffix("/v1"), "ANTHROPIC_API_KEY": door.api_key}
    answer = ""
    with tempfile.TemporaryDirectory() as home:  # in place of the settings and the login of whoever runs this
        options = ClaudeAgentOptions(
            model=door.model,
            env={**QUIET, **door_env, "CLAUDE_CONFIG_DIR": home},
            mcp_servers={"tools": {"type": "http", "url": door.mcp_url}},
            allowed_tools=["mcp__tools"],
            tools=[],
            system_prompt=task.system_prompt,
            extra_args={"bare": None},  # or it writes folder, machine and date into the prompt
            strict_mcp_config=True,
            setting_sources=[],
        )
        async for message in query(prompt=task.user_message, options=options):
            if isinstance(message, ResultMessage):
                answer = message.result or ""
    return answer
