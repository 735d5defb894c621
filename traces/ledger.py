"""What the main process tells the others: rollouts as they start and end, their scores, groups as they close.

It knows nothing about spans, tokens, rewards or training.
The main process appends; the trainer reads closed groups through `progress.py`; evaluation and `harness show` read.
A group is open while its rollouts run and closed once all have ended and those that count have a score.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from traces.database import Database, StoreError, clean_text
from traces.records import GroupRecord, RolloutRecord
from traces.trajectory import Ending, Score

_ROLLOUT_COLUMNS = (
    "rollout_id, group_id, run_id, task_id, kind, split, policy_version, trace_id, agent, task, ending, ending_detail,"
    " answer, start_ns, end_ns, metrics, evidence_gaps"
)
GROUP_COLUMNS = "group_id, run_id, task_id, kind, split, position, rollout_ids, metrics, closed_seq"
_CLOSE = "SELECT COALESCE(MAX(closed_seq), 0) + 1 FROM groups"


class RunLedger(Database):
    """Rollouts, scores and groups. Every append is one transaction, committed before it returns."""

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
                raise StoreError(asked, found, "a rollout ends once; give a retry a new rollout id")
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
            raise StoreError(asked, f"no such rollout in {self.path}", "list them with `harness show`")
        return _rollout_record(rows[0])

    def rollouts(
        self,
        *,
        run_id: str | None = None,
        group_id: str | None = None,
        ended: bool | None = None,
        ending: Ending | None = None,
        newest: int | None = None,
    ) -> list[RolloutRecord]:
        """Rollouts by start order, of one run, group or ending; `newest` keeps only as many of the last."""
        wheres = {"run_id=?": run_id, "group_id=?": group_id, "ending=?": ending.value if ending is not None else None}
        clauses = [clause for clause, value in wheres.items() if value is not None]
        values = [value for value in wheres.values() if value is not None]
        if ended is not None:
            clauses.append("ending IS NOT NULL" if ended else "ending IS NULL")
        where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
        sql = f"SELECT {_ROLLOUT_COLUMNS} FROM rollouts {where} ORDER BY seq DESC LIMIT ?"
        rows = self.query("list rollouts", sql, (*values, newest if newest is not None else -1))
        return [_rollout_record(row) for row in reversed(rows)]

    def count_rollouts(self, *, ended: bool | None = None, ending: Ending | None = None) -> int:
        """How many rollouts there are, of all runs; those of one ending, or that have ended or not."""
        clauses = [] if ended is None else ["ending IS NOT NULL" if ended else "ending IS NULL"]
        clauses += ["ending=?"] if ending is not None else []
        where = f" WHERE {' AND '.join(clauses)}" if clauses else ""
        values = (ending.value,) if ending is not None else ()
        return int(self.query("count rollouts", f"SELECT COUNT(*) FROM rollouts{where}", values)[0][0])

    def ended_beginning_with(self, prefix: str, limit: int = 5) -> list[str]:
        """Ids of ended rollouts that begin so, at most `limit`."""
        sql = (
            "SELECT rollout_id FROM rollouts WHERE rollout_id>=? AND rollout_id<? AND ending IS NOT NULL"
            " ORDER BY rollout_id LIMIT ?"
        )
        rows = self.query(f"find rollouts {prefix!r}", sql, (prefix, f"{prefix}\U0010ffff", limit))
        return [str(row[0]) for row in rows]

    def extreme_rollout(self, *, best: bool) -> str | None:
        """The ended rollout whose newest score is highest, or lowest; None where no rollout has a score."""
        sql = (
            "SELECT s.rollout_id FROM (SELECT MAX(seq) AS seq FROM scores GROUP BY rollout_id) newest"
            " JOIN scores s ON s.seq=newest.seq JOIN rollouts r ON r.rollout_id=s.rollout_id"
            f" WHERE r.ending IS NOT NULL ORDER BY s.value {'DESC' if best else 'ASC'}, s.seq LIMIT 1"
        )
        rows = self.query(f"find the {'best' if best else 'worst'} rollout", sql)
        return str(rows[0][0]) if rows else None

    def run_ids(self) -> list[str]:
        """The runs whose rollouts are in this store."""
        rows = self.query("list runs", "SELECT DISTINCT run_id FROM rollouts ORDER BY run_id")
        return [str(row[0]) for row in rows]

    def count_endings(self, run_id: str) -> dict[Ending | None, int]:
        """How many rollouts of the run ended how; None counts those that run."""
        sql = "SELECT ending, COUNT(*) FROM rollouts WHERE run_id=? GROUP BY ending"
        found = self.query(f"count endings of run {run_id!r}", sql, (run_id,))
        return {Ending(ending) if ending is not None else None: count for ending, count in found}

    def rollout_of_trace(self, trace_id: str) -> RolloutRecord | None:
        """The newest rollout of a trace; None where the trace is nobody's."""
        sql = f"SELECT {_ROLLOUT_COLUMNS} FROM rollouts WHERE trace_id=? ORDER BY seq DESC LIMIT 1"
        rows = self.query(f"find the rollout of trace {trace_id!r}", sql, (trace_id,))
        return _rollout_record(rows[0]) if rows else None

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

    def open_group(self, record: GroupRecord) -> None:
        """Say that a group's rollouts are about to start, so that a resumed run can finish it; idempotent."""
        with self.transaction(f"open group {record.group_id!r}") as connection:
            _insert_group(connection, record)

    def append_group(self, record: GroupRecord, scores: Mapping[str, Sequence[Score]] | None = None) -> GroupRecord:
        """Close a group, with the last scores of its rollouts in the same transaction; the record with its `seq`.

        Raises StoreError where a rollout is unknown or still open, or ended for its own reasons and has no score.
        Closing the same group twice changes nothing and returns what is stored.
        """
        asked = f"close group {record.group_id!r}"
        with self.transaction(asked) as connection:
            _insert_group(connection, record)
            sql = f"SELECT {GROUP_COLUMNS} FROM groups WHERE group_id=?"
            stored = read_group(connection.execute(sql, (record.group_id,)).fetchone())
            if stored.seq is not None:
                return stored
            for rollout_id, added in (scores or {}).items():
                _insert_scores(connection, rollout_id, added)
            for rollout_id in record.rollout_ids:
                _require_closed(connection, asked, rollout_id)
            (seq,) = connection.execute(_CLOSE).fetchone()
            connection.execute(
                "UPDATE groups SET rollout_ids=?, metrics=?, closed_seq=?, closed_ns=? WHERE group_id=?",
                (json.dumps(record.rollout_ids), json.dumps(record.metrics), seq, time.time_ns(), record.group_id),
            )
            return replace(record, seq=seq)

    def group_record(self, group_id: str) -> GroupRecord:
        """One group, open or closed; raises StoreError where there is none of this id."""
        asked = f"read group {group_id!r}"
        rows = self.query(asked, f"SELECT {GROUP_COLUMNS} FROM groups WHERE group_id=?", (group_id,))
        if not rows:
            raise StoreError(asked, f"no such group in {self.path}", "list them with `harness show`")
        return read_group(rows[0])

    def groups(
        self, run_id: str, *, after_seq: int = 0, split: str | None = None, limit: int = -1
    ) -> list[GroupRecord]:
        """Closed groups in the order of closing, after `after_seq`."""
        sql = (
            f"SELECT {GROUP_COLUMNS} FROM groups WHERE run_id=? AND closed_seq>? AND (? IS NULL OR split=?)"
            " ORDER BY closed_seq LIMIT ?"
        )
        rows = self.query(f"list groups of run {run_id!r}", sql, (run_id, after_seq, split, split, limit))
        return [read_group(row) for row in rows]

    def open_groups(self, run_id: str) -> list[GroupRecord]:
        """Groups that were opened and not closed, in the order of opening: what a resumed run finishes first.

        Their ended rollouts are kept (`rollouts(group_id=…, ended=True)`); the missing ones are run.
        """
        sql = f"SELECT {GROUP_COLUMNS} FROM groups WHERE run_id=? AND closed_seq IS NULL ORDER BY seq"
        return [read_group(row) for row in self.query(f"list open groups of run {run_id!r}", sql, (run_id,))]

    def next_position(self, run_id: str, split: str = "train") -> int:
        """The first place in the order of tasks that no group has been opened for; 0 in a new run."""
        sql = "SELECT COALESCE(MAX(position), -1) + 1 FROM groups WHERE run_id=? AND split=?"
        return int(self.query(f"read the task position of run {run_id!r}", sql, (run_id, split))[0][0])


def _insert_group(connection: sqlite3.Connection, record: GroupRecord) -> None:
    connection.execute(
        "INSERT OR IGNORE INTO groups (group_id, run_id, task_id, kind, split, position, rollout_ids, metrics,"
        " opened_ns) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            record.group_id, record.run_id, record.task_id, record.kind, record.split, record.position,
            json.dumps(record.rollout_ids), json.dumps(record.metrics), time.time_ns(),
        ),
    )  # fmt: skip


def _require_closed(connection: sqlite3.Connection, asked: str, rollout_id: str) -> None:
    row = connection.execute("SELECT ending FROM rollouts WHERE rollout_id=?", (rollout_id,)).fetchone()
    if row is None or row[0] is None:
        found = f"rollout {rollout_id!r} is {'unknown' if row is None else 'still open'}"
        raise StoreError(asked, found, "append the ended rollout first")
    if Ending(row[0]).is_infrastructure:
        return
    if connection.execute("SELECT 1 FROM scores WHERE rollout_id=? LIMIT 1", (rollout_id,)).fetchone() is None:
        raise StoreError(asked, f"rollout {rollout_id!r} ended as {row[0]!r} and has no score", "score it first")


def _insert_scores(connection: sqlite3.Connection, rollout_id: str, scores: Iterable[Score]) -> None:
    now = time.time_ns()
    connection.executemany(
        "INSERT INTO scores (rollout_id, name, value, components, explanation, scorer_version, created_ns)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (rollout_id, s.name, s.value, json.dumps(s.components), clean_text(s.explanation), s.scorer_version, now)
            for s in scores
        ],
    )


def _rollout_row(record: RolloutRecord) -> tuple[Any, ...]:
    return (
        record.rollout_id, record.group_id, record.run_id, record.task_id, record.kind, record.split,
        record.policy_version, record.trace_id, record.agent, json.dumps(record.task),
        record.ending.value if record.ending is not None else None, clean_text(record.ending_detail),
        None if record.answer is None else clean_text(record.answer),
        record.start_ns, record.end_ns, json.dumps(record.metrics), json.dumps(record.evidence_gaps),
    )  # fmt: skip


def _rollout_record(row: tuple[Any, ...]) -> RolloutRecord:
    values = dict(zip(_ROLLOUT_COLUMNS.split(", "), row, strict=True))
    values["task"] = json.loads(values["task"])
    values["metrics"] = json.loads(values["metrics"])
    values["evidence_gaps"] = tuple(json.loads(values["evidence_gaps"]))
    values["ending"] = Ending(values["ending"]) if values["ending"] is not None else None
    return RolloutRecord(**values)


def read_group(row: tuple[Any, ...]) -> GroupRecord:
    """A row of `GROUP_COLUMNS` as a record."""
    *columns, seq = row
    values = dict(zip(GROUP_COLUMNS.split(", "), columns, strict=False))
    values["rollout_ids"] = tuple(json.loads(values["rollout_ids"]))
    values["metrics"] = json.loads(values["metrics"])
    return GroupRecord(**values, seq=seq)
