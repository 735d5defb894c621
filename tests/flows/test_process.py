"""Children of a run: none outlives its parent, its guardian or its stop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.guardian import descendants
from harness.process import ProcessError, ProcessSpec, ready_file, ready_line, start_process

ROOT = Path(__file__).parents[2]

# A parent of two: one in its own session (as vLLM's engine core may be), both deaf to SIGTERM where `deaf` is given.
FAMILY = """
import os, signal, subprocess, sys, time
deaf = "deaf" in sys.argv
if deaf: signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal,time;" + ("signal.signal(signal.SIGTERM, signal.SIG_IGN);" if deaf else "") + "time.sleep(600)"
kids = [subprocess.Popen([sys.executable, "-c", code], start_new_session=s) for s in (False, True)]
print("{" + ",".join(str(p) for p in [os.getpid(), *[k.pid for k in kids]]) + "}", flush=True)
time.sleep(600)
"""

PARENT = """
import asyncio, sys
from pathlib import Path
from harness.process import ProcessSpec, ready_line, start_process
async def main():
    spec = ProcessSpec([sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]), ready=ready_line())
    async with start_process(spec) as p:
        print(p.pid, p.ready, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


def pids_of(line: str) -> list[int]:
    return [int(pid) for pid in line.strip().strip("{}").split(",")]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_gone_within(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def start_parent(tmp_path: Path) -> tuple[subprocess.Popen[str], int, list[int]]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, FAMILY, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert parent.stdout is not None
    guardian, family = parent.stdout.readline().split(" ", 1)
    return parent, int(guardian), pids_of(family)


def test_a_parent_killed_hard_takes_the_whole_family_along(tmp_path: Path) -> None:
    parent, guardian, family = start_parent(tmp_path)
    assert all(alive(pid) for pid in [guardian, *family])
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(10)
    assert all_gone_within([guardian, *family], 10)


async def test_a_killed_guardian_takes_its_child_and_group_along(tmp_path: Path) -> None:
    spec = ProcessSpec([sys.executable, "-c", FAMILY], tmp_path / "log", ready=ready_line())
    async with start_process(spec) as process:
        child, same_group, own_session = pids_of(process.ready)
        os.kill(process.pid, signal.SIGKILL)
        await asyncio.wait_for(process.wait(), 10)
        assert all_gone_within([child, same_group], 10)
    os.kill(own_session, signal.SIGKILL)  # a stranger to the group with nobody left who knew it


async def test_stopping_ends_children_that_ignore_the_polite_request(tmp_path: Path) -> None:
    spec = ProcessSpec([sys.executable, "-c", FAMILY, "deaf"], tmp_path / "log", ready=ready_line(), grace_s=0.2)
    async with start_process(spec) as process:
        family = pids_of(process.ready)
        assert descendants(process.pid) == set(family)
    assert all_gone_within(family, 1)


async def test_a_child_that_ends_leaves_no_grandchildren_behind(tmp_path: Path) -> None:
    spec = ProcessSpec([sys.executable, "-c", FAMILY], tmp_path / "log", ready=ready_line())
    async with start_process(spec) as process:
        child, *rest = pids_of(process.ready)
        os.kill(child, signal.SIGKILL)
        assert await asyncio.wait_for(process.wait(), 10) == 128 + signal.SIGKILL
        assert all_gone_within(rest, 5)


async def test_a_child_that_dies_early_is_reported_with_its_own_words(tmp_path: Path) -> None:
    log = tmp_path / "deep" / "log"
    log.parent.mkdir()
    log.write_text("words of an earlier run\n")
    spec = ProcessSpec([sys.executable, "-c", "raise SystemExit('no such gizmo')"], log, "gizmo", ready=ready_line())
    with pytest.raises(ProcessError) as raised:
        async with start_process(spec):
            pass
    text = str(raised.value)
    assert "no such gizmo" in text
    assert "code 1" in text
    assert "gizmo:" in text
    assert "earlier run" not in text


async def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    spec = ProcessSpec(["no-such-command-anywhere"], tmp_path / "log", ready=ready_line())
    with pytest.raises(ProcessError, match=r"no-such-command-anywhere: No such file or directory"):
        async with start_process(spec):
            pass


async def test_a_child_that_is_never_ready_is_ended_at_the_limit(tmp_path: Path) -> None:
    spec = ProcessSpec(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        tmp_path / "log",
        ready=ready_line(),
        ready_timeout_s=0.3,
    )
    with pytest.raises(ProcessError, match=r"not ready after 0\.3 s"):
        async with start_process(spec):
            pass


async def test_a_ready_file_is_read_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    code = f"import time; open({str(path)!r}, 'w').write('{{\"url\": \"http://x\"}}\\n'); time.sleep(600)"
    spec = ProcessSpec([sys.executable, "-c", code], tmp_path / "log", ready=ready_file(path))
    async with start_process(spec) as process:
        assert process.ready == {"url": "http://x"} == json.loads(path.read_text())
        assert process.returncode is None
