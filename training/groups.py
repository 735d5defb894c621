"""Makes the groups that the trainer trains on: as many as the next step lacks, under the newest policy, in task order.

It knows nothing about torch, HTTP or how a rollout goes. The store tells it what was closed, consumed and published,
so a resumed run goes on where the last one stopped: with the groups it had opened, then with the next task.
Called by loop.py, beside the trainer process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.agent import configured_agent
from harness.config import Config
from harness.errors import TrainingError
from harness.group import GroupPlan, ScoreGroup, run_group
from harness.measure import fetch_tasks
from harness.policy import Policy
from harness.scoring.litellm_call import JudgeFailed
from harness.stack import Stack
from harness.task import Task
from traces.store import GroupRecord, Store
from traces.trajectory import Group
from training.batch import group_rows
from training.config import TrainerConfig
from training.pace import Pace

_log = logging.getLogger(__name__)
_POLL_S = 0.1
_TASKS_AT_ONCE = 64

Tell = Callable[..., None]
"""Called with changes of the progress, and `outcomes`: [(ending, passed)] of rollouts that ended."""


@dataclass(frozen=True, slots=True)
class GroupSource:
    """What groups are made from."""

    config: Config
    """Agent, tasks, sampling, limits."""
    stack: Stack
    """Where rollouts run."""
    judge: ScoreGroup | None = None
    """Judges whole groups; None where the rollouts' own checks are the reward."""


class GroupMaker:
    """Makes groups until it is cancelled."""

    def __init__(self, source: GroupSource, store: Store, trainer: TrainerConfig, tell: Tell) -> None:
        self._config = source.config
        self._stack = source.stack
        self._judge = source.judge
        self._store = store
        self._trainer = trainer
        self._tell = tell
        self._agent = configured_agent(source.config)
        self._world = source.stack.world(source.config, store, source.config.rollout.temperature)
        self._policy = Policy(source.stack.engine.model_name)
        self._tasks: dict[int, Task] = {}
        self._running: set[asyncio.Task[Group]] = set()
        self._failed_in_row = 0

    async def make_groups(self) -> None:
        """Keep the trainer supplied. Raises what a broken program raises; a group that can't be judged is replaced."""
        run_id = self._config.run.name
        self._follow_policy()
        pace = Pace(self._trainer, self._policy.version, self._trainer.training.steps_ahead)
        pace.closed(
            group_rows(self._store.group(record.group_id), self._trainer.rules)
            for record in self._store.unconsumed_groups(run_id)
        )
        unfinished = [record for record in self._store.open_groups(run_id) if record.position is not None]
        position = self._next_position(run_id)
        try:
            while True:
                for _ in range(pace.groups_wanted(len(self._running))):
                    if unfinished:
                        self._start(unfinished[0].position or 0, unfinished.pop(0))
                    else:
                        self._start(position)
                        position += 1
                await self._take_in(pace)
        finally:
            for group in self._running:
                group.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def _take_in(self, pace: Pace) -> None:
        """Wait a moment for groups that end and versions that appear, and tell the pace of both."""
        if self._running:
            await asyncio.wait(self._running, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(_POLL_S)
        for ended in [group for group in self._running if group.done()]:
            self._running.remove(ended)
            try:
                group = ended.result()
            except JudgeFailed as error:
                _log.warning("a group could not be judged and is left open: %s", error)
                continue
            pace.closed([group_rows(group, self._trainer.rules)])
            self._tell_of(group)
            self._give_up_if_all_fails(group)
        if self._follow_policy():
            pace.published(self._policy.version)
            self._tell(done=self._policy.version, policy_version=self._policy.version)

    def _give_up_if_all_fails(self, group: Group) -> None:
        """Raise TrainingError after too many groups in a row of which nothing but failures of infrastructure came."""
        if not all(trajectory.ending.is_infrastructure for trajectory in group.trajectories):
            self._failed_in_row = 0
            return
        self._failed_in_row += 1
        if self._failed_in_row >= self._config.rollout.give_up_after:
            last = group.trajectories[-1]
            raise TrainingError(
                f"rollouts of the run {self._config.run.name!r}",
                f"{self._failed_in_row} groups in a row failed whole, the last as {last.ending}: {last.ending_detail}",
                "mend what failed, then `harness train --resume` the run",
            )

    def _start(self, position: int, stopped: GroupRecord | None = None) -> None:
        self._running.add(asyncio.create_task(self._make(position, stopped)))

    async def _make(self, position: int, stopped: GroupRecord | None) -> Group:
        task = await self._task(position)
        section = self._config
        plan = GroupPlan(
            size=section.training.group_size,
            position=position,
            retries=section.rollout.infrastructure_retries,
            judge=self._judge,
            **(self._kept(stopped) if stopped is not None else {}),
        )
        return await run_group(task, self._agent, self._policy, self._world, plan)

    def _kept(self, stopped: GroupRecord) -> dict[str, Any]:
        ended = self._store.rollouts(group_id=stopped.group_id, ended=True)
        kept = tuple(record.rollout_id for record in ended if record.ending and not record.ending.is_infrastructure)
        return {"group_id": stopped.group_id, "kept": kept}

    async def _task(self, position: int) -> Task:
        """The task at this place of the run's order, which starts over after `tasks.train` tasks."""
        index = position % self._config.tasks.train
        if index not in self._tasks:
            first = index - index % _TASKS_AT_ONCE
            found = await fetch_tasks(self._stack, self._config, "train", first, _TASKS_AT_ONCE)
            self._tasks.update(enumerate(found, start=first))
        return self._tasks[index]

    def _next_position(self, run_id: str) -> int:
        begun = [*self._store.groups(run_id, split="train"), *self._store.open_groups(run_id)]
        return max((record.position + 1 for record in begun if record.position is not None), default=0)

    def _follow_policy(self) -> bool:
        """Roll out under the newest version from now on; True where it is a new one."""
        record = self._store.latest_policy(self._config.run.name)
        if record is None or (record.version, record.model) == (self._policy.version, self._policy.model):
            return False
        self._policy = Policy(record.model, record.version, record.adapter_path)
        return True

    def _tell_of(self, group: Group) -> None:
        drift = sum(int(trajectory.metrics.get("drift_tokens", 0)) for trajectory in group.trajectories)
        outcomes = [
            (t.ending.value, None if (score := t.score()) is None else score.value > 0) for t in group.trajectories
        ]
        self._tell(outcomes=outcomes, note=f"drift {drift}" if drift else "")
