"""A server's live sessions: made, found by key, forked, snapshot and restored, called once per key, dropped, expired.

Knows nothing about HTTP, MCP or any domain. Everything here runs in one thread without awaiting, so a call is atomic
among its session's calls. Used by serve.py (agents' calls) and control.py (the state control API).
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_servers.errors import CallKeyReused, ServerError, SessionUnknown
from mcp_servers.journal import Journal, RecordedCall
from mcp_servers.state import Base, State, canonical
from mcp_servers.toolbox import ToolResult

RunTool = Callable[[State, str, Mapping[str, Any]], ToolResult]
SWEEP_EVERY_S = 30.0


@dataclass(slots=True)
class Session:
    """One isolated copy of a world."""

    id: str
    """Names the session to the control API and in the journal."""
    key: str
    """The secret in the agent's URL."""
    state: State
    """What it holds."""
    touched_s: float
    """When it was last used, on the sessions' clock."""
    durable: bool = False
    """Whether its calls are in the journal before they are answered."""
    calls: dict[str, RecordedCall] = field(default_factory=dict[str, RecordedCall])
    """Idempotency key → the call made under it."""
    snapshots: dict[str, State] = field(default_factory=dict[str, State])
    """Snapshot id → the state then."""


class Sessions:
    """All live sessions over one base."""

    def __init__(
        self,
        base: Base,
        run: RunTool,
        *,
        journal: Journal | None = None,
        idle_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`run` runs a tool and leaves a draft; `idle_s` is how long an unused session lives.

        With a journal, the sessions in it live again, with their keys, states, snapshots and recorded calls.
        """
        self.base = base
        self._run = run
        self._journal = journal
        self._idle_s = idle_s
        self._clock = clock
        self._by_id: dict[str, Session] = {}
        self._by_key: dict[str, Session] = {}
        self._next_sweep_s = clock() + SWEEP_EVERY_S
        for stored in journal.load(base) if journal else ():
            session = Session(stored.id, stored.key, stored.state, clock(), True, stored.calls, stored.snapshots)
            self._keep(session)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_id.values())

    def create(self, *, durable: bool | None = None, state: State | None = None) -> Session:
        """A fresh session over the base, or over `state`, which it takes. Durable if there is a journal, or as told."""
        self._sweep()
        durable = self._journal is not None if durable is None else durable
        if durable and self._journal is None:
            raise ServerError(
                "open a durable session",
                "this server keeps no journal",
                "start it with --sessions FILE, or ask for none",
            )
        session = Session(
            secrets.token_hex(8), secrets.token_urlsafe(24), state or State(self.base), self._clock(), durable
        )
        if durable and self._journal:
            self._journal.add_session(session.id, session.key, session.state)
        self._keep(session)
        return session

    def get(self, session_id: str) -> Session:
        """The session of an id. SessionUnknown where there is none."""
        return self._touched(self._by_id.get(session_id), session_id)

    def by_key(self, key: str) -> Session:
        """The session of an agent's key. SessionUnknown where there is none."""
        return self._touched(self._by_key.get(key), key)

    def call(
        self, session: Session, name: str, arguments: Mapping[str, Any], call_key: str | None = None
    ) -> ToolResult:
        """Calls a tool once: under a key that was used before, the recorded result comes back and nothing runs.

        CallKeyReused where the key stands for another call. A durable session's call is on disk when this returns.
        """
        digest = _digest(name, arguments) if call_key else ""
        if call_key and (before := session.calls.get(call_key)):
            if before.digest != digest:
                raise CallKeyReused(call_key, name, before.name)
            return before.result
        result = self._run(session.state, name, arguments)
        recorded = RecordedCall(name, digest, result)
        # Only what changed something is journalled: a read, or a call that failed, may run again after a crash.
        if session.durable and self._journal and session.state.draft():
            try:
                self._journal.add_call(session.id, session.state.draft(), call_key, recorded)
            except BaseException:
                session.state.rollback()
                raise
        session.state.commit()
        if call_key:
            session.calls[call_key] = recorded
        return result

    def fork(self, session_id: str) -> Session:
        """A new session that starts where this one stands, with its own key and no recorded calls."""
        session = self.get(session_id)
        return self.create(durable=session.durable, state=session.state.fork())

    def snapshot(self, session_id: str) -> str:
        """Keeps the state as it is now; answers the id to restore it by."""
        session = self.get(session_id)
        snapshot_id = f"{len(session.snapshots) + 1}"
        session.snapshots[snapshot_id] = session.state.fork()
        if session.durable and self._journal:
            self._journal.add_snapshot(session.id, snapshot_id, session.state)
        return snapshot_id

    def restore(self, session_id: str, snapshot_id: str) -> None:
        """Puts the state back to a snapshot. Recorded calls stay: a call that is retried later still runs once."""
        session = self.get(session_id)
        if snapshot_id not in session.snapshots:
            known = ", ".join(session.snapshots) or "none"
            raise ServerError(
                f"restore snapshot {snapshot_id!r}", f"the session's snapshots: {known}", "take one first"
            )
        session.state = session.snapshots[snapshot_id].fork()
        if session.durable and self._journal:
            self._journal.replace_state(session.id, session.state)

    def drop(self, session_id: str) -> None:
        """Ends a session; its key is worth nothing from now on. SessionUnknown where there is none."""
        self._forget(self.get(session_id))

    def expire(self) -> int:
        """Drops every session that has not been used for the idle time; answers how many."""
        oldest = self._clock() - self._idle_s
        idle = [session for session in self if session.touched_s < oldest]
        for session in idle:
            self._forget(session)
        return len(idle)

    def close(self) -> None:
        """Closes the journal."""
        if self._journal:
            self._journal.close()

    def _keep(self, session: Session) -> None:
        self._by_id[session.id] = session
        self._by_key[session.key] = session

    def _forget(self, session: Session) -> None:
        del self._by_id[session.id], self._by_key[session.key]
        if session.durable and self._journal:
            self._journal.drop_session(session.id)

    def _touched(self, session: Session | None, given: str) -> Session:
        now = self._clock()
        if session is None or session.touched_s < now - self._idle_s:
            if session is not None:
                self._forget(session)
            raise SessionUnknown(given)
        session.touched_s = now
        return session

    def _sweep(self) -> None:
        if self._clock() >= self._next_sweep_s:
            self._next_sweep_s = self._clock() + SWEEP_EVERY_S
            self.expire()


def _digest(name: str, arguments: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{name}{canonical(dict(arguments))}".encode("utf-8", "surrogatepass")).hexdigest()
