"""The journal of durable sessions: one SQLite file in WAL mode in which each write call is one transaction.

Knows nothing about HTTP, MCP or any domain. A call is committed before it is answered, so `kill -9` of the server loses
no answered call; the file can be looked at with ordinary tools while the server runs. Used by sessions.py.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mcp_servers.errors import ServerError
from mcp_servers.state import Base, Entity, Key, State
from mcp_servers.toolbox import ToolResult

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sessions (
    session_id TEXT, snapshot_id TEXT, session_key TEXT, created_at TEXT DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (session_id, snapshot_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entities (
    session_id TEXT, snapshot_id TEXT, kind TEXT, id TEXT, body TEXT,
    PRIMARY KEY (session_id, snapshot_id, kind, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS calls (
    session_id TEXT, call_key TEXT, name TEXT, digest TEXT, text TEXT, is_error INTEGER, is_json INTEGER,
    PRIMARY KEY (session_id, call_key)) WITHOUT ROWID;
"""
LIVE = ""
"""The snapshot id under which the live state of a session stands."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call that was made under an idempotency key."""

    name: str
    """The tool."""
    digest: str
    """Hash of the tool's name and arguments: the same key must mean the same call."""
    result: ToolResult
    """What it answered."""


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as the journal holds it."""

    id: str
    """Session id."""
    key: str
    """The agent's key."""
    state: State
    """The live state."""
    calls: dict[str, RecordedCall]
    """Idempotency key → call."""
    snapshots: dict[str, State]
    """Snapshot id → state."""


class Journal:
    """The file. Raises ServerError where it can't be written, for instance because the disk is full."""

    def __init__(self, path: Path, base: Base) -> None:
        """Opens or makes the file. ServerError where it belongs to another base."""
        self._path = path
        try:
            self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.executescript(SCHEMA)
            self._file.execute("INSERT OR IGNORE INTO meta VALUES ('base', ?)", (base.fingerprint,))
            (found,) = self._file.execute("SELECT value FROM meta WHERE name = 'base'").fetchone()
        except sqlite3.Error as error:
            fix = "give a path in a folder that can be written to, or another file"
            raise ServerError(f"keep sessions in {str(path)!r}", str(error), fix) from error
        if found != base.fingerprint:
            fix = "start with the base that the sessions were made over, or give another --sessions file"
            raise ServerError(f"keep sessions in {str(path)!r}", "they belong to another base database", fix)

    def load(self, base: Base) -> list[StoredSession]:
        """Every session in the file."""
        changed: dict[tuple[str, str], dict[Key, Entity]] = {}
        for session_id, snapshot_id, kind, entity_id, body in self._file.execute("SELECT * FROM entities"):
            changed.setdefault((session_id, snapshot_id), {})[(kind, entity_id)] = json.loads(body)
        calls: dict[str, dict[str, RecordedCall]] = {}
        for session_id, call_key, name, digest, text, is_error, is_json in self._file.execute("SELECT * FROM calls"):
            result = ToolResult(text, bool(is_error), json.loads(text) if is_json else None)
            calls.setdefault(session_id, {})[call_key] = RecordedCall(name, digest, result)
        sessions: list[StoredSession] = []
        rows = self._file.execute("SELECT session_id, snapshot_id, session_key FROM sessions").fetchall()
        for session_id, snapshot_id, key in rows:
            if snapshot_id == LIVE:
                state = State(base, changed.get((session_id, LIVE)))
                sessions.append(StoredSession(session_id, key, state, calls.get(session_id, {}), {}))
        snapshots = {session.id: session.snapshots for session in sessions}
        for session_id, snapshot_id, _ in rows:
            if snapshot_id != LIVE:
                snapshots[session_id][snapshot_id] = State(base, changed.get((session_id, snapshot_id)))
        return sessions

    def add_session(self, session_id: str, key: str, state: State) -> None:
        """Records a new session and the state it starts with."""
        with self._transaction():
            self._file.execute(
                "INSERT INTO sessions (session_id, snapshot_id, session_key) VALUES (?, ?, ?)", (session_id, LIVE, key)
            )
            self._put(session_id, LIVE, state.changed())

    def add_call(self, session_id: str, draft: Mapping[Key, Entity], call_key: str | None, call: RecordedCall) -> None:
        """Records what a call changed and, where it has a key, what it answered: both or neither."""
        with self._transaction():
            self._put(session_id, LIVE, draft)
            if call_key:
                result = call.result
                row = (
                    session_id,
                    call_key,
                    call.name,
                    call.digest,
                    result.text,
                    result.is_error,
                    result.value is not None,
                )
                self._file.execute("INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def add_snapshot(self, session_id: str, snapshot_id: str, state: State) -> None:
        """Records a snapshot."""
        with self._transaction():
            self._file.execute(
                "INSERT INTO sessions (session_id, snapshot_id) VALUES (?, ?)", (session_id, snapshot_id)
            )
            self._put(session_id, snapshot_id, state.changed())

    def replace_state(self, session_id: str, state: State) -> None:
        """Records that a session now stands elsewhere."""
        with self._transaction():
            self._file.execute("DELETE FROM entities WHERE session_id = ? AND snapshot_id = ?", (session_id, LIVE))
            self._put(session_id, LIVE, state.changed())

    def drop_session(self, session_id: str) -> None:
        """Forgets a session, its snapshots and its calls."""
        with self._transaction():
            for table in ("sessions", "entities", "calls"):
                self._file.execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _put(self, session_id: str, snapshot_id: str, entities: Mapping[Key, Entity]) -> None:
        rows = [(session_id, snapshot_id, kind, key, json.dumps(body)) for (kind, key), body in entities.items()]
        if rows:
            self._file.executemany("INSERT OR REPLACE INTO entities VALUES (?, ?, ?, ?, ?)", rows)

    @contextmanager
    def _transaction(self) -> Generator[None]:
        try:
            with self._file:
                self._file.execute("BEGIN IMMEDIATE")
                yield
        except sqlite3.Error as error:
            fix = "free disk space or close what holds the file; the call changed nothing and can be repeated"
            raise ServerError(f"write to {str(self._path)!r}", str(error), fix) from error
