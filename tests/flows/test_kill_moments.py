"""`kill -9` of the gateway (which writes the spans), the tool server and the process that runs rollouts (which writes
their endings), each at random moments: what had ended stays, whole; what had not ends as ours and is made again.

KILL_MOMENTS sets how many moments, KILL_SEED which. Each costs the start of a process, so that nothing runs without it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.guardian import descendants
from harness.process import Process, ProcessSpec, ready_line, start_process
from tests.conftest import REPO
from tests.kill_runner import RUN, SIZE
from tests.rollout_world import cancel_expert
from tests.scripted_engine import ScriptedEngine, serve_engine
from traces.store import Store
from traces.trajectory import Ending

MOMENTS = int(os.environ.get("KILL_MOMENTS", "0"))
SEED = os.environ.get("KILL_SEED", "0")
KEY = "a-key-of-this-test"
PATIENCE_S = 240
pytestmark = [
    pytest.mark.timeout(300 + 30 * MOMENTS),
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
            env=self._environment, ready=ready_line('{"'), ready_timeout_s=PATIENCE_S,
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
        assert self._process is not None
        self._process.kill()
        while await self.hear():
            pass
        await self._process.wait()
        await self.start()

    async def finish(self) -> int:
        """Stop the process as hard, and have another one end what is open."""
        assert self._process is not None
        self._process.kill()
        while await self.hear():
            pass
        await self._process.wait()
        await self.start(drain=True)
        while await self.hear():
            pass
        return await self._process.wait()


async def test_whatever_is_killed_whenever_nothing_that_ended_is_lost_and_the_rest_is_made_again(
    tmp_path: Path,
) -> None:
    dice = random.Random(f"moments-{SEED}")
    store_path = tmp_path / "traces.db"
    async with serve_engine(ScriptedEngine(cancel_expert)) as engine_url:
        gateway_argv = ["harness.gateway", "--store", str(store_path), "--engine-url", engine_url, "--model", "base"]
        gateway = Part(gateway_argv, {"HARNESS_ADMIN_KEY": KEY}, tmp_path / "gateway.log")
        tools = Part(["mcp_servers.retail"], {"HARNESS_CONTROL_KEY": KEY}, tmp_path / "tools.log")
        await asyncio.gather(gateway.start(), tools.start())
        where = {
            "store": str(store_path), "gateway_url": gateway.said["url"], "admin_key": KEY,
            "tools_url": tools.said["url"], "control_url": tools.said["control_url"], "control_key": KEY,
        }  # fmt: skip
        runner = Runner(where)
        await runner.start()
        parts = {"gateway": gateway, "tools": tools, "runner": runner}
        order = [name for _ in range(-(-MOMENTS // len(parts))) for name in parts][:MOMENTS]
        dice.shuffle(order)
        for name in order:
            assert await runner.hear(), "the process that runs rollouts ended by itself"
            await asyncio.sleep(dice.uniform(0.0, 0.6))
            await parts[name].kill()
        assert await runner.hear(), "nothing was made after the last kill"
        assert await runner.finish() == 0
        await gateway.stop()
        await tools.stop()
    check_nothing_lost(store_path, runner.told)


def check_nothing_lost(path: Path, told: dict[str, str]) -> None:
    with Store(path) as store:
        assert store.query("check", "PRAGMA integrity_check") == [("ok",)]
        records = {record.rollout_id: record for record in store.rollouts(run_id=RUN)}
        assert {one: records[one].ending.value for one in told} == told
        assert set(told.values()) == {"answered"}, "a failure that was retried is no outcome"
        assert store.open_groups(RUN) == []
        for group in store.groups(RUN):
            assert len(group.rollout_ids) == SIZE
        endings = Counter(record.ending for record in records.values())
        assert None not in endings
        assert all(ending is Ending.ANSWERED or ending.is_infrastructure for ending in endings)
        for rollout_id, record in records.items():
            trajectory = store.trajectory(rollout_id)
            if record.ending is Ending.ANSWERED:
                assert len(trajectory.turns) == record.metrics["turns"] == 3
                assert len(trajectory.tool_calls) == record.metrics["tool_calls"] == 2
                assert all(len(turn.completion_ids_T) == len(turn.logprobs_T) > 0 for turn in trajectory.turns)
                assert trajectory.score().value == 1
            else:
                assert trajectory.score() is None
    print(f"{MOMENTS} moments: {len(told)} rollouts told; endings {dict(endings)}")
