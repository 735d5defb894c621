"""A group: rollouts of one task under one policy, run at the same time, compared with one another afterwards.

Concurrency is bounded, one failure cancels nobody, failures of infrastructure are tried again with a fresh session.
It knows nothing about training or about how scores are made. Called by the training loop, evaluation and the command
line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

from harness.agent import Agent
from harness.policy import Policy
from harness.rollout import World, run_rollout
from harness.task import Task
from traces.store import GroupRecord
from traces.trajectory import Ending, Group, Score, Trajectory

_RETRY_PAUSE_S = 0.5

ScoreGroup = Callable[[Task, Sequence[Trajectory]], Awaitable[Mapping[str, Sequence[Score]]]]
"""Judges a group's trajectories against one another: rollout id → scores to add. Raises JudgeError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """What a group is to be, beyond its task and its policy."""

    size: int
    """Rollouts in it."""
    group_id: str = field(default_factory=lambda: f"g-{uuid4().hex}")
    """Unique over all runs."""
    position: int | None = None
    """Place in the run's order of tasks; None outside training."""
    kept: tuple[str, ...] = ()
    """Ids of rollouts that have already ended, when a stopped run goes on; only the missing ones are run."""
    retries: int = 2
    """How often a rollout that failed for infrastructure is tried again."""
    judge: ScoreGroup | None = None
    """Judges the whole group; None where the rollouts' own scores are all."""


async def run_group(task: Task, agent: Agent, policy: Policy, world: World, plan: GroupPlan) -> Group:
    """Run a group's rollouts, judge them, and close the group on disk; `world.slots` bounds what runs at a time.

    Raises JudgeError when the group can't be judged (the group stays open), StoreError, and what a broken program
    raises, but only after every other rollout has ended. A cancellation ends every rollout as INTERRUPTED first.
    """
    record = GroupRecord(
        group_id=plan.group_id,
        run_id=world.run_id,
        task_id=task.id,
        kind=task.kind,
        split=task.split,
        position=plan.position,
    )
    await asyncio.to_thread(world.store.open_group, record)
    kept = [await asyncio.to_thread(world.store.trajectory, rollout_id) for rollout_id in plan.kept]
    missing = range(plan.size - len(kept))
    attempts = [asyncio.create_task(_run_with_retries(task, agent, policy, world, plan)) for _ in missing]
    try:
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    except asyncio.CancelledError:
        await asyncio.gather(*attempts, return_exceptions=True)
        raise
    fresh: list[tuple[Trajectory, int]] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        fresh.append(outcome)
    trajectories = [*kept, *(trajectory for trajectory, _ in fresh)]
    counted = [trajectory for trajectory in trajectories if not trajectory.ending.is_infrastructure]
    scores = await plan.judge(task, counted) if plan.judge is not None and counted else None
    closed = replace(
        record,
        rollout_ids=tuple(trajectory.rollout_id for trajectory in trajectories),
        metrics={"infrastructure_failures": float(sum(failed for _, failed in fresh))},
    )
    await asyncio.to_thread(world.store.append_group, closed, scores)
    return await asyncio.to_thread(world.store.group, record.group_id)


async def _run_with_retries(
    task: Task, agent: Agent, policy: Policy, world: World, plan: GroupPlan
) -> tuple[Trajectory, int]:
    """One place of the group: the last attempt's trajectory, and how many attempts failed for infrastructure."""
    failed = 0
    while True:
        async with world.slots:
            trajectory = await run_rollout(task, agent, policy, world, group_id=plan.group_id)
        if not trajectory.ending.is_infrastructure:
            return trajectory, failed
        failed += 1
        if failed > plan.retries or trajectory.ending is Ending.INTERRUPTED:
            return trajectory, failed
        # Whatever failed gets a moment to come back; the wait holds no slot.
        await asyncio.sleep(_RETRY_PAUSE_S * failed)
