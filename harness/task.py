"""A task: something to do with tools, as its tool server states it, and the part of it that an agent may see.

It knows nothing about servers, sessions, agents or scoring. What a grader expects is opaque here and never leaves.
Tool servers make tasks (control API), rollouts run them, agents get the `AgentTask`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from harness.errors import ToolServerError


@dataclass(frozen=True, slots=True)
class AgentTask:
    """What an agent is told: the request and the rules, and nothing of how it will be judged."""

    id: str
    """The task's id, for the agent's own logs."""
    server: str
    """Name of the tool server the task belongs to."""
    system_prompt: str
    """The rules the agent works by (the server's policy text)."""
    user_message: str
    """What the user asks."""
    allowed_tools: list[str] | None = None
    """Tools that the tool gateway will list; None for all of them."""

    def to_json(self) -> str:
        """The task as JSON text: the value of `HARNESS_TASK`."""
        return json.dumps(asdict(self), ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task of a tool server."""

    id: str
    """Unique within the server; the same seed gives the same id."""
    server: str
    """Name of the tool server that made it and grades it."""
    split: str
    """`train`, `validation` or `held_out`."""
    kind: str
    """Request kind, such as `cancel`; reports slice by it."""
    user_message: str
    """What the user asks."""
    system_prompt: str = ""
    """The rules the agent works by."""
    difficulty: int | str = 0
    """The server's own measure; reports slice by it."""
    allowed_tools: list[str] | None = None
    """Tools the agent may see; None for all of them."""
    expected: Any = None
    """What the grader compares with; opaque to us, never shown to an agent."""
    is_refusal: bool = False
    """True when the right thing is to change nothing."""
    user: dict[str, Any] = field(default_factory=dict[str, Any])
    """What a simulated user knows and wants (user.py); empty where the server says nothing; never shown to an agent."""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """Whatever else the server wants back; never shown to an agent."""

    def for_agent(self) -> AgentTask:
        """The part an agent may see."""
        return AgentTask(self.id, self.server, self.system_prompt, self.user_message, self.allowed_tools)

    def to_dict(self) -> dict[str, Any]:
        """The task as the control API takes it back, what the grader expects included."""
        return asdict(self)


def task_from_dict(raw: Mapping[str, Any], *, server: str = "") -> Task:
    """Read one task of a control API answer; `server` fills in where the answer names none.

    Unknown fields are kept in `metadata`, so that a grader gets back all that its server gave.
    Raises ToolServerError, naming the task and the field, when a required field is missing or of the wrong type.
    """
    known = {name: raw[name] for name in Task.__dataclass_fields__ if name in raw}
    known.setdefault("server", server)
    missing = [name for name in ("id", "split", "kind", "user_message") if not isinstance(known.get(name), str)]
    if missing or not isinstance(known.get("metadata", {}), Mapping):
        raise ToolServerError(
            asked=f"task {raw.get('id')!r} of the tool server {known['server']!r}",
            found=f"fields missing or not text: {missing}" if missing else "'metadata' is not an object",
            fix="make the server's task listing give id, split, kind and user_message as text, metadata as an object",
        )
    extra = {name: value for name, value in raw.items() if name not in Task.__dataclass_fields__}
    known["metadata"] = {**cast("Mapping[str, Any]", known.get("metadata") or {}), **extra}
    known["system_prompt"] = known.get("system_prompt") or ""
    return Task(**known)
