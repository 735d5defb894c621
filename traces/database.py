"""One SQLite file in WAL mode: its schema, its connections, its transactions, and its errors in words.

It knows nothing about what the rows mean.
`spanlog.py` and `ledger.py` build their reads and writes on it; `store.py` is the public face.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

SCHEMA_VERSION = 1
"""Kept in SQLite's `user_version`; a store of another version is refused, not guessed at."""
BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for another process's transaction."""

_SCHEMA = """
CREATE TABLE spans (
  seq INTEGER PRIMARY KEY, trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_id TEXT, name TEXT NOT NULL,
  kind TEXT NOT NULL, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL, status TEXT NOT NULL,
  status_message TEXT NOT NULL, rollout_id TEXT, group_id TEXT, run_id TEXT, policy_version INTEGER,
  source TEXT NOT NULL, attributes BLOB NOT NULL, events BLOB);
CREATE UNIQUE INDEX spans_identity ON spans (trace_id, span_id);
CREATE INDEX spans_rollout ON spans (rollout_id) WHERE rollout_id IS NOT NULL;
CREATE INDEX spans_group ON spans (group_id) WHERE group_id IS NOT NULL;
CREATE INDEX spans_run ON spans (run_id, policy_version) WHERE run_id IS NOT NULL;
CREATE TABLE tokens (
  seq INTEGER PRIMARY KEY REFERENCES spans (seq), base_seq INTEGER, base_length INTEGER NOT NULL,
  prompt_length INTEGER NOT NULL, chunks BLOB NOT NULL,
  prompt BLOB NOT NULL, completion BLOB NOT NULL, logprobs BLOB NOT NULL);
CREATE TABLE contents (hash BLOB PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE rollouts (
  seq INTEGER PRIMARY KEY, rollout_id TEXT NOT NULL UNIQUE, group_id TEXT NOT NULL, run_id TEXT NOT NULL,
  task_id TEXT NOT NULL, kind TEXT NOT NULL, split TEXT NOT NULL, policy_version INTEGER NOT NULL, trace_id TEXT,
  agent TEXT NOT NULL, task TEXT NOT NULL, ending TEXT, ending_detail TEXT NOT NULL, answer TEXT,
  start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL, metrics TEXT NOT NULL, evidence_gaps TEXT NOT NULL);
CREATE INDEX rollouts_group ON rollouts (group_id);
CREATE INDEX rollouts_run ON rollouts (run_id, ending);
CREATE INDEX rollouts_version ON rollouts (run_id, policy_version);
CREATE INDEX rollouts_trace ON rollouts (trace_id) WHERE trace_id IS NOT NULL;
CREATE TABLE scores (
  seq INTEGER PRIMARY KEY, rollout_id TEXT NOT NULL, name TEXT NOT NULL, value REAL NOT NULL,
  components TEXT NOT NULL, explanation TEXT NOT NULL, scorer_version TEXT NOT NULL, created_ns INTEGER NOT NULL);
CREATE INDEX scores_rollout ON scores (rollout_id);
CREATE TABLE groups (
  seq INTEGER PRIMARY KEY, group_id TEXT NOT NULL UNIQUE, run_id TEXT NOT NULL, task_id TEXT NOT NULL,
  kind TEXT NOT NULL, split TEXT NOT NULL, position INTEGER, rollout_ids TEXT NOT NULL, metrics TEXT NOT NULL,
  opened_ns INTEGER NOT NULL, closed_seq INTEGER UNIQUE, closed_ns INTEGER, consumed_step INTEGER);
CREATE INDEX groups_closed ON groups (run_id, closed_seq) WHERE closed_seq IS NOT NULL;
CREATE INDEX groups_open ON groups (run_id, seq) WHERE closed_seq IS NULL;
CREATE INDEX groups_position ON groups (run_id, split, position);
CREATE INDEX groups_unconsumed ON groups (run_id, split, closed_seq)
  WHERE closed_seq IS NOT NULL AND consumed_step IS NULL;
CREATE TABLE consumed (
  seq INTEGER PRIMARY KEY, run_id TEXT NOT NULL, group_id TEXT NOT NULL, step INTEGER NOT NULL,
  created_ns INTEGER NOT NULL, undone_ns INTEGER);
CREATE UNIQUE INDEX consumed_once ON consumed (group_id) WHERE undone_ns IS NULL;
CREATE INDEX consumed_step ON consumed (run_id, step);
CREATE TABLE policies (
  seq INTEGER PRIMARY KEY, run_id TEXT NOT NULL, version INTEGER NOT NULL, model TEXT NOT NULL,
  adapter_path TEXT, step INTEGER NOT NULL, created_ns INTEGER NOT NULL, undone_ns INTEGER);
CREATE UNIQUE INDEX policies_version ON policies (run_id, version) WHERE undone_ns IS NULL;
CREATE TABLE checkpoints (
  seq INTEGER PRIMARY KEY, run_id TEXT NOT NULL, step INTEGER NOT NULL, path TEXT NOT NULL,
  policy_version INTEGER NOT NULL, created_ns INTEGER NOT NULL, undone_ns INTEGER);
CREATE INDEX checkpoints_run ON checkpoints (run_id, step);
"""


class StoreError(Exception):
    """The store could not do what was asked."""

    def __init__(self, asked: str, found: str, fix: str) -> None:
        super().__init__(asked, found, fix)
        self.asked = asked
        """What was asked, with the value."""
        self.found = found
        """What was found instead."""
        self.fix = fix
        """What to do next."""

    def __str__(self) -> str:
        return f"asked: {self.asked}\nfound: {self.found}\nfix:   {self.fix}"


_FAULTS = {
    sqlite3.SQLITE_FULL: ("the disk is full", "free space and resume: everything acknowledged is safe"),
    sqlite3.SQLITE_IOERR: ("the disk failed to read or write", "check the disk and its free space, then resume"),
    sqlite3.SQLITE_BUSY: (
        f"another process held its write lock for over {BUSY_TIMEOUT_S:.0f} s",
        "look for a stopped or hanging process that has the store open",
    ),
    sqlite3.SQLITE_LOCKED: ("a table is locked", "close the reader that holds it"),
    sqlite3.SQLITE_CORRUPT: ("the file is damaged", "keep it aside and recover with `sqlite3 FILE .recover`"),
    sqlite3.SQLITE_NOTADB: ("the file is not a SQLite database", "give the path of a run's traces.db"),
    sqlite3.SQLITE_CANTOPEN: ("the file can't be opened", "check that its folder exists and may be written"),
    sqlite3.SQLITE_READONLY: ("the file is read-only", "check the permissions of the file and its folder"),
    sqlite3.SQLITE_PERM: ("access is denied", "check the permissions of the file and its folder"),
}


def clean_text(text: str) -> str:
    """Text that SQLite can keep: lone surrogates, which models and their errors hold at times, become `?`."""
    return text.encode("utf-8", "replace").decode("utf-8")


def store_error(asked: str, error: sqlite3.Error) -> StoreError:
    """Say a SQLite error in words; the extended code's low byte names the fault."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    found, fix = _FAULTS.get(
        code, (f"SQLite said {error}", "check the store with `sqlite3 FILE 'PRAGMA quick_check'`.")
    )
    return StoreError(asked, found, fix)


class Database:
    """An open store file: one connection that writes, one that reads, each behind its own lock.

    Safe to share between threads; several processes may open the same file. Not to be carried over a fork.
    """

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        """Open the file, making it where it is absent and `create` is true.

        Raises StoreError where it can't be opened, is no store, or is a store of another schema version.
        """
        self.path = Path(path)
        if not create and not self.path.exists():
            raise StoreError(f"open trace store {self.path}", "no such file", "give the path of a run's traces.db")
        self._write_lock = threading.RLock()
        self._read_lock = threading.RLock()
        try:
            self._writer = self._connect()
            self._prepare_schema()
            self._reader = self._connect()
        except sqlite3.Error as error:
            raise store_error(f"open trace store {self.path}", error) from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA temp_store=MEMORY")
        return connection

    def _prepare_schema(self) -> None:
        if self._schema_version() == SCHEMA_VERSION:
            return
        with self.transaction("create the schema") as connection:
            # Read again under the write lock: another process may have made it in between.
            found = self._schema_version()
            if found == SCHEMA_VERSION:
                return
            if found != 0 or connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                raise StoreError(
                    f"open trace store {self.path}",
                    f"schema version {found}, this program reads version {SCHEMA_VERSION}",
                    "use the program version that wrote it, or start a new run",
                )
            for statement in _SCHEMA.split(";"):
                if statement.strip():
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    def _schema_version(self) -> int:
        return int(self._writer.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def transaction(self, asked: str) -> Generator[sqlite3.Connection]:
        """A write transaction, committed when the block ends and undone when it raises; raises StoreError."""
        with self._write_lock:
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    yield self._writer
                    self._writer.execute("COMMIT")
                except BaseException:
                    if self._writer.in_transaction:
                        self._writer.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise store_error(f"{asked} in {self.path}", error) from error

    @contextmanager
    def exclusive(self, asked: str) -> Generator[sqlite3.Connection]:
        """The writing connection outside of a transaction, for what SQLite does in none; raises StoreError."""
        with self._write_lock:
            try:
                yield self._writer
            except sqlite3.Error as error:
                raise store_error(f"{asked} in {self.path}", error) from error

    def query(self, asked: str, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows of a read; raises StoreError."""
        with self._read_lock:
            try:
                return self._reader.execute(sql, parameters).fetchall()
            except sqlite3.Error as error:
                raise store_error(f"{asked} in {self.path}", error) from error

    def close(self) -> None:
        """Close both connections; the object can't be used after that."""
        with self._write_lock, self._read_lock:
            self._reader.close()
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
