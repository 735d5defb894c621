"""The commands about tasks that no server brings: tasks generate. Reads its flags and calls who does the work.

Knows nothing about MCP, prompts or files. Registered by cli.py.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from harness.cli_options import out
from harness.errors import ConfigError
from harness.live import show_progress
from harness.scenarios.generate import Generation, Wanted, generate_tasks
from harness.scenarios.listing import read_offer
from harness.scenarios.taskfile import write_tasks
from harness.scenarios.variety import SPLITS
from harness.scoring.judge import Judge
from harness.scoring.litellm_call import JudgeSpec
from harness.task import Task

tasks_app = typer.Typer(no_args_is_help=True, help="Tasks for servers that bring none.")


@tasks_app.callback()
def tasks() -> None:
    """Tasks for servers that bring none."""


@tasks_app.command()
def generate(
    mcp: Annotated[str, typer.Option("--mcp", help="Address of an MCP server, or a command for one on stdio.")],
    llm: Annotated[str, typer.Option("--llm", help="LiteLLM model string, such as `openai/gpt-5`.")],
    llm_base: Annotated[
        str | None, typer.Option("--llm-base", help="Address of an OpenAI-compatible endpoint.")
    ] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="How many scenarios.")] = 64,
    into: Annotated[Path, typer.Option("--into", help="File that the tasks are written to.")] = Path("tasks.jsonl"),
    guidance: Annotated[str, typer.Option("--guidance", help="What the requests should be like.")] = "",
    name: Annotated[str | None, typer.Option("--name", help="Name of the server; its own by default.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seeds the mix of rounds and the splits.")] = 0,
    review: Annotated[bool, typer.Option(help="Have the model check each request against the tools.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Write varied, checked scenarios for any MCP server, ready for `harness train` with RULER as the reward.

    Reads the server's tools; calls none of them.

        harness tasks generate --mcp "uvx mcp-server-time" --llm openai/gpt-5 --count 100 --into time.jsonl
    """
    if into.exists() and not force:
        raise ConfigError(f"write tasks to {into}", "it is there already", "name another file, or add --force")
    spec = JudgeSpec(model=llm, api_base=llm_base, max_answer_tokens=8192)
    with show_progress(f"harness tasks generate · {mcp}") as display:
        display.update(phase="read tools")

        def tell(made: Generation) -> None:
            display.update(done=len(made.kept.scenarios), note=f"{made.rejected.total()} left out")

        async def work() -> tuple[str, list[Task], Generation]:
            offer = await read_offer(mcp)
            server = re.sub(r"[^A-Za-z0-9._-]+", "-", name or offer.name).strip("-._") or "server"
            display.update(phase="write scenarios", total=count, unit="scenarios")
            made, how = await generate_tasks(offer, model, Wanted(count, seed, guidance, review), server, tell)
            return server, made, how

        model = Judge(spec)
        server, made, how = asyncio.run(work())
    write_tasks(into, made)
    out.print(tasks_table(made))
    for reason, times in how.rejected.most_common():
        out.print(f"left out: {times} × {reason}", markup=False)
    usage = model.usage
    out.print(f"{len(made)} of {count} tasks in {into}; {usage.calls} calls, {usage.cost_usd:.2f} USD by list prices")
    out.print(f"train on them:\n  {train_command(mcp, server, into)}", markup=False, soft_wrap=True)


def tasks_table(tasks: Sequence[Task]) -> Table:
    """One row a difficulty, one column a split."""
    table = Table("difficulty", *SPLITS, "all", show_edge=False)
    counts = Counter((task.difficulty, task.split) for task in tasks)
    for level in sorted({task.difficulty for task in tasks}, key=str):
        row = [counts[level, split] for split in SPLITS]
        table.add_row(str(level), *map(str, row), str(sum(row)))
    return table


def train_command(mcp: str, server: str, file: Path) -> str:
    """The command that trains on the tasks, as a shell takes it."""
    source = f"tools.url={mcp}" if mcp.startswith(("http://", "https://")) else f"tools.command={mcp}"
    settings = (f"tools.server={server}", source, f"tasks.file={file}")
    flags = " ".join(f"--set {shlex.quote(setting)}" for setting in settings)
    return f"harness train {flags} --reward ruler --judge openai/gpt-5 --model Qwen/Qwen3-4B-Instruct-2507"
