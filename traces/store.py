"""The trace store of a run, one SQLite file in WAL mode: spans, and the ledger that is the queue between processes.

It knows nothing about agents, engines, rewards or training.
Gateways append spans, the main process rollouts, scores and groups, the trainer policies and checkpoints; every append
is one transaction, committed before it returns (law 8). `StoreWriter` gathers the appends of many async callers.
"""

from __future__ import annotations

from traces.assemble import assemble_trajectory
from traces.database import Database, StoreError
from traces.ledger import RunLedger
from traces.progress import RunProgress
from traces.records import CheckpointRecord, GroupRecord, PolicyRecord, RolloutRecord
from traces.spanlog import SpanLog
from traces.trajectory import Group, Trajectory
from traces.writer import StoreWriter

__all__ = [
    "CheckpointRecord",
    "Database",
    "GroupRecord",
    "PolicyRecord",
    "RolloutRecord",
    "Store",
    "StoreError",
    "StoreWriter",
]


class Store(SpanLog, RunLedger, RunProgress):
    """All reads and writes of one store file; safe between threads and between processes."""

    def trajectory(self, rollout_id: str) -> Trajectory:
        """The trajectory of an ended rollout; raises StoreError (unknown) or AssemblyError (open)."""
        return assemble_trajectory(self.spans(rollout_id), self.rollout(rollout_id), self.scores(rollout_id))

    def group(self, group_id: str) -> Group:
        """A closed group with its trajectories; raises StoreError where there is none."""
        record = self.group_record(group_id)
        return Group(
            group_id=record.group_id,
            run_id=record.run_id,
            task_id=record.task_id,
            kind=record.kind,
            split=record.split,
            trajectories=[self.trajectory(rollout_id) for rollout_id in record.rollout_ids],
            seq=record.seq,
            position=record.position,
            metrics=record.metrics,
        )
