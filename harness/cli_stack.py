"""The commands that start something: train, serve, rollout, eval. Each reads its flags and calls who does the work.

Knows nothing about processes, gateways or learning. `train` is found through the entry-point group `harness.commands`,
because the commands that learn live above this package. Registered by cli.py.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from harness.agent import Door, configured_agent
from harness.cli_options import (
    CONFIG_FILE,
    AgentOption,
    ConfigOption,
    DryRunOption,
    JudgeOption,
    ModelOption,
    RewardOption,
    SetOption,
    SplitOption,
    ToolsOption,
    VersionOption,
    config_flags,
    load_run,
    out,
    with_free_name,
)
from harness.config import Config
from harness.config_source import load_config, to_toml, write_config
from harness.errors import ConfigError
from harness.live import show_progress
from harness.report import summary_numbers, terminal_tables, write_report
from harness.run_facts import read_run
from harness.show import trajectory_view
from harness.standalone import Selection, evaluate_version, run_rollouts, serve_one_rollout
from harness.task import AgentTask
from harness.tracking import publish_summary
from traces.trajectory import Trajectory


def train(
    config: ConfigOption = None,
    model: ModelOption = None,
    tools: ToolsOption = None,
    agent: AgentOption = None,
    reward: RewardOption = None,
    judge: JudgeOption = None,
    settings: SetOption = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Folder of a run to go on with.")] = None,
    from_traces: Annotated[
        list[Path] | None,
        typer.Option("--from-traces", help="Train on this run's scored trajectories, without rollouts. Repeatable."),
    ] = None,
    rescore: Annotated[
        bool, typer.Option("--rescore", help="With --from-traces: also on traces without token ids, marked as such.")
    ] = False,
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
        fix = "leave --config out: the run has its own"
        raise ConfigError(f"--resume {resume} with --config {config}", "two configurations", fix)
    flags = config_flags(model, tools, agent, reward, judge)
    given = [*(settings or ()), *_offline(from_traces, rescore)]
    resolved = load_config(config, given, flags) if resume is None else load_run(resume, given, flags)
    if dry_run:
        text = to_toml(resolved, "harness train --config <this file>")
        out.print(text, markup=False, highlight=False, soft_wrap=True)
        return
    resolved = with_free_name(resolved, "--resume") if resume is None else resolved
    raise typer.Exit(load_command("train")(resolved))


def _offline(from_traces: list[Path] | None, rescore: bool) -> list[str]:
    """The flags of training on what is stored as settings."""
    runs = [f"offline.runs={json.dumps([str(run) for run in from_traces])}"] if from_traces else []
    return [*runs, *(["offline.rescore=true"] if rescore else [])]


def load_command(name: str) -> Callable[..., int]:
    """The command of the entry-point group `harness.commands` with this name.

    Raises ConfigError when the package that brings it is not installed.
    """
    for point in metadata.entry_points(group="harness.commands", name=name):
        return point.load()
    raise ConfigError(
        f"the command {name!r}", "no installed package brings it", "pip install -e '.[cpu]', or make setup"
    )


def serve(
    run: Annotated[Path | None, typer.Option("--run", help="Serve a trained version of this run.")] = None,
    version: VersionOption = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    tools: ToolsOption = None,
    split: SplitOption = "train",
    task: Annotated[int, typer.Option("--task", min=0, help="Which task of the split.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the door as one line of JSON, for programs.")] = False,
    settings: SetOption = None,
) -> None:
    """Start engine, tool server and gateways, and open the two doors of one rollout for an agent of yours.

    Prints the environment that the agent needs. Type the agent's answer and Enter when it is done: the rollout is
    sealed, graded and shown.
    """
    resolved = run_or_new(run, "serve", config, settings, config_flags(model, tools))

    def tell(about: AgentTask, door: Door) -> None:
        environment = door.environment(about)
        if as_json:
            sys.stdout.write(json.dumps(environment, ensure_ascii=False) + "\n")
            sys.stdout.flush()
            return
        out.print(f"task {about.id}: {about.user_message}\n", markup=False)
        for name, value in environment.items():
            out.print(f"export {name}={shlex.quote(value)}", markup=False, highlight=False, soft_wrap=True)
        out.print("\nThe agent's answer, or just Enter, ends the rollout:", style="bold")

    folder = run_folder(resolved)
    trajectory = asyncio.run(serve_one_rollout(resolved, folder, Selection(split, task), version, tell))
    if as_json:
        sys.stdout.write(json.dumps(_summary(trajectory)) + "\n")
    else:
        out.print(trajectory_view(trajectory))


def rollout(
    tasks: Annotated[int, typer.Option("--tasks", min=1, help="How many tasks.")] = 4,
    each: Annotated[int, typer.Option("--each", min=1, help="Rollouts of each task.")] = 1,
    offset: Annotated[int, typer.Option("--offset", min=0, help="The first task of the split.")] = 0,
    split: SplitOption = "train",
    run: Annotated[
        Path | None, typer.Option("--run", help="Use this run's newest policy and add to its store.")
    ] = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    tools: ToolsOption = None,
    agent: AgentOption = None,
    reward: RewardOption = None,
    judge: JudgeOption = None,
    settings: SetOption = None,
) -> None:
    """Run an agent on a few tasks, with everything recorded, and show how each rollout ended.

    Nothing is trained. Look at one of them with `harness show RUN ROLLOUT`.
    """
    resolved = run_or_new(run, "rollout", config, settings, config_flags(model, tools, agent, reward, judge))
    configured_agent(resolved)
    folder = run_folder(resolved)
    with show_progress(f"harness rollout · {folder}") as display:
        made = asyncio.run(run_rollouts(resolved, folder, Selection(split, offset, tasks), each=each, display=display))
    out.print(trajectory_table(made))
    out.print(f"look at one: harness show {folder} {made[-1].rollout_id if made else ''}")


def evaluate(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="Folder of a run; a fresh one if left out.")
    ] = None,
    version: VersionOption = None,
    split: Annotated[str | None, typer.Option("--split", help="Split to measure on; the run's own by default.")] = None,
    tasks: Annotated[
        int | None, typer.Option("--tasks", min=1, help="How many tasks; the run's own by default.")
    ] = None,
    label: Annotated[str, typer.Option("--label", help="What the report calls it.")] = "eval",
    config: ConfigOption = None,
    model: ModelOption = None,
    tools: ToolsOption = None,
    agent: AgentOption = None,
    settings: SetOption = None,
) -> None:
    """Measure a policy version: success and pass^k with 95 % intervals, endings counted, by request kind.

    Sampled at temperature 1, and greedy unless `evaluation.greedy` is false. The numbers go into the run's report.
    """
    flags: dict[str, str | None] = config_flags(model, tools, agent)
    flags |= {"evaluation.split": split}
    chosen = [*(settings or ()), *([f"evaluation.tasks={tasks}"] if tasks else [])]
    resolved = run_or_new(run, "eval", config, chosen, flags)
    configured_agent(resolved)
    folder = run_folder(resolved)
    with show_progress(f"harness eval · {folder}") as display:
        asyncio.run(evaluate_version(resolved, folder, version, label=label, display=display))
    report = write_report(folder)
    publish_summary(folder, resolved.run.name, resolved.wandb, summary_numbers(read_run(folder)))
    out.print(*terminal_tables(folder), sep="\n")
    out.print(f"report {report}")


def run_or_new(
    run: Path | None, name: str, config: Path | None, settings: list[str] | None, flags: dict[str, str | None]
) -> Config:
    """The configuration of an existing run, or one for a fresh run folder called `name`; nothing is written yet."""
    if run is not None and config is not None:
        fix = "leave --config out: the run has its own"
        raise ConfigError(f"the run {run} with --config {config}", "two configurations", fix)
    if run is not None:
        return load_run(run, settings, flags)
    named = load_config(config, settings or (), flags)
    given = any(setting.partition("=")[0].strip() == "run.name" for setting in settings or ())
    named = named if given else named.model_copy(update={"run": named.run.model_copy(update={"name": name})})
    return with_free_name(named)


def run_folder(config: Config) -> Path:
    """The run's folder, made and given its configuration if it is new."""
    folder = Path(config.run.folder) / config.run.name
    if not (folder / CONFIG_FILE).exists():
        write_config(config, folder / CONFIG_FILE, f"harness train --resume {folder}")
    return folder


def _summary(trajectory: Trajectory) -> dict[str, object]:
    score = trajectory.score()
    return {
        "rollout_id": trajectory.rollout_id,
        "ending": trajectory.ending.value,
        "detail": trajectory.ending_detail,
        "turns": len(trajectory.turns),
        "tool_calls": len(trajectory.tool_calls),
        "score": None if score is None else score.value,
    }


def trajectory_table(trajectories: list[Trajectory]) -> Table:
    """One row a rollout: task, ending, score, turns, calls, sampled tokens, drift."""
    table = Table(show_edge=False)
    for name in ("rollout", "task", "kind", "ending", "score", "turns", "calls", "tokens", "drift"):
        table.add_column(name, justify="right" if name in {"score", "turns", "calls", "tokens", "drift"} else "left")
    for one in trajectories:
        score = one.score()
        table.add_row(
            one.rollout_id,
            one.task_id,
            one.kind,
            one.ending.value,
            "–" if score is None else f"{score.value:.2f}",
            str(len(one.turns)),
            str(len(one.tool_calls)),
            str(sum(len(turn.completion_ids_T) for turn in one.turns)),
            f"{one.metrics.get('drift_tokens', 0):g}",
        )
    return table
