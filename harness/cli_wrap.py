"""The command `harness wrap`: runs somebody's agent once and tells what the two gateways saw of it.

Knows nothing about what is worth telling (wrap.py) or how a rollout runs. Registered by cli.py.
"""

from __future__ import annotations

import asyncio
import shlex
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from harness.agent import configured_agent
from harness.cli_options import (
    ConfigOption,
    ModelOption,
    SetOption,
    SplitOption,
    ToolsOption,
    config_flags,
    err,
    out,
)
from harness.cli_stack import run_folder, run_or_new
from harness.standalone import Selection, observe_one_rollout
from harness.wrap import advice, findings


def wrap(
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help="Python file with `async def run(task, door)`, or a command line.")
    ],
    task: Annotated[int, typer.Option("--task", min=0, help="Which task of the split.")] = 0,
    split: SplitOption = "train",
    config: ConfigOption = None,
    model: ModelOption = None,
    tools: ToolsOption = None,
    settings: SetOption = None,
) -> None:
    """Run an agent of yours once on one task, and say what arrived at the gateways and what to change.

    Exit code 0 when its tokens could be trained, 1 when nothing could.

        harness wrap my_agent.py
        harness wrap 'node my_agent.mjs {user_message}'
    """
    resolved = run_or_new(None, "wrap", config, settings, config_flags(model, tools, agent))
    configured_agent(resolved)
    folder = run_folder(resolved)
    err.print("starting engine, tool server and gateways, then one rollout …", style="dim")
    about, seen = asyncio.run(observe_one_rollout(resolved, folder, Selection(split, task)))
    table = Table(show_header=False, show_edge=False, box=None)
    for heading, words in findings(seen):
        table.add_row(Text(heading, style="bold"), Text(words))
    out.print(table)
    changes = advice(seen, about.user_message, agent)
    for number, change in enumerate(changes, 1):
        out.print(Text(f"\n{number}. {change}"), soft_wrap=True)
    if changes and seen.output:
        out.print(Text(f"\nthe end of what it printed:\n{seen.output[-1000:]}", style="dim"))
    out.print(f"\nturn by turn: harness show {folder} last", markup=False, highlight=False, soft_wrap=True)
    if not seen.cut.rows:
        raise typer.Exit(1)
    out.print(
        f"train it:     harness train --agent {shlex.quote(agent)}", markup=False, highlight=False, soft_wrap=True
    )
