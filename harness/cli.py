"""The command line: reads flags into a configuration and calls the module that does the work; each command is thin.

Knows nothing about how anything is done. `train` is found through the entry-point group `harness.commands`, because
the commands that learn live above this package. A `HarnessError` becomes one message of three parts and exit code 2.
Started by the `harness` console script and by `python -m harness`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from harness.config import Config
from harness.config_source import load_config, read_environment, to_toml
from harness.doctor import Finding, Level, examine
from harness.errors import ConfigError, HarnessError, StoreError

EXIT_ERROR: Final = 2
CONFIG_FILE: Final = "config.toml"
LEVEL_STYLE: Final = {Level.OK: "green", Level.WARN: "yellow", Level.FIX: "bold red"}

out = Console()
err = Console(stderr=True)


class CommandGroup(TyperGroup):
    """Turns errors that a person can act on into one clear message and exit code 2; `--debug` shows the traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except (HarnessError, StoreError, OSError, ExceptionGroup) as error:
            told = next(actionable(error), None)
            if told is None or ctx.params.get("debug"):
                raise
            show_error(told)
            raise typer.Exit(EXIT_ERROR) from error


def actionable(error: BaseException) -> Generator[HarnessError | StoreError]:
    """The errors inside `error` (a group may hold several) that have parts to show."""
    if isinstance(error, HarnessError | StoreError):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from actionable(inner)
    elif isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        where = f"writing {error.filename}" if error.filename else "writing a file of the run"
        yield HarnessError(where, "no space left on the disk", "make room, then harness train --resume runs/<name>")


def show_error(error: HarnessError | StoreError) -> None:
    """Print what was asked, what was found and what to do on standard error."""
    for name, style, text in (
        ("asked", "bold", error.asked),
        ("found", "bold red", error.found),
        ("fix", "bold green", error.fix),
    ):
        err.print(Text.assemble((f"{name:>5}  ", style), text), soft_wrap=True)


app = typer.Typer(
    cls=CommandGroup,
    name="harness",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

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
RewardOption = Annotated[str | None, typer.Option("--reward", help="`checks`, `ruler`, `gate` or `weighted`.")]
JudgeOption = Annotated[str | None, typer.Option("--judge", help="LiteLLM model string, such as `openai/gpt-5`.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")]


@app.callback()
def harness(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks instead of short messages.")] = False,
) -> None:
    """Train the agents you have, on tools that speak MCP.

    A *task* gives an agent something to do. Everything it does passes two gateways, which write *spans*; spans become a
    *trajectory*, token for token; the trajectories of one task are scored as a *group*; groups train a LoRA *adapter*;
    vLLM serves it as the next version of the *policy*.

    Start with `harness doctor`, then `harness train --config examples/demo.toml`.
    """
    del debug  # read by CommandGroup


@app.command()
def doctor(
    folder: Annotated[Path, typer.Option("--folder", help="Where runs will lie.")] = Path("runs"),
    port: Annotated[list[int] | None, typer.Option("--port", help="A port that has to be free. Repeatable.")] = None,
) -> None:
    """Look at this machine: what would stop a run, and how to mend it.

    Exit code 0 when nothing has to be fixed, 1 otherwise.
    """
    findings = examine(read_environment(), folder=folder, ports=port or [])
    out.print(findings_table(findings))
    to_fix = [finding for finding in findings if finding.level is Level.FIX]
    if to_fix:
        out.print(f"{len(to_fix)} to fix, from the top.")
        raise typer.Exit(1)
    out.print("Ready: harness train --config examples/demo.toml")


def findings_table(findings: list[Finding]) -> Table:
    """One row a finding: what, level, what was found, what to do."""
    table = Table("", "", "found", "what to do", show_edge=False)
    for finding in findings:
        level = Text(finding.level, style=LEVEL_STYLE[finding.level])
        table.add_row(finding.what, level, Text(finding.found), Text(finding.fix))
    return table


@app.command()
def train(
    config: ConfigOption = None,
    model: ModelOption = None,
    tools: ToolsOption = None,
    agent: AgentOption = None,
    reward: RewardOption = None,
    judge: JudgeOption = None,
    settings: SetOption = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Folder of a run to go on with.")] = None,
    dry_run: DryRunOption = False,
) -> None:
    r"""Train a LoRA adapter: rollouts → scored groups → steps → new policy versions, evaluated before and after.

    Leaves `runs/<name>/`: configuration, span store, adapters, checkpoints, metrics, `reward.png`, `report.md`.
    Killed at any moment, it goes on with `harness train --resume runs/<name>`.

        harness train --config examples/demo.toml
        harness train --model Qwen/Qwen3-4B-Instruct-2507 --tools retail --agent agents/openai_agents/agent.py \
            --reward ruler --judge openai/gpt-5
    """
    if resume is not None and config is not None:
        raise ConfigError(
            f"--resume {resume} with --config {config}", "two configurations", "leave --config out: the run has its own"
        )
    file = config if resume is None else run_config(resume)
    resolved = load_config(file, settings or (), config_flags(model, tools, agent, reward, judge))
    if resume is not None:
        resolved = at_folder(resolved, resume)
    elif not dry_run:
        resolved = with_free_name(resolved)
    if dry_run:
        out.print(
            to_toml(resolved, "harness train --config <this file>"), markup=False, highlight=False, soft_wrap=True
        )
        return
    raise typer.Exit(load_command("train")(resolved, resume=resume is not None))


def config_flags(
    model: str | None, tools: str | None, agent: str | None, reward: str | None, judge: str | None
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
        there = "the folder has no config.toml" if run_dir.is_dir() else "no such folder"
        raise ConfigError(f"--resume {run_dir}", there, "name the folder of a run, such as runs/demo")
    return file


def at_folder(config: Config, run_dir: Path) -> Config:
    """The configuration with its run's name and folder set to where the run lies now (it may have been moved)."""
    place = run_dir.resolve()
    run = config.run.model_copy(update={"name": place.name, "folder": str(place.parent)})
    return config.model_copy(update={"run": run})


def with_free_name(config: Config) -> Config:
    """The configuration itself, or with `-2`, `-3`, … after the run's name if a run of that name is there already."""
    folder, name, number = Path(config.run.folder), config.run.name, 1
    while (folder / name).exists():
        number += 1
        name = f"{config.run.name}-{number}"
    if number > 1:
        old = folder / config.run.name
        err.print(
            f"{old} is there already (to go on with it: --resume {old}); this one is {folder / name}", style="dim"
        )
    return config.model_copy(update={"run": config.run.model_copy(update={"name": name})})


def load_command(name: str) -> Callable[..., int]:
    """The command of the entry-point group `harness.commands` with this name.

    Raises ConfigError when the package that brings it is not installed.
    """
    for point in metadata.entry_points(group="harness.commands", name=name):
        return point.load()
    raise ConfigError(
        f"the command {name!r}", "no installed package brings it", "pip install -e '.[cpu]', or make setup"
    )


def main() -> None:
    """Run the command line."""
    app()
