"""The commands about traces: import, export, cassettes, compact, replay. Each reads flags and calls who does the work.

Knows nothing about formats, spans or stores. Registered by cli.py.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from harness.agent import configured_agent
from harness.cli_options import (
    CONFIG_FILE,
    AgentOption,
    RunArgument,
    SetOption,
    config_flags,
    load_run,
    out,
)
from harness.config import Config, RunSection
from harness.config_source import write_config
from harness.errors import ConfigError
from harness.replay import replay_rollout
from harness.show import STORE_FILE, find_rollout, open_store
from traces.cassette import is_write_by_name, record_cassettes, save_cassettes
from traces.compaction import compact
from traces.importers import READERS
from traces.importers.gather import append_imported, gather
from traces.importers.rows import ExportError
from traces.otlp import OtlpError
from traces.store import Store

traces_app = typer.Typer(help="Import, export, compact stored trajectories, or turn them into tasks.")

RolloutOption = Annotated[
    list[str] | None, typer.Option("--rollout", help="Id of a rollout or its beginning; all that ended by default.")
]


@traces_app.command(name="import")
def import_traces(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Export files of the source.")],
    source: Annotated[str, typer.Option("--source", help=f"Who wrote them: {', '.join(READERS)}.")] = "otlp",
    into: Annotated[Path, typer.Option("--into", help="Folder of the run that they are added to.")] = Path(
        "runs/imported"
    ),
) -> None:
    """Read the traces of agents that never met this program into a run, one rollout a trace.

    What the source can't give is told, and stays on the rollout. Importing a file again adds nothing.

        harness traces import traces.jsonl --source langfuse --into runs/support
        harness score runs/support --reward ruler --judge openai/gpt-5
    """
    reader = READERS.get(source)
    if reader is None:
        raise ConfigError(f"--source {source}", "no such source", f"name one of {', '.join(READERS)}")
    into.mkdir(parents=True, exist_ok=True)
    if not (into / CONFIG_FILE).exists():
        named = Config(run=RunSection(name=into.resolve().name, folder=str(into.resolve().parent)))
        write_config(named, into / CONFIG_FILE, f"harness score {into} --reward ruler --judge openai/gpt-5")
    gaps: dict[str, int] = {}
    rollouts = added = 0
    with Store(into / STORE_FILE) as store:
        for file in files:
            try:
                found = gather(reader(file), into.resolve().name)
            except (ExportError, OtlpError, OSError) as error:
                fix = f"check that it is an export of {source}; docs/traces.md says what each source exports"
                raise ConfigError(f"import {file} as {source}", str(error), fix) from error
            added += append_imported(store, found)
            rollouts += len(found)
            for gap in (gap for one in found for gap in one.trajectory().evidence_gaps):
                gaps[gap] = gaps.get(gap, 0) + 1
    out.print(f"{rollouts} rollouts from {len(files)} files, {added} new spans in {into}")
    for gap, count in gaps.items():
        out.print(f"  {count} without: {gap}")


@traces_app.command(name="export")
def export_traces(
    run: RunArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="OTLP JSON, one object a line.")],
    rollout: RolloutOption = None,
) -> None:
    """Write stored rollouts as OTLP JSON with their tokens: for any OTLP tool, and to be imported elsewhere."""
    from traces.tracer import write_otlp_file  # the OTel SDK: half a second that no other command needs

    with open_store(run) as store:
        written = write_otlp_file(store, file, _chosen(store, rollout))
    out.print(f"{written} spans written to {file}")


@traces_app.command(name="cassettes")
def make_cassettes(
    run: RunArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON, one cassette a line.")],
    rollout: RolloutOption = None,
    writes: Annotated[
        list[str] | None,
        typer.Option("--write", help="A tool that changes state. Repeatable; judged by its name if left out."),
    ] = None,
) -> None:
    """Turn stored rollouts into tasks whose tools answer from the record: `harness train --set tools.cassette=FILE`.

    Recordings of the same task become one cassette.
    """
    named = frozenset(writes or ())
    with open_store(run) as store:
        trajectories = [store.trajectory(rollout_id) for rollout_id in _chosen(store, rollout)]
        tasks = {record.rollout_id: record.task for record in store.rollouts(ended=True)}
    usable = [one for one in trajectories if one.turns and not one.ending.is_infrastructure]
    made = record_cassettes(usable, tasks, (lambda name: name in named) if named else is_write_by_name)
    if not made:
        found = f"{len(trajectories)} ended rollouts, none with an answered model call"
        raise ConfigError(f"cassettes of {run}", found, "run or import some first")
    calls = sum(len(cassette.calls) for cassette in made)
    save_cassettes(file, made)
    out.print(f"{len(made)} tasks with {calls} recorded calls of {len(usable)} rollouts written to {file}")


@traces_app.command(name="compact")
def compact_traces(run: RunArgument) -> None:
    """Make a run's store smaller without changing what it says; safe at any time, also while the run goes on."""
    with open_store(run) as store:
        done = compact(store)
    mib = (done.bytes_before / 2**20, done.bytes_after / 2**20)
    out.print(f"{done.rewritten} turns rewritten, {mib[0]:.1f} → {mib[1]:.1f} MiB")


def replay(
    run: RunArgument,
    rollout: Annotated[
        list[str] | None, typer.Argument(metavar="[ROLLOUT…]", help="Ids or their beginnings; the newest by default.")
    ] = None,
    agent: AgentOption = None,
    settings: SetOption = None,
) -> None:
    """Run stored rollouts again with no model and no servers, bit for bit: a regression test of agent and gateways.

    The model's answers and the tools' results come from the record; the agent and the gateways are real. Exit code 0
    where all came out as stored, 1 with the first difference where one did not.

        harness replay runs/demo last --agent agents/plain/agent.py
    """
    config = load_run(run, settings, config_flags(agent=agent))
    found = configured_agent(config)
    with open_store(run) as store:
        ids = [find_rollout(store, prefix) for prefix in rollout or ["last"]]
        done = [asyncio.run(replay_rollout(store, rollout_id, config, found)) for rollout_id in ids]
    for one in done:
        said = f"{one.rollout_id}: {one.turns} model calls as recorded" if one.difference is None else one.difference
        out.print(said if one.difference is None else f"{one.rollout_id}: {said}", markup=False, soft_wrap=True)
    if any(one.difference is not None for one in done):
        raise typer.Exit(1)


def _chosen(store: Store, prefixes: list[str] | None) -> list[str]:
    if prefixes:
        return [find_rollout(store, prefix) for prefix in prefixes]
    return [record.rollout_id for record in store.rollouts(ended=True)]
