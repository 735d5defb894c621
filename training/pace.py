"""How many groups to start now, so that the next optimizer step has its rows and no rollout is wasted.

It knows nothing about agents, engines, processes or torch: it is told what was closed and published, and answers with
a count. groups.py asks it whenever a group ends or a policy version appears.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from training.batch import GroupRows, plan_batch
from training.config import TrainerConfig

_FIRST_GUESS = 0.7
_FLOOR = 0.25
_MEMORY = 24
"""Groups over which the share of useful ones is averaged."""


class Pace:
    """Keeps the unconsumed groups of a run and says how many more the coming step needs.

    Steps are planned with the trainer's own `plan_batch`, so both sides always agree on what a step is made of.
    """

    def __init__(self, trainer: TrainerConfig, version: int, steps_ahead: int = 0) -> None:
        self._rules = trainer.rules
        self._group_size = trainer.training.group_size
        self._steps = trainer.training.steps
        self._version = version
        self._steps_ahead = steps_ahead
        self._pending: list[GroupRows] = []
        self._planned = version
        """Version that the last complete batch was planned for, plus one: batches are complete below this."""
        self._useful: list[bool] = []

    def closed(self, groups: Iterable[GroupRows]) -> None:
        """Take in groups in the order of closing."""
        for group in groups:
            self._pending.append(group)
            self._useful = [*self._useful, group.has_spread][-_MEMORY:]
        self._plan()

    def published(self, version: int) -> None:
        """The trainer finished a step: rollouts sample from `version` from now on."""
        self._version = max(self._version, version)
        self._plan()

    def groups_wanted(self, in_flight: int) -> int:
        """Groups to start now beside the `in_flight` ones; 0 while the trainer has all it may be given.

        `steps_ahead` 0 alternates generation and training; 1 makes the next batch while the trainer is at this one.
        """
        if self._planned > min(self._version + self._steps_ahead, self._steps - 1):
            return 0
        fresh = sum(len(self._fresh(group)) for group in self._pending)
        lacking = max(1, self._rules.rows - fresh)
        return max(0, math.ceil(lacking / (self._group_size * self.useful_share)) - in_flight)

    @property
    def useful_share(self) -> float:
        """Share of groups with spread lately, with a prior of a few groups; never below a quarter."""
        prior = 4
        seen = sum(self._useful)
        return max(_FLOOR, (seen + prior * _FIRST_GUESS) / (len(self._useful) + prior))

    def _fresh(self, group: GroupRows) -> list[int]:
        stale_below = self._planned - self._rules.max_staleness
        return [row.version for row in group.rows if row.version >= stale_below]

    def _plan(self) -> None:
        """Set aside the groups of every step that is complete, in the order in which the trainer will take them."""
        while self._planned <= self._version + self._steps_ahead:
            batch = plan_batch(self._pending, self._planned, self._rules)
            if batch is None:
                return
            taken = set(batch.group_ids)
            self._pending = [group for group in self._pending if group.group_id not in taken]
            self._planned += 1
