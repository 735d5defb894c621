"""Runs a Python agent file in a process of its own: task and door come from the environment, the answer goes to stdout.

Run as a script, by path, under any interpreter (an agent may need a virtual environment of its own), so it imports
nothing of ours. What the agent prints goes to standard error.
Started by agent.py: `agent_child.py <file>`, or with `--check`, which only imports the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
from types import SimpleNamespace


def main() -> None:
    """Load the file, await its `run(task, door)`, write the answer."""
    path = sys.argv[1]
    sys.path[0] = os.path.dirname(path)  # it was our own folder, whose modules would hide others of their name
    spec = importlib.util.spec_from_file_location("agent_file", path)
    if spec is None or spec.loader is None:
        sys.exit(f"agent file {path}: Python can't import it; give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["agent_file"] = module
    with contextlib.redirect_stdout(sys.stderr):
        spec.loader.exec_module(module)
        if not callable(getattr(module, "run", None)):
            sys.exit(f"agent file {path}: no function `run` in it; add `async def run(task, door) -> str`")
        if "--check" in sys.argv[2:]:
            return
        answer = asyncio.run(module.run(*_task_and_door()))
    sys.stdout.write("" if answer is None else str(answer))


def _task_and_door() -> tuple[SimpleNamespace, SimpleNamespace]:
    task = SimpleNamespace(**json.loads(os.environ["HARNESS_TASK"]))
    return task, SimpleNamespace(
        base_url=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        mcp_url=os.environ["MCP_URL"],
        model=os.environ["HARNESS_MODEL"],
        max_turns=int(os.environ["HARNESS_MAX_TURNS"]),
        traceparent=os.environ.get("TRACEPARENT", ""),
        otlp_endpoint=os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", ""),
        user_url=os.environ.get("HARNESS_USER_URL", ""),
    )


if __name__ == "__main__":
    main()
