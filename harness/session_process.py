"""Sessions for MCP servers that are not ours: no state control, so every session is a process of its own.

It knows nothing about grading (such servers have no grader; a judge scores their rollouts), agents or models.
Called by rollout.py through the same face as a tool server of ours.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import JudgeError, ToolServerError
from harness.process import ProcessError, ProcessSpec, start_process
from harness.session import SessionDoor
from harness.task import Task

PORT = "{port}"
"""Stands in the command for the port that the server is to listen on."""


@dataclass(frozen=True, slots=True)
class ProcessPerSession:
    """An MCP server (streamable HTTP) that is started afresh for every session."""

    name: str
    """Name of the server."""
    command: tuple[str, ...]
    """Its command line, with `{port}` where the port belongs."""
    log_folder: Path
    """Every session's output goes to a file in it."""
    path: str = "/mcp"
    """Path of its MCP endpoint."""
    start_timeout_s: float = 60.0
    """Longest wait until it listens."""
    _numbers: itertools.count[int] = field(default_factory=itertools.count, repr=False)

    async def open_session(self, task: Task) -> ProcessSession:
        """Start the server on a free port of this machine; raises ToolServerError."""
        port = _free_port()
        spec = ProcessSpec(
            tuple(part.replace(PORT, str(port)) for part in self.command),
            self.log_folder / f"tools-{self.name}-{next(self._numbers)}.log",
            name=f"tool server {self.name!r}",
            ready=lambda _: _listens(port),
            ready_timeout_s=self.start_timeout_s,
            grace_s=1.0,
        )
        stack = AsyncExitStack()
        try:
            await stack.enter_async_context(start_process(spec))
        except ProcessError as error:
            raise ToolServerError(error.asked, error.found, error.fix) from error
        return ProcessSession(SessionDoor(self.name, f"http://127.0.0.1:{port}{self.path}"), stack)


@dataclass(frozen=True, slots=True)
class ProcessSession:
    """A running server that belongs to one rollout."""

    door: SessionDoor
    """How the tool gateway reaches it."""
    stack: AsyncExitStack
    """Ends the process."""

    async def grade(self, task: Task, answer: str | None) -> dict[str, Any]:
        """Such a server can't grade; raises JudgeError."""
        asked = f"a grade of task {task.id!r} from the tool server {self.door.name!r}"
        raise JudgeError(asked, "it is a third party's and has no grader", "score its rollouts with --reward ruler")

    async def close(self) -> None:
        """End the process with everything it started."""
        await self.stack.aclose()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


async def _listens(port: int) -> bool | None:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return None
    writer.close()
    return True
