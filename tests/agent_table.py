"""Every shipped agent on the same retail tasks, through both gateways: the table of docs/agents.md, measured.

`python -m tests.agent_table` runs the nano policy on vLLM (`make test-agents`); `--scripted` puts a scripted engine in
its place, which solves cancellations, so that every SDK is seen calling tools. Names of agents choose some of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.agent import Agent, load_agent
from harness.config import Config
from harness.config_source import load_config
from harness.errors import HarnessError
from harness.measure import fetch_tasks
from harness.rollout import World, run_rollout
from harness.stack import Stack
from harness.standalone import Opened, open_run
from harness.task import Task
from harness.wrap import Observation, observe
from tests.conftest import REPO
from tests.rollout_world import ORDER_ID, tool_call
from tests.scripted_engine import ScriptedEngine, serve_engine

AGENTS = REPO / "agents"
PACKAGES = {
    "agent_framework": "agent-framework-core",
    "anthropic_client": "anthropic",
    "claude_agent_sdk": "claude-agent-sdk",
    "google_adk": "google-adk",
    "llama_index": "llama-index-core",
    "openai_agents": "openai-agents",
    "openai_responses": "openai-agents",
    "plain": "openai",
    "pydantic_ai": "pydantic-ai-slim",
    "strands": "strands-agents",
    "triage": "openai-agents",
    "vercel_ai": "ai",
}
"""Distribution of the SDK where it isn't called like the folder."""
COLUMNS = (
    "agent", "version", "dialect", "streamed", "turns", "tool calls", "tokens captured", "drift", "forks", "solved",
    "lines that differ", "minutes", "what went wrong",
)  # fmt: skip
TIME_LIMIT_S = 240.0
MARKS = ("<!-- agents:start -->", "<!-- agents:end -->")


def sdk_expert(prompt: str) -> str:
    """Hands over where it can, looks at the order, cancels it and says so, in whatever way an SDK writes a history."""
    head, _, history = prompt.partition("<|im_start|>user\n")
    user = history.split("<|im_end|>")[0]
    order_id = ORDER_ID.findall(user)[0]
    reason = "ordered by mistake" if "mistake" in user else "no longer needed"
    told = f"Order {order_id} is cancelled."
    steps: list[tuple[str, dict[str, Any]]] = [
        ("transfer_to_specialist", {}),
        ("get_order_details", {"order_id": order_id}),
        ("cancel_pending_order", {"order_id": order_id, "reason": reason}),
        ("final_answer", {"answer": told}),
    ]
    offered = head.partition("<|im_end|>")[0].split("\n")[1].split(",")
    for step, arguments in steps:
        name = next((tool for tool in offered if tool.endswith(step)), None)  # some SDKs write the server's name before
        if name and not re.search(rf"""name['"]:\s*['"]{name}""", history):
            return tool_call(name, **arguments)
    return f"{told}<|im_end|>"


@dataclass(frozen=True)
class Row:
    """One line of the table, as text."""

    cells: tuple[str, ...]
    """Parallel to COLUMNS."""
    works: bool
    """Whether every rollout answered with tokens to train."""


def shipped_agents() -> list[str]:
    """Folders of `agents/`, by name."""
    return sorted(path.name for path in AGENTS.iterdir() if any(path.glob("agent.*")))


def agent_spec(name: str) -> str:
    """How a person gives this agent to the harness."""
    (file,) = (AGENTS / name).glob("agent.*")
    return str(file)


def differing_lines(name: str) -> int:
    """Lines that name the doors: all that differs from the same agent on a hosted model and another MCP server."""
    file = Path(agent_spec(name))
    door = re.compile(r"door\.(?!user_url)|env\.(?!HARNESS_TASK)")
    return sum(bool(door.search(line)) for line in file.read_text().splitlines())


def sdk_version(name: str, agent: Agent) -> str:
    """Version of the SDK that the agent runs on."""
    package = PACKAGES.get(name, name)
    if agent_spec(name).endswith(".ts"):
        modules = Path(agent.command[-1]).parents[1] / "node_modules"
        return f"{package} {json.loads((modules / package / 'package.json').read_text())['version']}"
    argv = (agent.command or (sys.executable,))[:1]
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return f"{package} " + subprocess.check_output((*argv, "-c", code), text=True).strip()


async def make_row(name: str, tasks: Sequence[Task], run: Opened, world: World) -> Row:
    """Run one agent on every task, one after another."""
    lines = str(differing_lines(name))
    start_s = time.monotonic()
    try:
        agent = await asyncio.to_thread(load_agent, agent_spec(name))
    except HarnessError as error:
        return _row(name, "–", [], lines, start_s, error.found)
    started_s = time.monotonic()
    seen: list[Observation] = []
    for task in tasks:
        trajectory = await run_rollout(task, agent, run.policy, world)
        seen.append(observe(trajectory, world.store.spans(trajectory.rollout_id)))
    wrong = [f"{one.trajectory.ending.value}: {one.trajectory.ending_detail}" for one in seen if not _answered(one)]
    return _row(name, sdk_version(name, agent), seen, lines, started_s, *wrong)


def _answered(one: Observation) -> bool:
    return one.trajectory.ending.value == "answered"


def _row(name: str, version: str, seen: list[Observation], lines: str, start_s: float, *wrong: str) -> Row:
    turns = [turn for one in seen for turn in one.trajectory.turns]
    captured = sum(len(turn.completion_ids_T) for turn in turns if turn.has_tokens)
    missing = sum(not turn.has_tokens for turn in turns)
    forks = Counter(fork.cause.value for one in seen for fork in one.cut.forks)
    scores = [score.value for one in seen if (score := one.trajectory.score())]
    cells = (
        name,
        version,
        ", ".join(dict.fromkeys(dialect for one in seen for dialect in one.dialects)) or "–",
        "yes" if any(one.streamed for one in seen) else "no",
        str(len(turns)),
        str(sum(len(one.trajectory.tool_calls) for one in seen)),
        f"{captured}" + (f", {missing} turns without" if missing else ""),
        str(sum(one.cut.drift_tokens for one in seen)),
        ", ".join(f"{cause} {count}" for cause, count in forks.items()) or "0",
        f"{sum(score == 1 for score in scores)} of {len(seen)}",
        lines,
        f"{(time.monotonic() - start_s) / 60:.1f}",
        re.sub(r"[|\s]+", " ", "; ".join(dict.fromkeys(wrong)))[:220] or "–",
    )
    return Row(cells, not wrong and captured > 0 and not missing)


def markdown(rows: Sequence[Row], count: int, engine: str) -> str:
    """The table with what it rests on."""
    lines = [f"{count} retail tasks each, {engine}.", "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    return "\n".join(lines + [f"| {' | '.join(row.cells)} |" for row in rows])


def write_table(file: Path, table: str) -> None:
    """Put the table between its marks in a markdown file."""
    head, start, rest = file.read_text().partition(MARKS[0])
    _, end, tail = rest.partition(MARKS[1])
    if not start or not end:
        sys.exit(f"{file} has no pair of lines {MARKS[0]} and {MARKS[1]}: put both where the table shall stand")
    file.write_text(f"{head}{start}\n{table}\n{end}{tail}")


@asynccontextmanager
async def _engine(scripted: bool) -> AsyncGenerator[list[str]]:
    """Settings of the configuration that bring the engine."""
    if not scripted:
        yield ["engine.dtype=float32"]
        return
    async with serve_engine(ScriptedEngine(sdk_expert)) as url:
        yield [f"engine.url={url}", 'tasks.kinds=["cancel"]']


async def make_table(names: Sequence[str], count: int, *, scripted: bool, folder: Path) -> list[Row]:
    """One stack, every agent in it, row after row on standard error as it comes."""
    rows: list[Row] = []
    async with _engine(scripted) as settings:
        common = [f"run.folder={folder}", "run.name=agents", "rollout.turns=12", f"agent.time_limit_s={TIME_LIMIT_S}"]
        config = load_config(None, [*common, *settings])
        async with open_run(config, folder / "agents") as run:
            world = run.stack.world(config, run.store, 0.0 if scripted else 1.0)
            tasks = await _tasks(run.stack, config, count)
            for name in names:
                rows.append(await make_row(name, tasks, run, world))
                sys.stderr.write(f"{' | '.join(rows[-1].cells)}\n")
    return rows


async def _tasks(stack: Stack, config: Config, count: int) -> list[Task]:
    drawn = await fetch_tasks(stack, config, "train", 0, 16 * count)
    return [task for task in drawn if not task.is_refusal][:count]


def main() -> None:
    """Make the table, print it, and write it into a file where asked; exit code 1 where an agent did not work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="AGENT", help="folders of agents/; all by default")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--scripted", action="store_true")
    parser.add_argument("--into", type=Path, help="markdown file with the marks of the table")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="agents-"))
    try:
        names = asked.names or shipped_agents()
        rows = asyncio.run(make_table(names, asked.tasks, scripted=asked.scripted, folder=folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    engine = "a scripted engine" if asked.scripted else "the nano policy on vLLM at temperature 1, 12 turns at most"
    table = markdown(rows, asked.tasks, engine)
    sys.stdout.write(f"{table}\n")
    if asked.into is not None:
        write_table(asked.into, table)
    sys.exit(0 if all(row.works for row in rows) else 1)


if __name__ == "__main__":
    main()
