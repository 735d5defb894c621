"""The trainer on a CUDA device: the compiled attention agrees with the plain one, and a run trains there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.recorded_runs import GroupPlan, Recorder, logprobs_of, make_model, write_run
from traces.store import Store
from training.attention import dense_tree_attention, flex_tree_attention, tree_layout

trl_packing = pytest.importorskip("trl.experimental.async_grpo.packing")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def packed_row(sequences: int, length: int) -> dict[str, torch.Tensor]:
    draw = np.random.default_rng(0)
    prefix = draw.integers(0, 1000, length // 2)
    row = trl_packing.TreeRow()
    for group_id in range(sequences):
        tokens = np.concatenate([prefix, draw.integers(0, 1000, length // 2)])
        sample = {"input_ids": tokens, "completion_mask": np.ones(len(tokens), np.int64), "advantage": 1.0}
        row.add(sample | {"old_log_probs": np.zeros(len(tokens), np.float32), "group_id": group_id})
    return row.pack()


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_compiled_attention_agrees_with_the_dense_mask_on_the_device(dtype: torch.dtype, tolerance: float) -> None:
    for sequences, length in ((4, 300), (9, 500)):
        packed = packed_row(sequences, length)
        keys = ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")
        layout = tree_layout(*(packed[key].cuda() for key in keys))
        torch.manual_seed(0)
        shapes = [(1, heads, len(packed["input_ids"]), 64) for heads in (8, 2, 2)]
        inputs = [torch.randn(shape, device="cuda", dtype=dtype).requires_grad_() for shape in shapes]
        results = []
        for attention in (flex_tree_attention, dense_tree_attention):
            out = attention(*inputs, layout, 0.125)
            results.append((out, *torch.autograd.grad(out.float().square().sum(), inputs)))
        for ours, plain in zip(*results, strict=True):
            scale = plain.float().abs().max()
            assert (ours.float() - plain.float()).abs().max() <= tolerance * max(1.0, float(scale))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recorded_groups_train_on_the_device(tmp_path: Path, dtype: str) -> None:
    from training.trainer import train

    model = make_model(tmp_path / "model")
    run = write_run(tmp_path / "run", model, steps=3, device="cuda", dtype=dtype, max_staleness=9)
    with Store(run / "traces.db") as store:
        recorder = Recorder(store, "run", logprobs_of(model))
        for _ in range(6):
            recorder.record(GroupPlan(forked=True))
    train(run)
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["policy_version"] for step in steps] == [1, 2, 3]
    if dtype == "float32":
        assert steps[0]["ratio"] == pytest.approx(1.0, abs=1e-3)
        assert abs(steps[0]["kl"]) < 1e-4
