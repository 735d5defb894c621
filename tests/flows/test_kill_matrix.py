"""`kill -9` of each part of a training run at a random moment: it stops and says why; `--resume` finishes it.

Real vLLM, trainer and tool server, so each part takes minutes. KILL_MATRIX names the parts to kill (`all`, or some of
PARTS with commas); KILL_SEED draws the moments. Without it only the cheapest part to lose is killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import REPO
from traces.store import Store

pytest.importorskip("trl")
pytest.importorskip("vllm")
pytestmark = pytest.mark.timeout(1500)

PARTS = {
    "trainer": "training.trainer",
    "rollouts": "harness train",
    "gateway": "harness.gateway",
    "engine": "vllm.entrypoints.openai.api_server",
    "tools": "mcp_servers.retail",
}
"""Part → what its command line holds. The process that runs rollouts is the main one."""
STEPS = 4
WITHIN_S = 600


def chosen() -> list[str]:
    asked = os.environ.get("KILL_MATRIX", "tools")
    return list(PARTS) if asked == "all" else asked.split(",")


def settings(folder: Path) -> list[str]:
    values = {
        "run.folder": str(folder),
        "training.steps": str(STEPS),
        "training.minutes": "60",
        "training.batch_rows": "8",
        "training.group_size": "4",
        "training.checkpoint_every": "1",
        "rollout.concurrency": "16",
        "evaluation.before": "false",
        "evaluation.tasks": "4",
        "evaluation.greedy": "false",
    }
    return [part for name, value in values.items() for part in ("--set", f"{name}={value}")]


async def train(folder: Path, *flags: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    argv = (sys.executable, "-m", "harness", "train", *flags)
    return await asyncio.create_subprocess_exec(*argv, cwd=REPO, stdout=pipe, stderr=pipe, limit=2**20)


def part_of(main: int, name: str) -> psutil.Process | None:
    """The newest process under `main` that runs the part; the main process itself for `rollouts`."""
    process = psutil.Process(main)
    if name == "rollouts":
        return process
    found: list[psutil.Process] = []
    for child in process.children(recursive=True):
        try:
            command = child.cmdline()
        except psutil.Error:
            continue
        if PARTS[name] in command and "guardian" not in " ".join(command):
            found.append(child)
    return found[-1] if found else None


def ended(folder: Path) -> dict[str, str]:
    with Store(folder / "demo" / "traces.db") as store:
        return {record.rollout_id: str(record.ending) for record in store.rollouts(run_id="demo", ended=True)}


@pytest.mark.parametrize("part", chosen())
async def test_a_killed_part_ends_the_run_clearly_and_resume_finishes_it(tmp_path: Path, part: str) -> None:
    rng = random.Random(f"{part}-{os.environ.get('KILL_SEED', '0')}")
    metrics = tmp_path / "demo" / "metrics.jsonl"
    run = await train(tmp_path, "--config", "examples/demo.toml", *settings(tmp_path))
    talking = asyncio.create_task(run.communicate())
    async with asyncio.timeout(WITHIN_S):
        while not (metrics.exists() and len(metrics.read_text().splitlines()) >= 1):
            assert run.returncode is None, (await talking)[1].decode()
            await asyncio.sleep(0.05)
    await asyncio.sleep(rng.uniform(0.0, 8.0))
    victim = part_of(run.pid, part)
    assert victim is not None, f"no process of {part} under the run"
    family = psutil.Process(run.pid).children(recursive=True)
    victim.send_signal(signal.SIGKILL)
    _, err = await asyncio.wait_for(talking, WITHIN_S)
    assert run.returncode != 0
    if part != "rollouts":
        assert "--resume" in err.decode()
        assert "Traceback" not in err.decode()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive, f"left behind: {alive}"
    before = ended(tmp_path)

    again = await train(tmp_path, "--resume", str(tmp_path / "demo"))
    _, err = await asyncio.wait_for(again.communicate(), WITHIN_S)
    assert again.returncode == 0, err.decode()
    after = ended(tmp_path)
    assert {rollout_id: after.get(rollout_id) for rollout_id in before} == before
    with Store(tmp_path / "demo" / "traces.db") as store:
        consumed = store.consumed("demo")
        assert sorted(consumed) == list(range(1, STEPS + 1))
        groups = [group for step in consumed.values() for group in step]
        assert len(groups) == len(set(groups)), "a group was trained twice"
        assert [record.version for record in store.policies("demo")] == list(range(STEPS + 1))
