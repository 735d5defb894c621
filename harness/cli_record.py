"""The commands that start nothing: doctor, show, report. Each reads its flags and calls who does the work.

Knows nothing about stores, tables or machines. Registered by cli.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from harness.cli_options import RunArgument, out
from harness.config_source import read_environment, reference
from harness.doctor import Finding, Level, examine
from harness.report import terminal_tables, write_report
from harness.results_table import write_results
from harness.show import find_rollout, open_store, rollout_table, trajectory_view
from traces.store import Store

LEVEL_STYLE: Final = {Level.OK: "green", Level.WARN: "yellow", Level.FIX: "bold red"}


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


def findings_table(findings: Sequence[Finding]) -> Table:
    """One row a finding: what, level, what was found, what to do."""
    table = Table("", "", "found", "what to do", show_edge=False)
    for finding in findings:
        level = Text(finding.level, style=LEVEL_STYLE[finding.level])
        table.add_row(finding.what, level, Text(finding.found), Text(finding.fix))
    return table


def keys(
    section: Annotated[str, typer.Argument(metavar="[SECTION]", help="Only keys that begin so: `training`.")] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="As a markdown table.")] = False,
) -> None:
    """List every key of the configuration with its default and what it means."""
    rows = [row for row in reference() if row[0].startswith(section)]
    if markdown:
        out.print(reference_markdown(rows), markup=False, highlight=False, soft_wrap=True)
        return
    table = Table("key", "default", "meaning", show_edge=False)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    out.print(table)


def reference_markdown(rows: Sequence[tuple[str, str, str]]) -> str:
    """The keys as a markdown table, as it stands in docs/cli.md."""
    lines = [f"| `{key}` | {f'`{default}`' if default else '–'} | {meaning} |" for key, default, meaning in rows]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *lines])


def show(
    run: RunArgument,
    rollout: Annotated[
        str | None, typer.Argument(metavar="[ROLLOUT]", help="Id or its beginning; `last`, `best` or `worst`.")
    ] = None,
    ending: Annotated[str | None, typer.Option("--ending", help="Only rollouts that ended so.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many of the newest rollouts.")] = 30,
    tokens: Annotated[bool, typer.Option("--tokens", help="Token ids with log-probabilities, too.")] = False,
    otlp: Annotated[
        str | None, typer.Option("--otlp", metavar="URL", help="Send the spans to this OTLP/HTTP backend instead.")
    ] = None,
) -> None:
    """List the rollouts of a run, or print one turn by turn: messages, tool calls, tokens, forks, scores.

    Works while the run goes on. With `--otlp` the spans of that rollout, or of all that ended, go to any viewer that
    takes OTLP, as often as you like.
    """
    with open_store(run) as store:
        if otlp is not None:
            sent = _send(store, otlp, rollout)
            out.print(f"{sent} spans sent to {otlp}")
            return
        if rollout is None:
            out.print(rollout_table(store, ending=ending, limit=limit))
            return
        out.print(trajectory_view(store.trajectory(find_rollout(store, rollout)), tokens=tokens))


def _send(store: Store, endpoint: str, rollout: str | None) -> int:
    from traces.tracer import export_otlp  # the OTel SDK: half a second that no other command needs

    ended = [record.rollout_id for record in store.rollouts(ended=True)]
    return export_otlp(store, endpoint, ended if rollout is None else [find_rollout(store, rollout)])


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders of runs.")],
    into: Annotated[
        Path | None,
        typer.Option("--into", help="Write one table over all the runs between the markers of this markdown file."),
    ] = None,
) -> None:
    """Write `report.md` and `reward.png` of each run again from its folder, and print the table.

    With `--into README.md` the runs (seeds of one experiment) are pooled into one table there.
    """
    for run in runs:
        path = write_report(run)
        if into is None:
            out.print(*terminal_tables(run), sep="\n")
        out.print(f"report {path}")
    if into is not None:
        write_results(into, runs)
        out.print(f"table over {len(runs)} runs written into {into}")
