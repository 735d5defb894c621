"""What a stack's tool server is to those who draw tasks and open sessions, and the one that has neither.

It knows nothing about processes or HTTP. Opened by stack.py; session.py and scenarios/taskfile.py have the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harness.errors import JudgeError, ToolServerError
from harness.process import Process
from harness.session import SessionDoor, SessionSource
from harness.task import Task

NO_TOOLS = "none"
"""`tools.server` of runs whose agents have no tools of ours."""


class TaskServer(SessionSource, Protocol):
    """A source of sessions that also has tasks."""

    @property
    def process(self) -> Process | None:
        """Its process; None where none of ours must stay alive."""
        ...

    async def tasks(
        self,
        split: str,
        *,
        seed: int = 0,
        offset: int = 0,
        count: int = 1,
        kinds: Sequence[str] = (),
        difficulty: int | None = None,
    ) -> list[Task]:
        """Tasks `offset` to `offset + count` of a split; the same arguments give the same tasks."""
        ...


@dataclass(frozen=True, slots=True)
class NoTools:
    """No tool server: rollouts have a model and nothing else."""

    name: str = NO_TOOLS
    """Its name."""
    process: Process | None = None
    """None."""

    async def tasks(self, split: str, **_: Any) -> list[Task]:
        """There are none; raises ToolServerError."""
        fix = "name a tool server (tools.server), or a file of tasks (tasks.file)"
        raise ToolServerError(f"tasks of split {split!r}", "the run has no tool server", fix)

    async def open_session(self, task: Task) -> NoSession:
        """A session without tools."""
        del task
        return NoSession()


@dataclass(frozen=True, slots=True)
class NoSession:
    """A session without tools or state."""

    @property
    def door(self) -> SessionDoor:
        """An address of nothing: the rollout's tool gateway lists no tools."""
        return SessionDoor(NO_TOOLS, "")

    async def grade(self, task: Task, answer: str | None) -> dict[str, Any]:
        """There is nothing to grade; raises JudgeError."""
        del answer
        fix = "score its rollouts with --reward ruler, or in your own function"
        raise JudgeError(f"a grade of task {task.id!r}", "the run has no tool server", fix)

    async def close(self) -> None:
        """Nothing to drop."""
