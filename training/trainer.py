"""The trainer process: TRL's asynchronous GRPO over groups from the store; the one file that imports TRL and PEFT.

It knows nothing about agents, tools or scoring, and starts no rollout: it waits for groups, steps, publishes.
`training.loop` starts it as `python -m training.trainer --run runs/<name>`; `rollouts.py` brings the groups,
`attention.py` the packed attention, `publish.py` takes the adapters, the store keeps checkpoints and consumption.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from datasets import Dataset
from peft import PeftModel
from transformers import AttentionInterface, AutoTokenizer, PrinterCallback, TrainerCallback
from transformers.utils import logging as transformers_logging
from trl.experimental.async_grpo import async_grpo_trainer
from trl.experimental.async_grpo.async_grpo_config import AsyncGRPOConfig
from trl.experimental.async_grpo.async_grpo_trainer import (
    AsyncGRPOTrainer,
    DataCollatorForRollout,
    RolloutQueueDataset,
)
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
from trl.experimental.async_grpo.packing import TREE_ATTENTION, TreeRow

from harness.errors import HarnessError, TrainingError
from traces.database import StoreError
from traces.records import CheckpointRecord
from traces.store import Store
from training.attention import tree_attention
from training.batch import BatchRow
from training.config import CHECKPOINTS_FOLDER, STORE_FILE, TrainerConfig, load_trainer_config
from training.lora import load_start_adapter, lora_config
from training.metrics import MetricsLog
from training.publish import BASE_FILE, Publisher, base_fingerprint, check_base, place_folder
from training.rollouts import StoreRollouts, rewind

_STAGING = ".staging"


def make_sample(row: BatchRow, advantage: float) -> RolloutSample:
    """A row as TRL's queue takes it; `advantage` carries the loss weight."""
    return RolloutSample(
        prompt=[],
        completion=[],
        input_ids=row.tokens.ids_T.astype(np.int64),
        completion_mask=row.tokens.mask_T.astype(np.int64),
        old_log_probs=row.tokens.logprobs_T,
        advantage=advantage,
        model_version=row.version,
        group_id=row.group_seq,
        metrics={},
        enqueued_at=time.time(),
    )


class _Steps(torch.utils.data.IterableDataset[dict[str, Any]]):
    """One item an optimizer step: its rows, packed into micro-batches, read when the step begins and not before."""

    def __init__(self, worker: StoreRollouts, samples: Iterator[dict[str, Any]], collate: Any, budget: int) -> None:
        self._worker, self._samples, self._collate, self._budget = worker, samples, collate, budget

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            count = len(self._worker.next_batch().rows)
            micro_batches = [self._collate([[row]]) for row in self._pack(count)]
            total = sum(float(micro["global_n_tokens"][0]) for micro in micro_batches)
            for micro in micro_batches:
                # TRL takes a mean over each micro-batch's tokens; this makes their sum the mean over the step's.
                micro["advantages"] *= float(micro["global_n_tokens"][0]) / total
            yield {"micro_batches": micro_batches}

    def _pack(self, count: int) -> list[TreeRow]:
        packed = [TreeRow()]
        for _ in range(count):
            sample = next(self._samples)
            if packed[-1].samples and not packed[-1].fits(sample, self._budget):
                packed.append(TreeRow())
            packed[-1].add(sample)
        return packed


class GroupTrainer(AsyncGRPOTrainer):
    """TRL's trainer with our batches, our publishing under `policy-v<N>`, and checkpoints that are whole or absent."""

    def __init__(self, config: TrainerConfig, run_dir: Path, store: Store) -> None:
        self._config, self._run_dir, self._store = config, run_dir, store
        self._base = base_fingerprint(config.model)
        self._publisher = Publisher(store, config, run_dir)
        if not torch.cuda.is_available():
            # TRL asks CUDA for a device name.
            cast(Any, async_grpo_trainer).get_peak_flops_per_device = lambda *_: None
        self._tokenizer: Any = AutoTokenizer.from_pretrained(config.model)
        super().__init__(
            model=config.model,
            args=_arguments(config, run_dir),
            # Required, never read: rollouts come from the store.
            train_dataset=Dataset.from_dict({"prompt": [""]}),
            processing_class=self._tokenizer,
            peft_config=lora_config(config),
            rollout_worker=cast(Any, StoreRollouts(store, config, make_sample)),
            weight_transfer=cast(Any, _NoTransfer()),
        )
        self.remove_callback(PrinterCallback)
        # Building the trainer registered a kernel that needs a Hopper GPU and a download.
        AttentionInterface.register(TREE_ATTENTION, tree_attention)
        if config.adapter is not None:
            load_start_adapter(cast(PeftModel, self.model), config)

    def get_train_dataloader(self) -> Any:
        """Steps as they are needed. Not prepared by accelerate, which would read one step ahead and wait for ever."""
        worker = cast(StoreRollouts, cast(Any, self.rollout_worker))
        self._rollout_dataset = RolloutQueueDataset(
            rollout_queue=worker.rollout_buffer,
            model_version_fn=lambda: self.model_version,
            check_health_fn=worker.check_health,
            stale_after_s=self._config.training.group_timeout_s,
            metrics=self._metrics["train"],
            max_staleness=self._config.training.max_staleness,
        )
        collate = DataCollatorForRollout(
            int(self._tokenizer.pad_token_id), groups_trained=self._trained_groups, metrics=self._metrics["train"]
        )
        samples = cast(Iterator[dict[str, Any]], iter(self._rollout_dataset))
        steps = _Steps(worker, samples, collate, self._config.training.forward_tokens)
        return torch.utils.data.DataLoader(steps, batch_size=None)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward over the step's micro-batches; the step's loss.

        Raises TrainingError where the loss is not a number, before anything is updated.
        """
        losses = [super(GroupTrainer, self).training_step(model, micro, None) for micro in inputs["micro_batches"]]
        loss = torch.stack(losses).sum()
        self._require_finite("loss", loss)
        return loss

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """A linear rise over `warmup_steps`, then constant; unlike the stock schedule its first step learns."""
        rise = self._config.training.warmup_steps + 1
        optimizer = optimizer if optimizer is not None else self.optimizer
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / rise))
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        optimizer, scheduler = cast(Any, self.optimizer), cast(Any, self.lr_scheduler)
        if optimizer is None or scheduler is None or checkpoint is None:
            return
        # The checkpoint brings its own learning rate along, but the configuration says what holds from now on.
        scheduler.base_lrs = [self.args.learning_rate for _ in scheduler.base_lrs]
        for group, base, factor in zip(optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):
            group["initial_lr"], group["lr"] = base, base * factor(scheduler.last_epoch)
        scheduler._last_lr = [group["lr"] for group in optimizer.param_groups]

    def floating_point_ops(self, inputs: Any) -> int:
        """Not estimated: the base class expects one flat batch."""
        return 0

    def _clip_grad_norm(self, model: Any) -> Any:
        norm: Any = super()._clip_grad_norm(model)
        self._require_finite("gradient norm", norm)
        return norm

    def _require_finite(self, name: str, value: torch.Tensor | float) -> None:
        if not torch.isfinite(torch.as_tensor(value)):
            step = self.state.global_step + 1
            found = f"the {name} is {float(value)}; policy v{self.model_version} stays the newest"
            fix = "lower training.lr or training.max_grad_norm, then `harness train --resume` from the last checkpoint"
            raise TrainingError(f"train step {step} of run {self._config.run_id!r}", found, fix)

    def _sync_weight(self) -> None:
        started = time.perf_counter()
        version = int(self.state.global_step)
        self._publisher.publish(version, self._save_adapter)
        self.model_version = version
        cast(Any, self.rollout_worker).update_model_version(version)
        self._metrics["train"]["perf/publish_s"].append(time.perf_counter() - started)

    def _save_adapter(self, folder: Path) -> None:
        model = cast(PeftModel, self.accelerator.unwrap_model(self.model))
        # Without the flag PEFT looks up the base model's vocabulary to see whether embeddings were resized.
        model.save_pretrained(str(folder), save_embedding_layers=False)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        step = int(self.state.global_step)
        staged = Path(str(self.args.output_dir)) / f"checkpoint-{step}"
        (staged / BASE_FILE).write_text(json.dumps({"base": self._base, "model": self._config.model}) + "\n")
        kept = self._run_dir.resolve() / CHECKPOINTS_FOLDER
        folder = kept / f"step-{step}"
        place_folder(staged, folder)
        record = CheckpointRecord(
            run_id=self._config.run_id, step=step, path=str(folder), policy_version=self.model_version
        )
        self._store.append_checkpoint(record)
        found = sorted(kept.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
        for old in found[: -self._config.training.keep_checkpoints]:
            shutil.rmtree(old)


class _NoTransfer:
    """TRL's weight transfer, unused: versions are published as adapters."""

    def init_weight_transfer(self) -> None:
        """Nothing to set up."""

    def destroy(self) -> None:
        """Nothing to release."""


class _LogMetrics(TrainerCallback):
    def __init__(self, metrics: MetricsLog, trainer: GroupTrainer) -> None:
        self._metrics, self._trainer = metrics, trainer

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs: dict[str, Any] | None = kwargs.get("logs")
        if logs is None or "loss" not in logs:
            return  # the closing summary of the base class
        numbers = {key: float(value) for key, value in logs.items() if isinstance(value, int | float)}
        extra = {"policy_version": float(self._trainer.model_version), "time": time.time()}
        self._metrics.log(int(state.global_step), {**numbers, **extra})
        shown = ("reward", "loss", "ratio", "kl", "entropy", "grad_norm", "batch/rows", "perf/fwd_bwd_s")
        print(f"step {state.global_step}", *(f"{key} {numbers[key]:.4g}" for key in shown), sep="  ", flush=True)


def _arguments(config: TrainerConfig, run_dir: Path) -> AsyncGRPOConfig:
    training = config.training
    on_cpu = training.device == "cpu" or not torch.cuda.is_available()
    half = training.dtype == "bfloat16"
    return AsyncGRPOConfig(
        output_dir=str(run_dir / CHECKPOINTS_FOLDER / _STAGING),
        max_steps=training.steps,
        learning_rate=training.lr,
        max_grad_norm=training.max_grad_norm,
        weight_decay=0.0,
        epsilon=training.epsilon,
        epsilon_high=training.epsilon_high,
        temperature=config.temperature,
        num_generations=training.group_size,
        max_staleness=training.max_staleness,
        per_device_train_batch_size=training.batch_rows,
        gradient_accumulation_steps=1,
        gradient_checkpointing=training.gradient_checkpointing,
        token_budget=0,
        weight_sync_steps=1,
        heartbeat_stale_after_s=training.group_timeout_s,
        dtype=training.dtype,
        bf16=half,
        use_cpu=on_cpu,
        seed=config.seed,
        save_strategy="steps",
        save_steps=training.checkpoint_every,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


def train(run_dir: Path) -> None:
    """Train the run to its last step, from its newest checkpoint if it has one.

    Raises:
        HarnessError: TrainingError, EngineError or ConfigError, as the message says.
        StoreError: the store can't be read or written.
        OSError: a file can't be written.
    """
    config = load_trainer_config(run_dir)
    transformers_logging.set_verbosity_error()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    store = Store(run_dir / STORE_FILE, create=False)
    checkpoint = rewind(store, config.run_id)
    shutil.rmtree(run_dir / CHECKPOINTS_FOLDER / _STAGING, ignore_errors=True)
    if checkpoint is not None:
        check_base(Path(checkpoint.path), config.model)
        if checkpoint.step >= config.training.steps:
            return
    trainer = GroupTrainer(config, run_dir, store)
    metrics = MetricsLog(run_dir, config)
    metrics.rewind(checkpoint.step if checkpoint is not None else 0)
    trainer.add_callback(_LogMetrics(metrics, trainer))
    try:
        trainer.train(resume_from_checkpoint=checkpoint.path if checkpoint is not None else None)
    finally:
        metrics.close()
        store.close()


def main() -> int:
    """Train the run named on the command line; 1 and a message where that is not possible."""
    parser = argparse.ArgumentParser(prog="python -m training.trainer", description="Train one run from its store.")
    parser.add_argument("--run", type=Path, required=True, help="run folder with trainer.json and traces.db")
    return train_and_tell(parser.parse_args().run)


def train_and_tell(run_dir: Path) -> int:
    """Train the run; 0, or 1 and a message on standard error where that is not possible."""
    try:
        train(run_dir)
    except (HarnessError, StoreError) as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        fix = "check the model's folder, free space and rights, then `harness train --resume` the run"
        print(TrainingError(f"train the run in {run_dir}", str(error), fix), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
