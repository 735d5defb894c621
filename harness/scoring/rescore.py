"""Stored groups scored again, by another judge, rubric or check, without new rollouts; old scores stay in the store.

It knows nothing about prompts, endpoints or how a score is made: it is handed what scores a group. Groups that a
judge's failure left open are scored too, and stay open. Called by `harness score` and `harness judge calibrate`.
"""

from __future__ import annotations

import asyncio
import hashlib
import runpy
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from harness.errors import JudgeError
from harness.scoring.checks import score_from_grade
from harness.scoring.litellm_call import JudgeFailed
from traces.store import GroupRecord, Store
from traces.trajectory import Group, Score, Trajectory

ScoreTrajectories = Callable[[object, Sequence[Trajectory]], Awaitable[Mapping[str, Sequence[Score]]]]
"""Task (ignored here) and trajectories → rollout id → scores to add; a `Scorer` is one. Raises JudgeError."""

GROUPS_AT_ONCE = 64


@dataclass(slots=True)
class Rescored:
    """What came of scoring stored groups again."""

    groups: int = 0
    """Groups that have new scores."""
    rollouts: int = 0
    """Rollouts that have new scores."""
    unscored: dict[str, str] = field(default_factory=dict[str, str])
    """Group id → why it has none; its old scores are untouched."""


def stored_groups(store: Store, run_id: str, *, split: str | None = None, limit: int = -1) -> Iterator[Group]:
    """Groups of a run whose rollouts have all ended, closed ones first, at most `limit` of them (-1: all)."""
    records = [*store.groups(run_id, split=split), *_ended_open_groups(store, run_id, split)]
    for record in records if limit < 0 else records[:limit]:
        yield Group(
            group_id=record.group_id,
            run_id=record.run_id,
            task_id=record.task_id,
            kind=record.kind,
            split=record.split,
            trajectories=[store.trajectory(rollout_id) for rollout_id in record.rollout_ids],
            seq=record.seq,
            position=record.position,
            metrics=record.metrics,
        )


async def rescore_groups(
    store: Store,
    groups: Iterator[Group],
    score: ScoreTrajectories,
    on_group: Callable[[Group, bool], None] | None = None,
) -> Rescored:
    """Score each group and append what comes of it; `on_group` is told of each and whether it got scores.

    A group the judge has no usable answer for is left as it was, and named. Raises JudgeError where none can be scored.
    """
    done = Rescored()
    # Read as they are needed, so that a run of any size fits in memory.
    waiting: set[asyncio.Task[None]] = set()

    async def one(group: Group) -> None:
        counted = [trajectory for trajectory in group.trajectories if not trajectory.ending.is_infrastructure]
        scores: Mapping[str, Sequence[Score]] = dict[str, Sequence[Score]]()
        try:
            if counted:
                scores = await score(None, counted)
        except JudgeFailed as error:
            done.unscored[group.group_id] = error.found
        for rollout_id, added in scores.items():
            await asyncio.to_thread(store.append_scores, rollout_id, added)
        done.groups += bool(scores)
        done.rollouts += len(scores)
        if on_group is not None:
            on_group(group, bool(scores))

    try:
        for group in groups:
            waiting.add(asyncio.create_task(one(group)))
            if len(waiting) >= GROUPS_AT_ONCE:
                waiting = await _some_done(waiting)
        while waiting:
            waiting = await _some_done(waiting)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return done


async def _some_done(waiting: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    finished, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in finished:
        task.result()
    return rest


def load_check(path: Path, store: Store) -> ScoreTrajectories:
    """A check of your own: a Python file with `check(task, trajectory) -> {passed, value, components, reason}`.

    `task` is the stored task as a dict, `trajectory` a `Trajectory`. The score is named after the file and versioned by
    its content. Raises JudgeError for a missing file or one without `check`.
    """
    asked = f"the check {path}"
    if not path.is_file():
        raise JudgeError(asked=asked, found="no such file", fix="name a Python file that defines `check`")
    check = runpy.run_path(str(path)).get("check")
    if not callable(check):
        fix = "define `def check(task, trajectory)` that returns {passed, value, components, reason}"
        raise JudgeError(asked=asked, found="no function `check` in it", fix=fix)
    version = f"{path.stem}@{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"

    async def score(task: object, trajectories: Sequence[Trajectory]) -> Mapping[str, Sequence[Score]]:
        del task
        scores: dict[str, Sequence[Score]] = {}
        for trajectory in trajectories:
            grade = cast("Mapping[str, Any]", check(store.rollout(trajectory.rollout_id).task, trajectory))
            graded = score_from_grade(grade, server=path.name)
            scores[trajectory.rollout_id] = [replace(graded, name=path.stem, scorer_version=version)]
        return scores

    return score


def _ended_open_groups(store: Store, run_id: str, split: str | None) -> Iterator[GroupRecord]:
    for record in store.open_groups(run_id):
        rollouts = store.rollouts(group_id=record.group_id)
        if split in (None, record.split) and rollouts and all(rollout.ending is not None for rollout in rollouts):
            yield replace(record, rollout_ids=tuple(rollout.rollout_id for rollout in rollouts))
