"""Flow: recorded groups go through the real trainer to adapters, metrics, checkpoints and policy records."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import TrainingError
from tests.recorded_runs import GroupPlan, LogprobsOf, Recorder, logprobs_of, make_model, no_logprobs, write_run
from traces.store import Store

pytest.importorskip("trl")
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


class EngineStub:
    """Answers as an engine does that takes every adapter, and keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, bool]] = []
        """(path, adapter name, whether its folder was there and whole)."""
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                folder = Path(body.get("lora_path", "/nowhere"))
                stub.requests.append((self.path, body["lora_name"], (folder / "adapter_model.safetensors").exists()))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def engine() -> Iterator[EngineStub]:
    stub = EngineStub()
    yield stub
    stub.close()


def record(run: Path, *plans: GroupPlan, logprobs: LogprobsOf = no_logprobs) -> None:
    with Store(run / "traces.db") as store:
        recorder = Recorder(store, run.name, logprobs)
        for plan in plans:
            recorder.record(plan)


def metrics_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def adapter_of(run: Path, version: int) -> bytes:
    return (run / f"adapters/policy-v{version}/adapter_model.safetensors").read_bytes()


def train(run: Path) -> None:
    from training.trainer import train as train_run

    train_run(run)


def test_two_steps_leave_adapters_policies_checkpoint_and_metrics(tmp_path: Path, model: Path) -> None:
    run = write_run(tmp_path / "run", model)
    record(run, *[GroupPlan()] * 4, logprobs=logprobs_of(model))
    train(run)
    with Store(run / "traces.db") as store:
        policies = store.policies("run")
        assert [(p.version, p.model) for p in policies] == [(0, "base"), (1, "policy-v1"), (2, "policy-v2")]
        assert policies[0].adapter_path is None
        assert all((Path(str(p.adapter_path)) / "adapter_model.safetensors").exists() for p in policies[1:])
        assert store.consumed("run") == {1: ["run-g0", "run-g1"], 2: ["run-g2", "run-g3"]}
        checkpoint = store.latest_checkpoint("run")
        assert checkpoint is not None
        assert (checkpoint.step, [path.name for path in (run / "checkpoints").glob("step-*")]) == (2, ["step-2"])
    assert [row["step"] for row in metrics_of(run)] == [1, 2]


def test_at_the_first_step_the_trainer_agrees_with_the_sampler_token_for_token(tmp_path: Path, model: Path) -> None:
    run = write_run(tmp_path / "run", model, steps=1)
    record(run, GroupPlan(forked=True, turns=3), GroupPlan(), logprobs=logprobs_of(model))
    train(run)
    (first,) = metrics_of(run)
    assert first["ratio"] == pytest.approx(1.0, abs=1e-3)
    assert abs(first["kl"]) < 1e-4
    assert first["batch/rows"] == 9
    assert first["batch/packing_ratio"] > 1.5
    needed = {"loss", "reward", "kl", "ratio", "entropy", "grad_norm", "learning_rate", "batch/staleness"}
    assert needed | {"batch/trained_tokens_per_step", "perf/fwd_bwd_s", "policy_version"} <= first.keys()


def test_each_version_is_loaded_whole_before_it_is_announced_and_old_ones_go(
    tmp_path: Path, model: Path, engine: EngineStub
) -> None:
    run = write_run(tmp_path / "run", model, engine.url, steps=3, max_staleness=1, checkpoint_every=3)
    record(run, *[GroupPlan()] * 2, *[GroupPlan(version=1)] * 4)
    train(run)
    assert engine.requests == [
        ("/v1/load_lora_adapter", "policy-v1", True),
        ("/v1/load_lora_adapter", "policy-v2", True),
        ("/v1/load_lora_adapter", "policy-v3", True),
        ("/v1/unload_lora_adapter", "policy-v1", False),
    ]


def test_a_step_reads_no_group_before_the_version_it_trains_is_published(tmp_path: Path, model: Path) -> None:
    run = write_run(tmp_path / "run", model, steps=2, group_timeout_s=1.0)
    record(run, *[GroupPlan()] * 2)
    with pytest.raises(TrainingError, match=r"no group was closed for \d s"):
        train(run)
    with Store(run / "traces.db") as store:
        assert [policy.version for policy in store.policies("run")] == [0, 1]
        assert list(store.consumed("run")) == [1]


def test_a_step_split_into_several_passes_learns_the_same(tmp_path: Path, model: Path) -> None:
    weights: list[np.ndarray] = []
    from safetensors.numpy import load

    for name, forward_tokens in (("whole", 32_768), ("split", 120)):
        run = write_run(tmp_path / name, model, steps=1, forward_tokens=forward_tokens, loss_weight="trajectory")
        record(run, GroupPlan(forked=True), GroupPlan(turns=1, length=5), logprobs=logprobs_of(model))
        train(run)
        tensors = load(adapter_of(run, 1))
        weights.append(np.concatenate([tensors[key].ravel() for key in sorted(tensors)]))
        passes = metrics_of(run)[0]["batch/microbatches_per_step"]
        assert passes > 1 if name == "split" else passes == 1
    # AdamW's first update is lr·sign(gradient), so that gradients near 0 may differ by rounding: compare the whole.
    assert np.corrcoef(weights[0], weights[1])[0, 1] > 0.999


def test_a_loss_that_is_no_number_stops_before_anything_is_published(tmp_path: Path, model: Path) -> None:
    run = write_run(tmp_path / "run", model)
    record(run, *[GroupPlan()] * 4, logprobs=lambda tokens: np.full(len(tokens) - 1, np.nan, np.float32))
    with pytest.raises(TrainingError, match="loss is nan; policy v0 stays the newest"):
        train(run)
    with Store(run / "traces.db") as store:
        assert [policy.version for policy in store.policies("run")] == [0]
        assert store.latest_checkpoint("run") is None


def test_a_checkpoint_of_another_base_model_is_refused(tmp_path: Path, model: Path) -> None:
    run = write_run(tmp_path / "run", model)
    record(run, *[GroupPlan()] * 4)
    train(run)
    write_run(run, make_model(tmp_path / "other", seed=1), steps=3)
    with pytest.raises(TrainingError, match="whose weights are others"):
        train(run)


def test_a_run_can_start_from_an_adapter_and_serves_it_as_version_zero(
    tmp_path: Path, model: Path, engine: EngineStub
) -> None:
    first = write_run(tmp_path / "first", model)
    record(first, *[GroupPlan()] * 4)
    train(first)
    adapter = tmp_path / "adapter"
    shutil.copytree(first / "adapters/policy-v2", adapter)
    second = write_run(tmp_path / "second", model, engine.url, adapter=adapter, steps=1)
    record(second, *[GroupPlan()] * 2)
    train(second)
    with Store(second / "traces.db") as store:
        policies = store.policies("second")
        assert (policies[0].version, policies[0].model, policies[0].adapter_path) == (0, "policy-v0", str(adapter))
    assert [name for _, name, _ in engine.requests] == ["policy-v0", "policy-v1"]
    assert adapter_of(second, 1) != adapter_of(first, 1)


def test_a_start_adapter_that_is_missing_or_of_another_base_is_refused(tmp_path: Path, model: Path) -> None:
    missing = write_run(tmp_path / "missing", model, adapter=tmp_path / "nowhere")
    with pytest.raises(TrainingError, match="there is no"):
        train(missing)
    first = write_run(tmp_path / "first", model, steps=1)
    record(first, *[GroupPlan()] * 2)
    train(first)
    other = make_model(tmp_path / "other", seed=1)
    with pytest.raises(TrainingError, match="whose weights are others"):
        train(write_run(tmp_path / "second", other, adapter=first / "adapters/policy-v1"))


def test_a_finished_run_started_again_changes_nothing(tmp_path: Path, model: Path) -> None:
    run = write_run(tmp_path / "run", model)
    record(run, *[GroupPlan()] * 4)
    train(run)
    before = (adapter_of(run, 2), metrics_of(run))
    train(run)
    assert (adapter_of(run, 2), metrics_of(run)) == before


def test_a_run_folder_without_configuration_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"there is no .*trainer\.json[\s\S]*harness train"):
        train(tmp_path)
