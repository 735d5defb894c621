"""Flags that several commands share, and the folders of runs that they name.

Knows nothing about what a command does. Used by the command line's own files only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from harness.config import Config
from harness.config_source import load_config
from harness.errors import ConfigError

CONFIG_FILE: Final = "config.toml"

WIDTH_IN_FILES: Final = 200
"""Columns of a table that goes into a file or a pipe; a terminal has its own."""

out = Console(width=None if sys.stdout.isatty() else WIDTH_IN_FILES)
err = Console(stderr=True)

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="TOML file, such as `examples/demo.toml`.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="Any key of the tree: `--set training.steps=40`. Repeatable."
    ),
]
ModelOption = Annotated[str | None, typer.Option("--model", help="`nano`, a folder, or a Hugging Face id.")]
ToolsOption = Annotated[str | None, typer.Option("--tools", help="Tool server: a folder of `mcp_servers/`.")]
AgentOption = Annotated[
    str | None, typer.Option("--agent", help="Python file with `async def run(task, door)`, or a command line.")
]
RewardOption = Annotated[
    str | None, typer.Option("--reward", help="`checks`, `ruler`, `independent`, `gate` or `weighted`.")
]
JudgeOption = Annotated[str | None, typer.Option("--judge", help="LiteLLM model string, such as `openai/gpt-5`.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, such as `runs/demo`.")]
VersionOption = Annotated[
    int | None, typer.Option("--version", min=0, help="Policy version; 0 is the base model, the newest by default.")
]
SplitOption = Annotated[str, typer.Option("--split", help="`train`, `validation` or `held_out`.")]


def config_flags(
    model: str | None = None,
    tools: str | None = None,
    agent: str | None = None,
    reward: str | None = None,
    judge: str | None = None,
) -> dict[str, str | None]:
    """The short flags as keys of the tree."""
    return {
        "model.name": model,
        "tools.server": tools,
        "agent.spec": agent,
        "reward.kind": reward,
        "judge.model": judge,
    }


def run_config(run_dir: Path) -> Path:
    """The resolved configuration of an existing run. Raises ConfigError when there is none."""
    file = run_dir / CONFIG_FILE
    if not file.is_file():
        there = f"the folder has no {CONFIG_FILE}" if run_dir.is_dir() else "no such folder"
        raise ConfigError(f"the run {run_dir}", there, "name the folder of a run, such as runs/demo")
    return file


def load_run(run_dir: Path, settings: Sequence[str] | None, flags: dict[str, str | None] | None = None) -> Config:
    """The configuration of an existing run, changed by flags and settings, with the run where it lies now.

    Raises ConfigError for a folder without one, and for a folder that was renamed: its records carry the run's name.
    """
    config = load_config(run_config(run_dir), settings or (), flags)
    place = run_dir.resolve()
    if place.name != config.run.name:
        found = f"its configuration says run.name = {config.run.name!r}, by which its records are found"
        raise ConfigError(f"the run {run_dir}", found, f"name the folder {config.run.name} again; it may lie anywhere")
    run = config.run.model_copy(update={"folder": str(place.parent)})
    return config.model_copy(update={"run": run})


def with_free_name(config: Config, option: str = "") -> Config:
    """The configuration itself, or with `-2`, `-3`, … after the run's name if a run of that name is there already.

    `option` is the command's flag to go on with a run; empty where it has none.
    """
    folder, name, number = Path(config.run.folder), config.run.name, 1
    while (folder / name).exists():
        number += 1
        name = f"{config.run.name}-{number}"
    if number > 1:
        old = folder / config.run.name
        go_on = f" (to go on with it: {option} {old})" if option else ""
        err.print(f"{old} is there already{go_on}; this one is {folder / name}", style="dim", soft_wrap=True)
    return config.model_copy(update={"run": config.run.model_copy(update={"name": name})})
