"""`kill -9` of the gateway (which writes the spans), the process that runs rollouts (which writes their endings), the
tool server and the engine (scripted here), each at random moments: what had ended stays, whole; what had not ends as
ours and is made again.

KILL_MOMENTS sets how many moments, KILL_SEED which. Each costs the start of a process, so that nothing runs without it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.guardian import descendants
from harness.process import Process, ProcessSpec, ready_line, start_process
from tests.conftest import REPO
from tests.kill_runner import RUN, SIZE
from traces.store import Store
from traces.trajectory import Ending

MOMENTS = int(os.environ.get("KILL_MOMENTS", "0"))
SEED = os.environ.get("KILL_SEED", "0")
KEY = "a-key-of-this-test"
PATIENCE_S = 600
pytestmark = [
    pytest.mark.timeout(600 + 60 * MOMENTS),
    pytest.mark.skipif(not MOMENTS, reason="KILL_MOMENTS says how many moments; 200 take a while"),
]


class Part:
    """A server of a run that is killed and started again at the same address."""

    def __init__(self, argv: list[str], environment: dict[str, str], log: Path) -> None:
        self._argv = argv
        self._environment = environment
        self._log = log
        self._stack = AsyncExitStack()
        self._process: Process | None = None
        self.said: dict[str, str] = {}

    async def start(self) -> None:
        port = self.said["url"].rsplit(":", 1)[1].strip("/") if self.said else "0"
        spec = ProcessSpec(
            [sys.executable, "-m", *self._argv, "--port", port], self._log, name=self._argv[0],
            env=self._environment, cwd=REPO, ready=ready_line('{"'), ready_timeout_s=PATIENCE_S,
        )  # fmt: skip
        self._process = await self._stack.enter_async_context(start_process(spec))
        self.said = json.loads(str(self._process.ready))

    async def kill(self) -> None:
        assert self._process is not None
        for pid in descendants(self._process.pid):
            os.kill(pid, signal.SIGKILL)
        await asyncio.wait_for(self._process.wait(), PATIENCE_S)
        await self.stop()
        await self.start()

    async def stop(self) -> None:
        await self._stack.aclose()


class Runner:
    """The process that runs rollouts; keeps what it and its forerunners told."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self.told: dict[str, str] = {}

    async def start(self, *, drain: bool = False) -> None:
        pipe = asyncio.subprocess.PIPE
        argv = (sys.executable, "-m", "tests.kill_runner")
        self._process = await asyncio.create_subprocess_exec(*argv, cwd=REPO, stdin=pipe, stdout=pipe)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**self._settings, "drain": drain}).encode() + b"\n")
        await self._process.stdin.drain()

    async def hear(self) -> bool:
        """Wait for the next group; False at the process's end."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_S)
        self.told |= json.loads(line) if line.endswith(b"\n") else {}
        return bool(line)

    async def kill(self) -> None:
        await self.stop()
        await self.start()

    async def stop(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        while await self.hear():
            pass
        await self._process.wait()

    async def finish(self) -> int:
        """Stop the process as hard, and have another one end what is open."""
        await self.stop()
        await self.start(drain=True)
        assert self._process is not None
        while await self.hear():
            pass
        return await self._process.wait()


async def test_whatever_is_killed_whenever_nothing_that_ended_is_lost_and_the_rest_is_made_again(
    tmp_path: Path,
) -> None:
    store_path = tmp_path / "traces.db"
    engine = Part(["tests.kill_engine"], {}, tmp_path / "engine.log")
    tools = Part(["mcp_servers.retail"], {"HARNESS_CONTROL_KEY": KEY}, tmp_path / "tools.log")
    async with AsyncExitStack() as stack:
        for part in (engine, tools):
            stack.push_async_callback(part.stop)
        await asyncio.gather(engine.start(), tools.start())
        gateway_argv = ["harness.gateway", "--store", str(store_path), "--engine-url", engine.said["url"]]
        gateway = Part([*gateway_argv, "--model", "base"], {"HARNESS_ADMIN_KEY": KEY}, tmp_path / "gateway.log")
        stack.push_async_callback(gateway.stop)
        await gateway.start()
        where = {
            "store": str(store_path), "gateway_url": gateway.said["url"], "admin_key": KEY,
            "tools_url": tools.said["url"], "control_url": tools.said["control_url"], "control_key": KEY,
        }  # fmt: skip
        runner = Runner(where)
        await runner.start()
        stack.push_async_callback(runner.stop)
        ended = await kill_at_random(
            {"gateway": gateway, "tools": tools, "engine": engine, "runner": runner}, store_path
        )
        assert await runner.hear(), "nothing was made after the last kill"
        assert await runner.finish() == 0
    check_nothing_lost(store_path, ended, runner.told)


async def kill_at_random(parts: dict[str, Part | Runner], store_path: Path) -> dict[str, Ending]:
    """Kill each part as often, whichever comes next; the rollouts that were on disk as ended when something was."""
    runner = parts["runner"]
    assert isinstance(runner, Runner)
    dice = random.Random(f"moments-{SEED}")
    order = [name for _ in range(-(-MOMENTS // len(parts))) for name in parts][:MOMENTS]
    dice.shuffle(order)
    ended: dict[str, Ending] = {}
    for number, name in enumerate(order):
        assert await runner.hear(), "the process that runs rollouts ended by itself"
        await asyncio.sleep(dice.uniform(0.0, 0.6))
        began_s = time.monotonic()
        await parts[name].kill()
        with Store(store_path) as store:
            now = {one.rollout_id: one.ending for one in store.rollouts(run_id=RUN, ended=True) if one.ending}
        lost = {rollout_id for rollout_id, ending in ended.items() if now.get(rollout_id) != ending}
        assert not lost, f"kill {number}, of {name}, lost {lost}"
        ended = now
        print(f"{number:>4} {name:<8} {len(ended):>5} ended, {time.monotonic() - began_s:.1f} s", flush=True)
    return ended


def check_nothing_lost(path: Path, ended: dict[str, Ending], told: dict[str, str]) -> None:
    with Store(path) as store:
        assert store.query("check", "PRAGMA integrity_check") == [("ok",)]
        records = {record.rollout_id: record for record in store.rollouts(run_id=RUN)}
        assert {one: records[one].ending for one in ended} == ended
        assert {one: str(records[one].ending) for one in told} == told
        assert set(told.values()) == {"answered"}, "a failure that was retried is no outcome"
        assert store.open_groups(RUN) == []
        for group in store.groups(RUN):
            assert len(group.rollout_ids) == SIZE
            assert {records[one].ending for one in group.rollout_ids} == {Ending.ANSWERED}
        endings = Counter(record.ending for record in records.values())
        assert all(ending is Ending.ANSWERED or (ending and ending.is_infrastructure) for ending in endings), endings
        for rollout_id, record in records.items():
            trajectory = store.trajectory(rollout_id)
            score = trajectory.score()
            if record.ending is Ending.ANSWERED:
                assert len(trajectory.turns) == record.metrics["turns"] == 3
                assert len(trajectory.tool_calls) == record.metrics["tool_calls"] == 2
                assert all(len(turn.completion_ids_T) == len(turn.logprobs_T) > 0 for turn in trajectory.turns)
                assert score is not None
                assert score.value == 1
            else:
                assert score is None
    print(f"{MOMENTS} moments: {len(told)} rollouts told; endings {dict(endings)}")
