"""Benchmark: samples a second of our trainer and of TRL's padded GRPOTrainer, on the same recorded groups, in one run.

Both are trained through their own `train()`, in float32 with the same adapter, rows and optimizer. GRPOTrainer is fed
by its `rollout_func`; it pads every row to the longest, ours forwards a token shared by several rows once.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import recorded_runs
from tests.recorded_runs import GroupPlan, Recorder, write_run
from traces.store import Store
from training.batch import BatchRow
from training.config import load_trainer_config
from training.rollouts import StoreRollouts

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

NANO = Path(__file__).resolve().parents[2] / "training" / "nano" / "weights"
GROUP_SIZE, ROWS, STEPS = 8, 48, 4
PREFIX_TOKENS, TURNS, ANSWER_TOKENS = 480, 6, 24
AGREE = 0.9
"""Rollouts of a warm-started policy say the same for some turns; with 0.9 rows pack six to one, as in the demo."""


@pytest.fixture
def prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    monkeypatch.setattr(recorded_runs, "VOCABULARY", 2000)
    monkeypatch.setattr(recorded_runs, "PREFIX", [draw.randrange(2, 2000) for _ in range(PREFIX_TOKENS)])


def recorded_run(folder: Path) -> Path:
    run = write_run(
        folder, NANO, steps=STEPS, batch_rows=ROWS, group_size=GROUP_SIZE, lora_rank=16, lr=1e-4, max_staleness=99,
        checkpoint_every=1000,
    )  # fmt: skip
    plan = GroupPlan((1.0, 0.0) * (GROUP_SIZE // 2), turns=TURNS, length=ANSWER_TOKENS, agree=AGREE)
    with Store(run / "traces.db") as store:
        recorder = Recorder(store, run.name)
        for _ in range(STEPS * ROWS // GROUP_SIZE):
            recorder.record(plan)
    return run


def rows_of(run: Path) -> Iterator[BatchRow]:
    """The rows in the order in which our trainer takes them, from a copy that nothing else consumes."""
    config = load_trainer_config(run)
    with Store(run / "traces.db") as store:
        worker = StoreRollouts(store, config, lambda row, advantage: row)
        for version in range(STEPS):
            worker.update_model_version(version)
            yield from worker.next_batch().rows


def train_padded(run: Path, out: Path) -> list[float]:
    """TRL's GRPOTrainer on the run's rows; seconds of each step."""
    import peft
    import torch
    import transformers
    import trl
    from datasets import Dataset

    rows = list(rows_of(run))
    waiting = iter(rows)

    def replay(prompts: list[Any], _trainer: Any) -> dict[str, Any]:
        taken = [next(waiting) for _ in prompts]
        starts = [int(row.tokens.mask_T.argmax()) for row in taken]
        pairs = list(zip(taken, starts, strict=True))
        return {
            "prompt_ids": [row.tokens.ids_T[:start].tolist() for row, start in pairs],
            "completion_ids": [row.tokens.ids_T[start:].tolist() for row, start in pairs],
            "logprobs": [row.tokens.logprobs_T[start:].tolist() for row, start in pairs],
            "env_mask": [row.tokens.mask_T[start:].astype(int).tolist() for row, start in pairs],
            "recorded": [row.advantage for row in taken],
        }

    class Clock(transformers.TrainerCallback):
        ends: list[float] = [time.perf_counter()]  # noqa: RUF012

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(time.perf_counter())

    arguments = trl.GRPOConfig(
        output_dir=str(out), max_steps=STEPS, per_device_train_batch_size=ROWS, num_generations=GROUP_SIZE,
        gradient_accumulation_steps=1, gradient_checkpointing=False, learning_rate=1e-4, beta=0.0, bf16=False,
        use_cpu=not torch.cuda.is_available(), report_to="none", save_strategy="no", disable_tqdm=True,
        max_completion_length=4096, model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    clock = Clock()
    trainer = trl.GRPOTrainer(
        model=str(NANO), args=arguments, callbacks=[clock], rollout_func=replay,
        reward_funcs=lambda recorded, **_: recorded,
        train_dataset=Dataset.from_dict({"prompt": ["task"] * (ROWS // GROUP_SIZE * STEPS)}),
        peft_config=peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
    )  # fmt: skip
    clock.ends[0] = time.perf_counter()
    trainer.train()
    assert next(waiting, None) is None, "the padded trainer did not take every recorded row"
    return [later - earlier for earlier, later in zip(clock.ends[:-1], clock.ends[1:], strict=True)]


def test_packing_trains_more_samples_a_second_than_padding(tmp_path: Path, prefix: None) -> None:
    from training.trainer import train

    ours = recorded_run(tmp_path / "ours")
    theirs = recorded_run(tmp_path / "theirs")
    train(ours)
    steps = [json.loads(line) for line in (ours / "metrics.jsonl").read_text().splitlines()]
    packed_s = statistics.median(step["perf/step_s"] for step in steps[1:])
    padded_s = statistics.median(train_padded(theirs, tmp_path / "out")[1:])
    forwarded = statistics.mean(step["batch/forwarded_tokens_per_step"] for step in steps)
    length = steps[0]["sample/forwarded_tokens_mean"]
    print(f"\n{ROWS} rows of {length:.0f} tokens a step, {forwarded:.0f} unique tokens forwarded")
    print(f"packed (ours)      {packed_s:6.2f} s a step  {ROWS / packed_s:6.1f} samples/s")
    print(f"padded GRPOTrainer {padded_s:6.2f} s a step  {ROWS / padded_s:6.1f} samples/s")
    print(f"ratio              {padded_s / packed_s:6.2f}")
    assert packed_s < padded_s
