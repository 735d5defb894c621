"""The queue between the processes of a run: rollouts, scores, closed groups, policies, checkpoints, consumption.

It knows nothing about spans, tokens, rewards or training.
The main process appends rollouts, scores and groups; the trainer consumes groups and appends policies and
checkpoints; either can be killed at any moment. How a run resumes exactly is said at `RunLedger.rollback_to`.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from traces.database import Database, StoreError
from traces.records import CheckpointRecord, GroupRecord, PolicyRecord, RolloutRecord
from traces.trajectory import Ending, Score

_ROLLOUT_COLUMNS = (
    "rollout_id, group_id, run_id, task_id, kind, split, policy_version, trace_id, agent, task, ending, ending_detail,"
    " answer, start_ns, end_ns, metrics, evidence_gaps"
)
_GROUP_COLUMNS = "seq, group_id, run_id, task_id, kind, split, position, rollout_ids, metrics"


class RunLedger(Database):
    """Reads and writes of everything but spans. Every append is one transaction, committed before it returns."""

    def append_rollout(self, record: RolloutRecord) -> None:
        """Open a rollout (no ending yet), or end it; saying the same ending twice is allowed.

        Raises StoreError where the rollout has already ended otherwise.
        """
        asked = f"append rollout {record.rollout_id!r}"
        with self.transaction(asked) as connection:
            row = connection.execute("SELECT ending FROM rollouts WHERE rollout_id=?", (record.rollout_id,)).fetchone()
            if row is not None and row[0] is not None:
                if record.ending is not None and row[0] == record.ending.value:
                    return
                found = f"it has already ended as {row[0]!r}"
                raise StoreError(asked, found, "A rollout ends once; give a retry a new rollout id.")
            columns = _ROLLOUT_COLUMNS.split(", ")
            updates = ", ".join(f"{column}=excluded.{column}" for column in columns[1:])
            connection.execute(
                f"INSERT INTO rollouts ({_ROLLOUT_COLUMNS}) VALUES ({', '.join('?' * len(columns))})"
                f" ON CONFLICT (rollout_id) DO UPDATE SET {updates}",
                _rollout_row(record),
            )

    def abandon_open_rollouts(self, run_id: str, detail: str = "the run was stopped") -> list[str]:
        """End every open rollout of the run as INTERRUPTED; their ids, oldest first. Called when a run resumes."""
        with self.transaction(f"abandon open rollouts of run {run_id!r}") as connection:
            rows = connection.execute(
                "UPDATE rollouts SET ending=?, ending_detail=?, end_ns=? WHERE run_id=? AND ending IS NULL"
                " RETURNING seq, rollout_id",
                (Ending.INTERRUPTED.value, detail, time.time_ns(), run_id),
            ).fetchall()
        return [rollout_id for _, rollout_id in sorted(rows)]

    def rollout(self, rollout_id: str) -> RolloutRecord:
        """One rollout; raises StoreError where there is none of this id."""
        asked = f"read rollout {rollout_id!r}"
        rows = self.query(asked, f"SELECT {_ROLLOUT_COLUMNS} FROM rollouts WHERE rollout_id=?", (rollout_id,))
        if not rows:
            raise StoreError(asked, f"no such rollout in {self.path}", "List them with `harness show`.")
        return _rollout_record(rows[0])

    def rollouts(
        self, *, run_id: str | None = None, group_id: str | None = None, ended: bool | None = None, limit: int = -1
    ) -> list[RolloutRecord]:
        """Rollouts by start order, of one run or group; `ended` None means open and ended; `limit` -1 means all."""
        wheres = {"run_id=?": run_id, "group_id=?": group_id}
        clauses = [clause for clause, value in wheres.items() if value is not None]
        values = [value for value in wheres.values() if value is not None]
        if ended is not None:
            clauses.append("ending IS NOT NULL" if ended else "ending IS NULL")
        where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
        sql = f"SELECT {_ROLLOUT_COLUMNS} FROM rollouts {where} ORDER BY seq LIMIT ?"
        return [_rollout_record(row) for row in self.query("list rollouts", sql, (*values, limit))]

    def append_scores(self, rollout_id: str, scores: Iterable[Score]) -> None:
        """Add scores; earlier ones stay, the newest of a name counts."""
        with self.transaction(f"append scores of rollout {rollout_id!r}") as connection:
            _insert_scores(connection, rollout_id, scores)

    def scores(self, rollout_id: str, *, every: bool = False) -> list[Score]:
        """The newest score of each name, or `every` one ever given; oldest first."""
        rows = self.query(
            f"read scores of rollout {rollout_id!r}",
            "SELECT value, name, components, explanation, scorer_version FROM scores WHERE rollout_id=? ORDER BY seq",
            (rollout_id,),
        )
        scores = [
            Score(value=value, name=name, components=json.loads(parts), explanation=why, scorer_version=version)
            for value, name, parts, why, version in rows
        ]
        if every:
            return scores
        newest = {score.name: index for index, score in enumerate(scores)}
        return [scores[index] for index in sorted(newest.values())]

    def append_group(self, record: GroupRecord, scores: Mapping[str, Sequence[Score]] | None = None) -> GroupRecord:
        """Close a group, with the last scores of its rollouts in the same transaction; the record with its `seq`.

        Raises StoreError where a rollout is unknown or still open, or ended for its own reasons and has no score.
        Closing the same group twice changes nothing and returns what is stored.
        """
        asked = f"close group {record.group_id!r}"
        with self.transaction(asked) as connection:
            sql = f"SELECT {_GROUP_COLUMNS} FROM groups WHERE group_id=?"
            stored = connection.execute(sql, (record.group_id,)).fetchone()
            if stored is not None:
                return _group_record(stored)
            for rollout_id, added in (scores or {}).items():
                _insert_scores(connection, rollout_id, added)
            for rollout_id in record.rollout_ids:
                _require_closed(connection, asked, rollout_id)
            cursor = connection.execute(
                "INSERT INTO groups (group_id, run_id, task_id, kind, split, position, rollout_ids, metrics, created_ns)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (record.group_id, record.run_id, record.task_id, record.kind, record.split, record.position)
                + (json.dumps(record.rollout_ids), json.dumps(record.metrics), time.time_ns()),
            )
            return replace(record, seq=cursor.lastrowid)

    def group_record(self, group_id: str) -> GroupRecord:
        """One closed group; raises StoreError where there is none of this id."""
        asked = f"read group {group_id!r}"
        rows = self.query(asked, f"SELECT {_GROUP_COLUMNS} FROM groups WHERE group_id=?", (group_id,))
        if not rows:
            raise StoreError(asked, f"no such closed group in {self.path}", "List them with `harness show`.")
        return _group_record(rows[0])

    def groups(
        self, run_id: str, *, after_seq: int = 0, split: str | None = None, limit: int = -1
    ) -> list[GroupRecord]:
        """Closed groups in the order of closing, after `after_seq`."""
        sql = (
            f"SELECT {_GROUP_COLUMNS} FROM groups WHERE run_id=? AND seq>? AND (? IS NULL OR split=?)"
            " ORDER BY seq LIMIT ?"
        )
        rows = self.query(f"list groups of run {run_id!r}", sql, (run_id, after_seq, split, split, limit))
        return [_group_record(row) for row in rows]

    def unconsumed_groups(self, run_id: str, *, split: str = "train", limit: int = -1) -> list[GroupRecord]:
        """Closed groups no step has consumed, in the order of closing: what the trainer may train next."""
        columns = ", ".join(f"g.{column.strip()}" for column in _GROUP_COLUMNS.split(","))
        sql = (
            f"SELECT {columns} FROM groups g WHERE g.run_id=? AND g.split=? AND NOT EXISTS"
            " (SELECT 1 FROM consumed c WHERE c.group_id=g.group_id AND c.undone_ns IS NULL) ORDER BY g.seq LIMIT ?"
        )
        rows = self.query(f"list unconsumed groups of run {run_id!r}", sql, (run_id, split, limit))
        return [_group_record(row) for row in rows]

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
        return [group_id for _, group_id in sorted(rows)]

    def append_policy(self, record: PolicyRecord) -> None:
        """Publish a policy version to the other processes.

        Raises StoreError where this version of the run exists in the surviving history.
        """
        asked = f"append policy version {record.version} of run {record.run_id!r}"
        with self.transaction(asked) as connection:
            sql = "SELECT model FROM policies WHERE run_id=? AND version=? AND undone_ns IS NULL"
            row = connection.execute(sql, (record.run_id, record.version)).fetchone()
            if row is not None:
                raise StoreError(asked, f"it exists as {row[0]!r}", "Publish each version once, under a new name.")
            connection.execute(
                "INSERT INTO policies (run_id, version, model, adapter_path, step, created_ns) VALUES (?, ?, ?, ?, ?, ?)",
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


def _require_closed(connection: sqlite3.Connection, asked: str, rollout_id: str) -> None:
    row = connection.execute("SELECT ending FROM rollouts WHERE rollout_id=?", (rollout_id,)).fetchone()
    if row is None or row[0] is None:
        found = f"rollout {rollout_id!r} is {'unknown' if row is None else 'still open'}"
        raise StoreError(asked, found, "Append the ended rollout first.")
    if Ending(row[0]).is_infrastructure:
        return
    if connection.execute("SELECT 1 FROM scores WHERE rollout_id=? LIMIT 1", (rollout_id,)).fetchone() is None:
        raise StoreError(asked, f"rollout {rollout_id!r} ended as {row[0]!r} and has no score", "Score it first.")


def _require_unconsumed(connection: sqlite3.Connection, asked: str, run_id: str, group_id: str) -> None:
    if connection.execute("SELECT 1 FROM groups WHERE group_id=? AND run_id=?", (group_id, run_id)).fetchone() is None:
        raise StoreError(asked, f"group {group_id!r} is not a closed group of the run", "Close it first.")
    sql = "SELECT step FROM consumed WHERE group_id=? AND undone_ns IS NULL"
    row = connection.execute(sql, (group_id,)).fetchone()
    if row is not None:
        found = f"group {group_id!r} was consumed at step {row[0]}"
        raise StoreError(asked, found, "After a restart call rollback_to(step of the checkpoint) first.")


def _insert_scores(connection: sqlite3.Connection, rollout_id: str, scores: Iterable[Score]) -> None:
    rows = [
        (rollout_id, score.name, score.value, json.dumps(score.components), score.explanation, score.scorer_version)
        + (time.time_ns(),)
        for score in scores
    ]
    connection.executemany(
        "INSERT INTO scores (rollout_id, name, value, components, explanation, scorer_version, created_ns)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        rows,
    )


def _rollout_row(record: RolloutRecord) -> tuple[Any, ...]:
    return (
        record.rollout_id, record.group_id, record.run_id, record.task_id, record.kind, record.split,
        record.policy_version, record.trace_id, record.agent, json.dumps(record.task),
        record.ending.value if record.ending is not None else None, record.ending_detail, record.answer,
        record.start_ns, record.end_ns, json.dumps(record.metrics), json.dumps(record.evidence_gaps),
    )  # fmt: skip


def _rollout_record(row: tuple[Any, ...]) -> RolloutRecord:
    values = dict(zip(_ROLLOUT_COLUMNS.split(", "), row, strict=True))
    values["task"] = json.loads(values["task"])
    values["metrics"] = json.loads(values["metrics"])
    values["evidence_gaps"] = tuple(json.loads(values["evidence_gaps"]))
    values["ending"] = Ending(values["ending"]) if values["ending"] is not None else None
    return RolloutRecord(**values)


def _group_record(row: tuple[Any, ...]) -> GroupRecord:
    values = dict(zip(_GROUP_COLUMNS.split(", "), row, strict=True))
    values["rollout_ids"] = tuple(json.loads(values["rollout_ids"]))
    values["metrics"] = json.loads(values["metrics"])
    return GroupRecord(**values)
