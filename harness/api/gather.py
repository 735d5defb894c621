"""Run rollout functions side by side: trajectories and groups of them, with progress, a bound on failures, and a hook.

Each awaitable runs in a scope of its own, so its model calls become one rollout. A failure of infrastructure stands in
the group as an error, never as a trajectory with reward 0 (law 4). It knows nothing about stores or training.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar
from uuid import uuid4

from harness.api.scope import RolloutFailed, Scope, entered
from harness.api.trajectory import Trajectory, TrajectoryGroup
from harness.errors import HarnessError
from harness.live import Display, show_progress

T = TypeVar("T")

AfterEach = Callable[[TrajectoryGroup], Awaitable["TrajectoryGroup | Sequence[TrajectoryGroup] | None"]]
"""Called with each group as it ends: the group to keep, several, or None to drop it. The place for a judge."""


class _Gathering:
    """One call of a gather function: counts, and the first failure too many."""

    def __init__(self, description: str | None, total: int, max_exceptions: float) -> None:
        self._description = description
        self._total = total
        self._bound = max_exceptions if max_exceptions >= 1 else max_exceptions * total
        self._rewards: list[float] = []
        self._exceptions = 0
        self._display: Display | None = None

    def shown(self) -> AbstractContextManager[Display | None]:
        """Progress on standard output; nothing without a description."""
        return nullcontext() if self._description is None else show_progress(self._description)

    def begin(self, display: Display | None) -> None:
        """Show progress there from now on."""
        self._display = display
        self._show(phase=self._description, total=self._total, unit="rollouts")

    async def attempt(self, awaitable: Awaitable[Trajectory], group_id: str) -> Trajectory | Exception:
        """One trajectory, or why there is none. Raises the error once there are more than are allowed."""
        scope = Scope(group_id)
        try:
            trajectory = await run_attempt(awaitable, scope)
        except Exception as error:
            self._exceptions += 1
            self._show(done=self._done, note=f"{self._exceptions} failed")
            if self._exceptions > self._bound:
                raise
            return error
        self._rewards.append(trajectory.reward)
        reward = sum(self._rewards) / len(self._rewards)
        self._show(done=self._done, rollouts=len(self._rewards), reward=reward, policy_version=scope.version)
        return trajectory

    @property
    def _done(self) -> int:
        return len(self._rewards) + self._exceptions

    def _show(self, **changes: Any) -> None:
        if self._display is not None:
            self._display.update(**changes)


async def run_attempt(awaitable: Awaitable[Trajectory], scope: Scope) -> Trajectory:
    """Run one rollout function in its scope; its rollouts have ended on disk when this returns.

    Raises what the function raises, RolloutFailed for a failure of infrastructure, and HarnessError where it returns
    something else than a Trajectory.
    """
    with entered(scope):
        try:
            trajectory = await awaitable
        except BaseException as error:
            await asyncio.shield(scope.close(error))
            if scope.broken is not None and isinstance(error, Exception):
                # What the function made of a failure of ours says nothing about the policy.
                raise RolloutFailed(scope.broken) from error
            raise
        await scope.close(None)
    if scope.broken is not None:
        raise RolloutFailed(scope.broken)
    if not isinstance(trajectory, Trajectory):  # pyright: ignore[reportUnnecessaryIsInstance]
        found = f"a {type(trajectory).__name__}"
        raise HarnessError("a Trajectory from a rollout function", found, "return one Trajectory for each awaitable")
    if not trajectory.rollouts:
        trajectory.rollouts = scope.ids
    return trajectory


async def gather_trajectories(
    trajectories: Iterable[Awaitable[Trajectory]], *, pbar_desc: str | None = "gather", max_exceptions: float = 0
) -> list[Trajectory | Exception]:
    """Run all at once; each one's trajectory, or its error, in order.

    `max_exceptions` errors are borne (below 1: as a share); the next is raised, and what still runs is cancelled.
    """
    awaitables = list(trajectories)
    gathering = _Gathering(pbar_desc, len(awaitables), max_exceptions)
    with gathering.shown() as display:
        gathering.begin(display)
        return await _all([gathering.attempt(awaitable, f"g-{uuid4().hex}") for awaitable in awaitables])


async def gather_trajectory_groups(
    groups: Iterable[TrajectoryGroup | Awaitable[TrajectoryGroup]],
    *,
    pbar_desc: str | None = "gather",
    max_exceptions: float = 0,
    after_each: AfterEach | None = None,
) -> list[TrajectoryGroup]:
    """Run the awaitables of all groups at once; the groups in order, each passed through `after_each` as it ends.

    `max_exceptions` errors are borne over all groups (below 1: as a share of all rollouts) and kept in their groups;
    the next is raised, and what still runs is cancelled. Errors of `after_each` are raised.
    """
    listed = list(groups)
    total = sum(len(group.pending) if isinstance(group, TrajectoryGroup) else 1 for group in listed)
    gathering = _Gathering(pbar_desc, total, max_exceptions)

    async def one(group: TrajectoryGroup | Awaitable[TrajectoryGroup]) -> list[TrajectoryGroup]:
        made = group if isinstance(group, TrajectoryGroup) else await group
        pending, made.pending = made.pending, []
        for outcome in await _all([gathering.attempt(awaitable, made.id) for awaitable in pending]):
            if isinstance(outcome, Trajectory):
                made.trajectories.append(outcome)
            else:
                made.exceptions.append(outcome)
        kept = made if after_each is None else await after_each(made)
        if kept is None:
            return []
        return [kept] if isinstance(kept, TrajectoryGroup) else list(kept)

    with gathering.shown() as display:
        gathering.begin(display)
        return [group for kept in await _all([one(group) for group in listed]) for group in kept]


async def _all(awaitables: Sequence[Awaitable[T]]) -> list[T]:
    """Results in order; the first error is raised once all others were cancelled and have ended."""
    running = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        return await asyncio.gather(*running)
    except BaseException:
        for task in running:
            # A second cancellation would break off the ending of a rollout that the first one began.
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise
