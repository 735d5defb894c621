"""The rollout worker TRL pulls from: closed groups in the store → one step's samples on TRL's queue, when asked for.

It knows nothing about torch, TRL's classes, agents or how groups are made; it never calls an agent or an engine.
`trainer.py` injects it into the trainer. A step's groups are read when the step needs them and not before, so what a
step trains on depends only on the store and the version: that is what makes a resumed run repeat itself exactly.
"""

from __future__ import annotations

import math
import os
import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

from harness.errors import TrainingError
from traces.records import CheckpointRecord
from traces.store import Store
from training.batch import Batch, BatchRow, GroupRows, group_rows, plan_batch, plan_call
from training.config import TrainerConfig

_POLL_S = 0.1

MakeSample = Callable[[BatchRow, float], Any]
"""(row, weighted advantage) → TRL's `RolloutSample`."""


def rewind(store: Store, run_id: str) -> CheckpointRecord | None:
    """Make the newest checkpoint the newest of the run's history, and return it; None where there is none.

    A resuming main process calls it before it starts any child, so that all of them see the same history; the trainer
    calls it again, which changes nothing.
    """
    checkpoint = store.latest_checkpoint(run_id)
    store.rollback_to(run_id, checkpoint.step if checkpoint is not None else 0)
    return checkpoint


class StoreRollouts:
    """Reads groups from the store; has the attributes and methods of TRL's `RolloutWorkerProtocol`."""

    def __init__(self, store: Store, config: TrainerConfig, make_sample: MakeSample) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        """Samples of the step under way."""
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        """What each step was made of."""
        self._store = store
        self._config = config
        self._make_sample = make_sample
        self._rows: dict[str, GroupRows] = {}
        self._version = 0
        self._parent = os.getppid()
        self._last_arrival = time.monotonic()

    def start(self) -> None:
        """Nothing runs in the background."""

    def stop(self) -> None:
        """Nothing runs in the background."""

    def update_model_version(self, model_version: int) -> None:
        """The version that the next step trains."""
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raise TrainingError where no more groups are to be expected."""
        waited_s = time.monotonic() - self._last_arrival
        asked = f"wait for the rollouts of step {self._version + 1} of run {self._config.run_id!r}"
        fix = "see the run's logs, then `harness train --resume` it"
        if os.getppid() != self._parent:
            raise TrainingError(asked, "the process that makes them has ended", fix)
        if waited_s > stale_after_s:
            raise TrainingError(asked, f"no group was closed for {waited_s:.0f} s", fix)

    def next_batch(self) -> Batch:
        """Wait for the next step's rows, mark their groups consumed, and put the rows on the queue.

        Raises TrainingError where the main process has ended or the group time-out is over.
        """
        asked_at = self._last_arrival = time.monotonic()
        while not (batch := self._wait_for_batch()).rows:
            # Nothing to learn from this call: used up by the step that stands.
            self._consume(batch, self._version)
        self._consume(batch, self._version + 1)
        self.metrics_queue.put({**batch.metrics, "perf/group_wait_s": time.monotonic() - asked_at})
        for row, advantage in zip(batch.rows, batch.advantages_B, strict=True):
            self.rollout_buffer.put(self._make_sample(row, advantage))
        return batch

    def _wait_for_batch(self) -> Batch:
        by_call = self._config.by_call
        plan = plan_call if by_call else plan_batch
        # Between two calls a person may think as long as they like.
        stale_after_s = math.inf if by_call else self._config.training.group_timeout_s
        while (batch := plan(self._pending(), self._version, self._config.rules)) is None:
            self.check_health(stale_after_s)
            time.sleep(_POLL_S)
        return batch

    def _consume(self, batch: Batch, step: int) -> None:
        self._store.consume(self._config.run_id, batch.group_ids, step)
        for group_id in batch.group_ids:
            self._rows.pop(group_id, None)

    def _pending(self) -> Iterator[GroupRows]:
        for record in self._store.unconsumed_groups(self._config.run_id):
            if record.group_id not in self._rows:
                self._last_arrival = time.monotonic()
                self._rows[record.group_id] = group_rows(self._store.group(record.group_id), self._config.rules)
            yield self._rows[record.group_id]
