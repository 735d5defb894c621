"""Run tasks and keep what came of them: the orchestration of an evaluation, and its file in the run folder.

It knows nothing about agents, engines, servers or scoring: rollouts come from the callable it is handed, scores are on
the trajectories, and its numbers never steer training. Called by `harness eval` and by the train loop before and after.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.outcomes import Evaluation, EvaluationSpec, Outcome, outcome_of
from harness.task import Task
from traces.trajectory import Trajectory

EVALUATIONS = "evaluations"

RunGroup = Callable[[Task, int], Awaitable[Sequence[Trajectory]]]
"""Runs and scores this many rollouts of a task."""


async def do_nothing(task: object, door: object) -> str:
    """An agent that answers nothing and calls nothing; what it scores is the floor of every table."""
    del task, door
    return ""


async def evaluate(
    spec: EvaluationSpec,
    tasks: Sequence[Task],
    run_group: RunGroup,
    *,
    groups_at_once: int = 8,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Evaluation:
    """Run `spec.repeats` rollouts of each task through `run_group(task, repeats)` and reduce them to outcomes.

    `run_group` returns scored trajectories and doesn't raise for a failed rollout: that is an Ending. `on_outcome` is
    told of each rollout as its group ends (for a progress bar). Raises HarnessError when there are no tasks.
    """
    if not tasks:
        raise HarnessError(
            asked=f"an evaluation on split {spec.split!r}", found="no tasks in it", fix="ask for a split that has tasks"
        )
    gate = asyncio.Semaphore(groups_at_once)

    async def one(task: Task) -> list[Outcome]:
        async with gate:
            trajectories = await run_group(task, spec.repeats)
        outcomes = [outcome_of(trajectory, task) for trajectory in trajectories]
        for outcome in outcomes:
            if on_outcome is not None:
                on_outcome(outcome)
        return outcomes

    async with asyncio.TaskGroup() as group:
        running = [group.create_task(one(task)) for task in tasks]
    return Evaluation(spec, tuple(outcome for done in running for outcome in done.result()))


def save_evaluation(run_dir: Path, evaluation: Evaluation) -> Path:
    """Write `evaluations/<label>-v<version>-<t…>.json` in one rename, so that a killed process leaves no half file."""
    spec = evaluation.spec
    path = run_dir / EVALUATIONS / f"{spec.label}-{spec.split}-v{spec.policy_version}-t{spec.temperature:g}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(dataclasses.asdict(evaluation)), encoding="utf-8")
    os.replace(scratch, path)
    return path


def load_evaluations(run_dir: Path) -> list[Evaluation]:
    """All evaluations of a run, oldest file first; empty when none was written."""
    paths = sorted((run_dir / EVALUATIONS).glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    return [_evaluation_from(json.loads(path.read_text(encoding="utf-8"))) for path in paths]


def _evaluation_from(raw: dict[str, Any]) -> Evaluation:
    return Evaluation(EvaluationSpec(**raw["spec"]), tuple(Outcome(**outcome) for outcome in raw["outcomes"]))
