"""Flow: a trainer killed at any moment and resumed ends with the same adapters, bit for bit; nothing trains twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.recorded_runs import GroupPlan, Recorder, make_model, write_run
from traces.store import Store

pytest.importorskip("trl")
pytestmark = pytest.mark.timeout(600)

STEPS = 5
"""Checkpoints lie at 2 and 4; the kill comes at step 3."""


def adapters_of(run: Path) -> dict[str, bytes]:
    return {p.parent.name: p.read_bytes() for p in sorted(run.glob("adapters/policy-v*/adapter_model.safetensors"))}


def after_publishing_three(store: Store) -> bool:
    policy = store.latest_policy("run")
    return policy is not None and policy.version >= 3


def while_training_three(store: Store) -> bool:
    return 3 in store.consumed("run")


def kill_when(run: Path, moment: Callable[[Store], bool]) -> None:
    """Start the trainer as the main process does, and kill it at `moment`."""
    with (run / "trainer.log").open("wb") as log:
        trainer = subprocess.Popen(
            [sys.executable, "-m", "training.trainer", "--run", str(run)], stdout=log, stderr=log, env=dict(os.environ)
        )
    deadline = time.monotonic() + 240
    with Store(run / "traces.db") as store:
        while not moment(store):
            assert trainer.poll() is None, (run / "trainer.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "the trainer never came to the moment of the kill"
            time.sleep(0.005)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait(30)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run trained without a stop, and beside it the same run before its first step."""
    from training.trainer import train

    folder = tmp_path_factory.mktemp("straight")
    run = write_run(folder / "run", make_model(folder / "model"), steps=STEPS, max_staleness=9)
    with Store(run / "traces.db") as store:
        recorder = Recorder(store, "run", seed=5)
        for _ in range(STEPS * 2):
            recorder.record(GroupPlan())
        recorder.record(GroupPlan(rewards=(1.0, 1.0, None, 1.0)))
    shutil.copytree(run, folder / "untrained")
    train(run)
    return run


@pytest.mark.parametrize("moment", [while_training_three, after_publishing_three])
def test_a_killed_and_resumed_run_equals_one_without_a_stop(
    straight: Path, tmp_path: Path, moment: Callable[[Store], bool]
) -> None:
    from training.trainer import train

    run = tmp_path / "run"
    shutil.copytree(straight.parent / "untrained", run)
    kill_when(run, moment)
    train(run)

    assert len(adapters_of(straight)) == STEPS
    assert adapters_of(run) == adapters_of(straight)
    with Store(run / "traces.db") as store, Store(straight / "traces.db") as other:
        assert store.consumed("run") == other.consumed("run")
        trained = [group for groups in store.consumed("run").values() for group in groups]
        assert len(trained) == len(set(trained))
        assert [p.version for p in store.policies("run")] == list(range(STEPS + 1))
        checkpoint = store.latest_checkpoint("run")
        assert checkpoint is not None
        assert checkpoint.step == STEPS
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    expected = [json.loads(line) for line in (straight / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["loss"], row["reward"]) for row in rows] == [
        (row["step"], row["loss"], row["reward"]) for row in expected
    ]
