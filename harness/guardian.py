"""The small process between us and a child: it ends the child's whole family when we end, however we end.

Run as a script, by path, with the interpreter's start-up kept short; it imports nothing of ours and knows nothing about
what it guards. It holds the read end of a pipe: when the pipe closes (we stopped the child, crashed or were killed), it
ends the family, politely first. When the child ends, it ends what the child left behind and exits with its code.
Started by `process.py` only: `guardian.py <pipe fd> <grace seconds> -- argv…`.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_POLL_S = 0.02
_SPAWN_FAILED = 127  # sh(1)'s code for a command that isn't there


def _prctl(option: int, value: int) -> None:
    """Ask Linux for a process attribute; elsewhere the pipe and the process group have to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _spawn(argv: list[str], guardian_pid: int) -> int:
    """Fork and execute `argv` in the guardian's process group; returns the child's pid."""
    child = os.fork()
    if child:
        return child
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guardian_pid:
        os._exit(_SPAWN_FAILED)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        os._exit(_SPAWN_FAILED)


def _parents() -> dict[int, int]:
    """Pid → parent pid of every living process; empty where there is no /proc."""
    found: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # Field 2 is the command in brackets and may hold spaces: fields are counted after its last ")".
            state, parent = entry.read_text(errors="replace").rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # ended while we looked
        if state != "Z":
            found[int(entry.parent.name)] = int(parent)
    return found


def descendants(root: int) -> set[int]:
    """Living descendants of `root`, those that left its process group included."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    family: set[int] = set()
    ahead = [root]
    while ahead:
        fresh = [pid for pid in children.get(ahead.pop(), []) if pid not in family]
        family.update(fresh)
        ahead.extend(fresh)
    return family


def _signal_family(number: int) -> None:
    for pid in descendants(os.getpid()):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue  # ended by itself


def _reap(child: int) -> int | None:
    """Collect every ended child; the guarded one's exit code when it is among them, else None."""
    code: int | None = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == child:
            code = os.waitstatus_to_exitcode(status)


def _end_family(child: int, grace_s: float) -> int | None:
    """SIGTERM to all, SIGKILL to what is left after `grace_s`; the guarded child's exit code where it was seen."""
    code: int | None = None
    _signal_family(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while descendants(os.getpid()) and time.monotonic() < deadline:
        seen = _reap(child)
        code = code if seen is None else seen
        time.sleep(_POLL_S)
    while descendants(os.getpid()):
        _signal_family(signal.SIGKILL)
        time.sleep(_POLL_S)
        seen = _reap(child)
        code = code if seen is None else seen
    seen = _reap(child)
    return code if seen is None else seen


def _wake_only(_number: int, _frame: FrameType | None) -> None:
    """A handler has to be set for a signal to reach the wake-up pipe."""


def _guard(pipe: int, grace_s: float, argv: list[str]) -> int:
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _wake_only)
    os.set_inheritable(pipe, False)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = _spawn(argv, os.getpid())
    while True:
        ready, _, _ = select.select([pipe, wake_read], [], [])
        if wake_read in ready:
            asked_to_stop = any(number != signal.SIGCHLD for number in os.read(wake_read, 4096))
            code = _reap(child)
            if code is not None:
                _end_family(child, grace_s)
                return code
            if asked_to_stop:
                break
        if pipe in ready:
            break
    code = _end_family(child, grace_s)
    return -signal.SIGKILL if code is None else code


def main() -> None:
    """Guard the command after `--`, then exit with its code (128 + n for signal n, as shells do)."""
    pipe, grace_s, _, *argv = sys.argv[1:]
    code = _guard(int(pipe), float(grace_s), argv)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
