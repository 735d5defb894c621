"""Child processes that never outlive us: started under a guardian, logged to a file, waited for until they are ready.

Knows nothing about what a child does: not vLLM, not MCP, not training. A killed parent, a killed guardian and a killed
child each take the child's whole family along, a vLLM engine core included.
`engine.py`, `session.py`, `cli.py` and the training loop start every child of a run through `start_process`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from harness.errors import HarnessError
from harness.guardian import descendants

_GUARDIAN = Path(__file__).with_name("guardian.py")
_POLL_S = 0.05
_TAIL_BYTES = 4000


class ProcessError(HarnessError):
    """A child process: didn't start, died too early, or wasn't ready in time."""


Ready = Callable[["Process"], Awaitable[Any]]
"""Polled until it returns something other than None; what it returns becomes `Process.ready`."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to start and how to treat it."""

    argv: Sequence[str]
    """Program and arguments."""
    log_path: Path
    """Its output and errors are appended here; folders are made."""
    name: str = "child"
    """What messages call it."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to our own environment."""
    cwd: Path | None = None
    """Working directory; None for ours."""
    ready: Ready | None = None
    """How to see that it is ready; None takes it as ready at once."""
    ready_timeout_s: float = 60.0
    """Longest wait for `ready`."""
    grace_s: float = 5.0
    """Seconds between asking it to stop and killing it."""


class Process:
    """A running child."""

    def __init__(self, spec: ProcessSpec, guardian: subprocess.Popen[bytes], log_start: int) -> None:
        self.spec = spec
        self.ready: Any = None
        """What the readiness check returned."""
        self.log_start = log_start
        """Where this child's part of the log begins, in bytes."""
        self._guardian = guardian

    @property
    def pid(self) -> int:
        """Pid of the guardian, which leads the child's process group."""
        return self._guardian.pid

    @property
    def returncode(self) -> int | None:
        """Exit code of the child (128 + n for signal n); None while it runs."""
        return self._guardian.poll()

    async def wait(self) -> int:
        """Wait for the child's end, however it comes; returns its exit code."""
        # Polled: a waiting thread would outlive a cancelled wait, and pidfds are Linux only.
        while (code := self._guardian.poll()) is None:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        _kill_group(self.pid)  # a guardian that was killed leaves its family to us
        return code

    def log_tail(self) -> str:
        """The end of what this child wrote to its log, at most 4,000 bytes."""
        with self.spec.log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self.log_start, size - _TAIL_BYTES))
            return log.read().decode(errors="replace").strip()

    def error(self, found: str, fix: str) -> ProcessError:
        """An error about this child that carries its command and the end of its log."""
        tail = self.log_tail() or "(nothing was written)"
        command = " ".join(self.spec.argv)
        return ProcessError(f"{self.spec.name}: {command}", f"{found}; the end of {self.spec.log_path}:\n{tail}", fix)


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _launch(spec: ProcessSpec) -> tuple[Process, int]:
    """Start the guardian with the child under it; returns the process and the pipe end whose closing stops it."""
    spec.log_path.parent.mkdir(parents=True, exist_ok=True)
    read_end, write_end = os.pipe()
    command = [sys.executable, "-I", "-S", str(_GUARDIAN), str(read_end), str(spec.grace_s), "--", *spec.argv]
    try:
        with spec.log_path.open("ab") as log:
            log_start = log.tell()
            guardian = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **spec.env},
                cwd=spec.cwd,
                pass_fds=(read_end,),
                start_new_session=True,
            )
    except OSError as error:
        os.close(write_end)
        raise ProcessError(
            f"{spec.name}: {' '.join(spec.argv)}", str(error), "free disk space, memory or processes, then try again"
        ) from error
    finally:
        os.close(read_end)
    return Process(spec, guardian, log_start), write_end


async def _await_ready(process: Process) -> None:
    spec = process.spec
    if spec.ready is None:
        return
    deadline = asyncio.get_running_loop().time() + spec.ready_timeout_s
    while True:
        process.ready = await spec.ready(process)
        if process.ready is not None:
            return
        if process.returncode is not None:
            raise process.error(f"it ended with code {process.returncode} before it was ready", "read the log's end")
        if asyncio.get_running_loop().time() > deadline:
            raise process.error(f"not ready after {spec.ready_timeout_s:g} s", "allow more time, or read the log's end")
        await asyncio.sleep(_POLL_S)


async def _stop(process: Process, write_end: int) -> None:
    os.close(write_end)
    try:
        await asyncio.wait_for(process.wait(), process.spec.grace_s + 5.0)
    except TimeoutError:
        for pid in descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _kill_group(process.pid)
        await process.wait()


@contextlib.asynccontextmanager
async def start_process(spec: ProcessSpec) -> AsyncGenerator[Process]:
    """Start a child, wait until it is ready, and end it with all its descendants on leaving.

    Raises:
        ProcessError: it could not be started, ended before it was ready, or wasn't ready in time.
    """
    process, write_end = _launch(spec)
    try:
        await _await_ready(process)
        yield process
    finally:
        await asyncio.shield(_stop(process, write_end))


def ready_file(path: Path) -> Ready:
    """Ready when `path` holds one whole line of JSON; its value is the result. Remove a stale file first."""

    async def check(_: Process) -> Any:
        text = path.read_text() if path.exists() else ""
        return json.loads(text) if text.endswith("\n") else None

    return check


def ready_line(prefix: str = "{") -> Ready:
    """Ready when the child wrote a line that starts with `prefix`; the line is the result."""

    async def check(process: Process) -> Any:
        lines = process.spec.log_path.read_bytes()[process.log_start :].decode(errors="replace").splitlines(True)
        return next((line.strip() for line in lines if line.startswith(prefix) and line.endswith("\n")), None)

    return check


def ready_url(url: str) -> Ready:
    """Ready when a GET of `url` answers 200."""

    async def check(_: Process) -> Any:
        try:
            async with aiohttp.ClientSession() as http, http.get(url, timeout=aiohttp.ClientTimeout(2)) as answer:
                return True if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None

    return check
