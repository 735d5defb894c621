"""What a server gives the kit to be served: a base, tools, tasks, a grader and a policy.

Knows nothing about HTTP or MCP. Made by each server's server.py; read by serve.py and control.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_servers.state import Base, State
from mcp_servers.toolbox import Toolbox, ToolResult, View

Task = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Grade:
    """How an episode ended, judged by its final state and its last answer."""

    passed: bool
    """Whether the task was solved: this alone is the reward."""
    reason: str
    """Why, for a person to read."""
    components: dict[str, float] = field(default_factory=dict[str, float])
    """Partial credit and counts by name, each its own; never mixed into `passed`."""

    def to_dict(self) -> dict[str, Any]:
        """The grade as the control API answers it."""
        value = 1 if self.passed else 0
        return {"passed": self.passed, "value": value, "components": self.components, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class ToolText:
    """What an agent is told about a tool, beside its parameters."""

    title: str
    """A short name for people."""
    description: str
    """What it does and when it refuses."""
    output: type | None = None
    """The type of the JSON object it answers (a TypedDict); None where it answers bare text."""
    idempotent: bool = False
    """For a tool that changes state: whether calling it again with the same arguments changes nothing more."""


@dataclass(frozen=True, slots=True)
class World:
    """One domain, ready to be served."""

    name: str
    """Short name, as in `python -m mcp_servers.<name>` and in the `server` of its tasks."""
    base: Base
    """The state that every session starts from."""
    toolbox: Toolbox
    """Its tools."""
    texts: Mapping[str, ToolText]
    """Tool name → what agents are told about it."""
    policy: str
    """The rules an agent works by; also served as the resource `policy://<name>`."""
    view: Callable[[State], View]
    """The session's state as the tools see it."""
    tasks: Callable[..., list[Task]]
    """`tasks(split, seed, offset, count, kinds=…, difficulty=…)`; ValueError says what was wrong with the request."""
    grade: Callable[[State, Task, str], Grade]
    """Judges a final state and a last answer against a task. ValueError where the task isn't one of this world."""
    start: Callable[[State, Task], None] | None = None
    """Puts a fresh session where its task begins; ValueError where it can't. None where all begin at the base."""

    def opening(self, task: Task | None) -> State:
        """The state that a session for a task starts with; without a task, the base's."""
        state = State(self.base)
        if task is not None and self.start is not None:
            self.start(state, task)
            state.commit()
        return state

    def run(self, state: State, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Runs a tool on a state and leaves what it did as the state's draft."""
        return self.toolbox.run(self.view(state), name, arguments)
