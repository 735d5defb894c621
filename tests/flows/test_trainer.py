"""Flow: recorded groups go through the real trainer to adapters, metrics, checkpoints and policy records."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.config import TrainingSection, WandbSection
from tests.recorded_runs import GroupPlan, Recorder, logprobs_of, make_model
from traces.store import Store
from training.config import TrainerConfig

pytest.importorskip("trl")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def write_run(folder: Path, model: Path, groups: int = 8, **training: Any) -> Path:
    settings = {"steps": 2, "batch_rows": 8, "group_size": 4, "lr": 1e-2, "lora_rank": 4, "checkpoint_every": 2}
    config = TrainerConfig(
        run_id=folder.name,
        model=str(model),
        training=TrainingSection(**{**settings, "device": "cpu", "group_timeout_s": 20.0, **training}),
        wandb=WandbSection(mode="disabled"),
    )
    config.write(folder)
    with Store(folder / "traces.db") as store:
        recorder = Recorder(store, folder.name, logprobs_of(model))
        for _ in range(groups):
            recorder.record(GroupPlan())
    return folder


def metrics_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_two_steps_leave_adapters_policies_checkpoint_and_metrics(tmp_path: Path, model: Path) -> None:
    from training.trainer import train

    run = write_run(tmp_path / "run", model)
    train(run)

    with Store(run / "traces.db") as store:
        policies = store.policies("run")
        assert [(p.version, p.model) for p in policies] == [(0, "base"), (1, "policy-v1"), (2, "policy-v2")]
        assert policies[0].adapter_path is None
        assert all((Path(str(p.adapter_path)) / "adapter_model.safetensors").exists() for p in policies[1:])
        assert store.consumed("run") == {1: ["run-g0", "run-g1"], 2: ["run-g2", "run-g3"]}
        checkpoint = store.latest_checkpoint("run")
        assert checkpoint is not None
        assert (checkpoint.step, os.listdir(run / "checkpoints")) == (2, [".staging", "step-2"])
    steps = metrics_of(run)
    assert [row["step"] for row in steps] == [1, 2]
    first = steps[0]
    print(json.dumps(first, indent=1))
    assert first["ratio"] == pytest.approx(1.0, abs=1e-3)
    assert abs(first["kl"]) < 1e-4
