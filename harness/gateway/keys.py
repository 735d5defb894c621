"""Live rollouts: which key opens which rollout's doors, and what both doors know about that rollout.

It knows nothing about HTTP, MCP or models. The admin API opens and seals rollouts here, both gateways look them up.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from traces.trajectory import Ending


@dataclass(frozen=True, slots=True)
class ToolDoor:
    """One tool server of a rollout."""

    name: str
    """Name of the server; prefixes a tool's name only where two servers have a tool of that name."""
    url: str
    """Its MCP address for this rollout's session (streamable HTTP). A secret: it opens the session."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Sent with every request."""
    repeats_safely: bool = False
    """True where the server keeps the once law itself: a repeated idempotency key gets the recorded result."""


@dataclass(slots=True)
class AskedCall:
    """A tool call that the model asked for; the tool gateway joins the real call to it."""

    call_id: str
    """Id the model's answer gave it."""
    name: str
    """Tool name."""
    arguments: str
    """Arguments as the model wrote them: JSON text, or what was meant to be."""
    taken: bool = False
    """True once a real call was joined to it."""


@dataclass(slots=True, kw_only=True)
class LiveRollout:
    """What both gateways know about a rollout between its opening and its seal."""

    rollout_id: str
    """Unique over all runs."""
    run_id: str
    """Its run."""
    group_id: str
    """Its group."""
    task_id: str
    """Its task."""
    trace_id: str
    """All its spans carry this trace id."""
    parent_span_id: str | None = None
    """Span that the gateways' spans hang under, unless the agent sends its own trace context."""
    model: str
    """Name the engine serves its policy under."""
    policy_version: int
    """Version of that policy."""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Sampling parameters in force, whatever the agent asks for."""
    limits: Mapping[str, float] = field(default_factory=dict[str, float])
    """`turns`, `tokens`, `wall_s`."""
    tool_servers: tuple[ToolDoor, ...] = ()
    """Its tool servers, in the order in which their tools are listed."""
    allowed_tools: frozenset[str] | None = None
    """Tools that are listed and may be called; None for all."""
    key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    """The secret in its two URLs."""
    opened_s: float = field(default_factory=time.monotonic)
    """When it was opened, on the monotonic clock."""
    limit_hit: str | None = None
    """The first limit that refused or cut a model call: `turns`, `tokens` or `wall_s`."""
    asked_calls: list[AskedCall] = field(default_factory=list[AskedCall])
    """Tool calls of the model's answers, oldest first; the model gateway appends before it answers."""
    tool_calls: int = 0
    """Calls that reached a tool server."""
    foreign_spans: int = 0
    """Spans that the agent itself has sent."""
    infrastructure_error: tuple[Ending, str] | None = None
    """First failure that was ours, with its words; the rollout ends for it."""
    sealed: bool = False
    """True once the rollout ended: nothing more is let in or recorded."""

    def fail(self, ending: Ending, detail: str) -> None:
        """Note a failure of infrastructure; the first one counts."""
        if self.infrastructure_error is None:
            self.infrastructure_error = (ending, detail)


class UnknownKey(Exception):
    """No rollout has or had this key."""


class SealedKey(Exception):
    """The rollout of this key has ended (law 7)."""


class KeyRing:
    """All rollouts of a gateway: live ones by key and by id, and of ended ones only that they have been."""

    def __init__(self) -> None:
        self._by_key: dict[str, LiveRollout] = {}
        self._by_id: dict[str, LiveRollout] = {}
        self._sealed_keys: set[bytes] = set()

    def open(self, rollout: LiveRollout) -> None:
        """Let a rollout in."""
        self._by_key[rollout.key] = rollout
        self._by_id[rollout.rollout_id] = rollout

    def find(self, key: str) -> LiveRollout:
        """The live rollout of a key; raises UnknownKey or SealedKey."""
        rollout = self._by_key.get(key)
        if rollout is not None and not rollout.sealed:
            return rollout
        raise SealedKey if rollout is not None or _trace_of(key) in self._sealed_keys else UnknownKey

    def get(self, rollout_id: str) -> LiveRollout | None:
        """The live rollout of an id."""
        return self._by_id.get(rollout_id)

    def forget(self, rollout: LiveRollout) -> None:
        """Drop a sealed rollout; its key stays refused."""
        self._by_key.pop(rollout.key, None)
        self._by_id.pop(rollout.rollout_id, None)
        self._sealed_keys.add(_trace_of(rollout.key))


def _trace_of(key: str) -> bytes:
    """What is kept of a dead key: enough to know it again, of no use to open anything."""
    return hashlib.blake2b(key.encode(), digest_size=16).digest()
