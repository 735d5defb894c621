"""How far a run's training has come: groups consumed by step, policies published, checkpoints on disk.

It knows nothing about losses, weights or what a group holds.
The trainer consumes and appends, the main process polls policies; a resumed trainer starts with `rollback_to`, where
the rule is written that makes kill -9 lose nothing and train nothing twice.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from traces.database import Database, StoreError
from traces.ledger import GROUP_COLUMNS, read_group
from traces.records import CheckpointRecord, GroupRecord, PolicyRecord


class RunProgress(Database):
    """Consumption, checkpoints and policies; what is undone by a rollback stays in the file, marked."""

    def unconsumed_groups(self, run_id: str, *, limit: int = -1) -> list[GroupRecord]:
        """Closed groups of the run's order of tasks that no step has consumed, in the order of closing.

        Groups without a position (evaluation, `harness rollout`) are never trained on, whatever their split.
        """
        sql = (
            f"SELECT {GROUP_COLUMNS} FROM groups WHERE run_id=? AND position IS NOT NULL AND closed_seq IS NOT NULL"
            " AND consumed_step IS NULL ORDER BY closed_seq LIMIT ?"
        )
        rows = self.query(f"list unconsumed groups of run {run_id!r}", sql, (run_id, limit))
        return [read_group(row) for row in rows]

    def consume(self, run_id: str, group_ids: Sequence[str], step: int) -> None:
        """Say that `step` trains (or drops for good) these groups; called before the step's optimizer update.

        Raises StoreError, and consumes none of them, where one is not closed or was consumed already.
        """
        asked = f"consume {len(group_ids)} groups at step {step} of run {run_id!r}"
        with self.transaction(asked) as connection:
            for group_id in group_ids:
                _require_unconsumed(connection, asked, run_id, group_id)
                connection.execute(
                    "INSERT INTO consumed (run_id, group_id, step, created_ns) VALUES (?, ?, ?, ?)",
                    (run_id, group_id, step, time.time_ns()),
                )
                connection.execute("UPDATE groups SET consumed_step=? WHERE group_id=?", (step, group_id))

    def consumed(self, run_id: str) -> dict[int, list[str]]:
        """Step → ids of the groups it consumed, in the surviving history."""
        sql = "SELECT step, group_id FROM consumed WHERE run_id=? AND undone_ns IS NULL ORDER BY seq"
        steps: dict[int, list[str]] = {}
        for step, group_id in self.query(f"read consumption of run {run_id!r}", sql, (run_id,)):
            steps.setdefault(step, []).append(group_id)
        return steps

    def append_checkpoint(self, record: CheckpointRecord) -> None:
        """Commit a checkpoint: its folder must be complete and renamed into place before this call."""
        with self.transaction(f"append checkpoint of step {record.step} of run {record.run_id!r}") as connection:
            connection.execute(
                "INSERT INTO checkpoints (run_id, step, path, policy_version, created_ns) VALUES (?, ?, ?, ?, ?)",
                (record.run_id, record.step, record.path, record.policy_version, time.time_ns()),
            )

    def latest_checkpoint(self, run_id: str) -> CheckpointRecord | None:
        """The newest checkpoint in the surviving history; None before the first."""
        sql = (
            "SELECT run_id, step, path, policy_version FROM checkpoints WHERE run_id=? AND undone_ns IS NULL"
            " ORDER BY step DESC, seq DESC LIMIT 1"
        )
        rows = self.query(f"read the last checkpoint of run {run_id!r}", sql, (run_id,))
        if not rows:
            return None
        run, step, path, version = rows[0]
        return CheckpointRecord(run_id=run, step=step, path=path, policy_version=version)

    def rollback_to(self, run_id: str, step: int) -> list[str]:
        """Make `step` the newest of the run's history; ids of the groups that are unconsumed again, oldest first.

        The rule: a trainer consumes the groups of step s before its optimizer update, and commits a checkpoint of
        step c after the update of c. So the groups in checkpoint c are exactly those consumed at steps ≤ c. A resumed
        trainer loads the latest checkpoint c (0: the start) and calls `rollback_to(c)`: what later steps consumed,
        published or checkpointed is marked undone and trained again from the restored weights; nothing is lost, and
        nothing is twice in the surviving history, whenever the kill came.
        """
        now = time.time_ns()
        with self.transaction(f"roll run {run_id!r} back to step {step}") as connection:
            for table in ("policies", "checkpoints"):
                connection.execute(
                    f"UPDATE {table} SET undone_ns=? WHERE run_id=? AND step>? AND undone_ns IS NULL",
                    (now, run_id, step),
                )
            rows = connection.execute(
                "UPDATE consumed SET undone_ns=? WHERE run_id=? AND step>? AND undone_ns IS NULL"
                " RETURNING seq, group_id",
                (now, run_id, step),
            ).fetchall()
            undone = [group_id for _, group_id in sorted(rows)]
            connection.executemany(
                "UPDATE groups SET consumed_step=NULL WHERE group_id=?", [(group_id,) for group_id in undone]
            )
        return undone

    def append_policy(self, record: PolicyRecord) -> None:
        """Publish a policy version to the other processes.

        Raises StoreError where this version of the run exists in the surviving history.
        """
        asked = f"append policy version {record.version} of run {record.run_id!r}"
        with self.transaction(asked) as connection:
            sql = "SELECT model FROM policies WHERE run_id=? AND version=? AND undone_ns IS NULL"
            row = connection.execute(sql, (record.run_id, record.version)).fetchone()
            if row is not None:
                raise StoreError(asked, f"it exists as {row[0]!r}", "publish each version once, under a new name")
            connection.execute(
                "INSERT INTO policies (run_id, version, model, adapter_path, step, created_ns)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (record.run_id, record.version, record.model, record.adapter_path, record.step, time.time_ns()),
            )

    def policies(self, run_id: str) -> list[PolicyRecord]:
        """The policy versions of the surviving history, oldest first."""
        sql = (
            "SELECT run_id, version, model, adapter_path, step FROM policies WHERE run_id=? AND undone_ns IS NULL"
            " ORDER BY version"
        )
        return [
            PolicyRecord(run_id=run, version=version, model=model, adapter_path=path, step=step)
            for run, version, model, path, step in self.query(f"list policies of run {run_id!r}", sql, (run_id,))
        ]

    def latest_policy(self, run_id: str) -> PolicyRecord | None:
        """The newest policy version; None before the first."""
        found = self.policies(run_id)
        return found[-1] if found else None


def _require_unconsumed(connection: sqlite3.Connection, asked: str, run_id: str, group_id: str) -> None:
    sql = "SELECT closed_seq, consumed_step FROM groups WHERE group_id=? AND run_id=?"
    row = connection.execute(sql, (group_id, run_id)).fetchone()
    if row is None or row[0] is None:
        raise StoreError(asked, f"group {group_id!r} is not a closed group of the run", "close it first")
    if row[1] is not None:
        found = f"group {group_id!r} was consumed at step {row[1]}"
        raise StoreError(asked, found, "after a restart call rollback_to(step of the checkpoint) first")
