"""The command line: the program `harness`, its commands, and how an error reaches a person.

Knows nothing about how anything is done: commands read flags and call modules. A `HarnessError` becomes one message of
three parts and exit code 2; `--debug` shows the traceback instead.
Started by the `harness` console script and by `python -m harness`.
"""

from __future__ import annotations

import errno
from collections.abc import Generator
from typing import Annotated, Any, Final, cast

import typer
from rich.text import Text
from typer.core import TyperGroup

from harness import cli_init, cli_record, cli_scores, cli_stack, cli_tasks, cli_traces, cli_wrap
from harness.cli_bridge import mcp_bridge
from harness.cli_options import err
from harness.errors import HarnessError, StoreError

EXIT_ERROR: Final = 2


class CommandGroup(TyperGroup):
    """Turns errors that a person can act on into one clear message and exit code 2."""

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


app.command()(cli_record.doctor)
app.command()(cli_init.init)
app.command()(cli_stack.train)
app.command(name="eval")(cli_stack.evaluate)
app.command()(cli_stack.rollout)
app.command()(cli_stack.serve)
app.command()(cli_wrap.wrap)
app.command(name="mcp-bridge")(mcp_bridge)
app.command()(cli_scores.score)
app.add_typer(cli_scores.judge_app, name="judge")
app.command()(cli_record.show)
app.add_typer(cli_traces.traces_app, name="traces")
app.add_typer(cli_tasks.tasks_app, name="tasks")
app.command()(cli_traces.replay)
app.command()(cli_record.report)
app.command()(cli_record.keys)


def main() -> None:
    """Run the command line."""
    app()
