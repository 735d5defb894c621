"""A file of tasks, one JSON object a line, and the task server that it makes of an MCP server without tasks.

It knows nothing about how the tasks came about. Written by cli_tasks.py, opened by stack.py for `tasks.file`.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import ToolsSection
from harness.errors import ConfigError, ToolServerError
from harness.process import Process
from harness.session import Session, SessionDoor, SessionSource
from harness.session_process import PORT, ProcessPerSession, ProcessSession
from harness.task import Task, task_from_dict

TRAIN = "train"


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Write them in one rename; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.tmp")
    scratch.write_text("".join(json.dumps(task.to_dict(), ensure_ascii=False) + "\n" for task in tasks), "utf-8")
    os.replace(scratch, path)


def read_tasks(path: Path, *, server: str = "") -> list[Task]:
    """The tasks of a file; lines need `user_message`, and get an id and the split `train` where they have none.

    Raises ConfigError naming the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        fix = "make one with `harness tasks generate`, or give the path of a file with one task as JSON on each line"
        raise ConfigError(f"the task file {path}", error.strerror or str(error), fix) from error
    tasks = [_task(path, number, line, server) for number, line in enumerate(lines, start=1) if line.strip()]
    if not tasks:
        raise ConfigError(f"the task file {path}", "no tasks in it", "make some with `harness tasks generate`")
    twice = next((task.id for index, task in enumerate(tasks) if task.id in {one.id for one in tasks[:index]}), None)
    if twice is not None:
        raise ConfigError(f"the task file {path}", f"the id {twice!r} stands twice", "give each task an id of its own")
    return tasks


def _task(path: Path, number: int, line: str, server: str) -> Task:
    asked = f"line {number} of the task file {path}"
    fix = 'write it as {"user_message": "…", "split": "train"}'
    try:
        raw: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(asked, f"no JSON: {error}", fix) from error
    if not isinstance(raw, dict):
        raise ConfigError(asked, f"JSON, but no object: {line[:80]!r}", fix)
    try:
        return task_from_dict({"id": f"line-{number}", "split": TRAIN, "kind": "other", **raw}, server=server)
    except ToolServerError as error:
        raise ConfigError(asked, error.found, fix) from error


@dataclass(frozen=True, slots=True)
class TaskFileServer:
    """Tasks of a file over sessions of an MCP server that knows no tasks; a judge must score what is done with them."""

    source: SessionSource
    """Opens the sessions."""
    listed: tuple[Task, ...]
    """The tasks, in the order of the file."""
    process: Process | None = None
    """None: every session starts what it needs."""

    @property
    def name(self) -> str:
        """Name of the server."""
        return self.source.name

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
        """Tasks `offset` to `offset + count` of a split in an order that the seed fixes.

        The training split starts over at its end; of others there are as many as the file has. Raises ToolServerError
        where the file has none.
        """
        found = [
            task
            for task in self.listed
            if task.split == split and (not kinds or task.kind in kinds) and difficulty in (None, task.difficulty)
        ]
        if not found:
            narrowed = "".join([f" of the kinds {kinds}" if kinds else "", f" at {difficulty}" if difficulty else ""])
            has = sorted({task.split for task in self.listed})
            fix = "name a split that has tasks (evaluation.split), or make more with `harness tasks generate`"
            raise ToolServerError(f"tasks of split {split!r}{narrowed}", f"the task file has the splits {has}", fix)
        random.Random(seed).shuffle(found)
        if split == TRAIN:
            return [found[index % len(found)] for index in range(offset, offset + count)]
        return found[offset : offset + count]

    async def open_session(self, task: Task) -> Session:
        """A fresh session for the task; raises ToolServerError."""
        return await self.source.open_session(task)


@dataclass(frozen=True, slots=True)
class SharedServer:
    """An MCP server that somebody runs, the same for every session: for servers whose tools change nothing (law 5)."""

    name: str
    """Name of the server."""
    url: str
    """Its MCP address."""

    async def open_session(self, task: Task) -> ProcessSession:
        """The same address for every task."""
        del task
        return ProcessSession(SessionDoor(self.name, self.url), AsyncExitStack())


def third_party(section: ToolsSection, logs: Path) -> SessionSource:
    """The MCP server that a configuration names by command or by address.

    A command with `{port}` in it listens there; any other is spoken to over stdio. Raises ConfigError for a command
    that isn't there.
    """
    if section.command is None:
        return SharedServer(section.server, str(section.url))
    command = tuple(shlex.split(section.command))
    if not command or shutil.which(command[0]) is None:
        fix = "give the command line that starts the server, in quotes"
        raise ConfigError(f"tools.command = {section.command!r}", "no such command on the PATH", fix)
    if not any(PORT in part for part in command):
        command = (sys.executable, "-m", "harness.stdio_server", PORT, *command)
    return ProcessPerSession(section.server, command, logs)
