"""Runs with recorded groups for tests of the trainer: a tiny model, and rollouts whose log-probabilities are its own.

It knows nothing about the trainer. Tests and benchmarks of training use it in place of engine, agents and tools.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.config import TrainingSection, WandbSection
from traces.build import ModelCall, Outcome, Place, chat_span
from traces.records import GroupRecord, RolloutRecord
from traces.span import Tokens, new_trace_id
from traces.store import Store
from traces.trajectory import Ending, Score
from training.config import TrainerConfig

VOCABULARY = 64
PREFIX = [7, 8, 9, 10, 11, 12, 13, 14] * 3
"""System prompt and tools, the same for every rollout."""

LogprobsOf = Callable[[Sequence[int]], np.ndarray]
"""Tokens (T) → log-probability of each token after the first, given those before it (T - 1)."""


def make_model(folder: Path, seed: int = 0) -> Path:
    """Write a tiny Qwen3 and a word-level tokenizer."""
    import tokenizers
    import torch
    import transformers

    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=True, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = transformers.Qwen3ForCausalLM(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)  # a spread distribution: advantages then move it
    model.save_pretrained(folder)
    words = {"<pad>": 0, "<eos>": 1} | {f"w{i}": i for i in range(2, VOCABULARY)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<pad>"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    fast.save_pretrained(folder)
    return folder


def logprobs_of(folder: Path) -> LogprobsOf:
    """The model's own log-probabilities, one row at a time."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def score(tokens: Sequence[int]) -> np.ndarray:
        ids = torch.tensor([list(tokens)])
        with torch.no_grad():
            rows = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1)
        return rows.gather(1, ids[0, 1:, None])[:, 0].numpy()

    return score


def no_logprobs(tokens: Sequence[int]) -> np.ndarray:
    """A stand-in where the values don't matter."""
    return np.full(len(tokens) - 1, -1.0, np.float32)


@dataclass(frozen=True)
class GroupPlan:
    """One group to record."""

    rewards: tuple[float | None, ...] = (1.0, 0.0, 1.0, 0.0)
    """One rollout each; None for an infrastructure failure."""
    version: int = 0
    """Policy version that sampled it."""
    turns: int = 2
    """Model calls of each rollout."""
    forked: bool = False
    """Whether the first rollout forgets its first answer, so that it has two rows."""
    length: int = 12
    """Tokens of each answer."""
    agree: float = 0.0
    """Chance of a rollout to say, at a turn, what the one before it said there, as long as it did so until then."""


class Recorder:
    """Writes groups into a store as a main process would."""

    def __init__(self, store: Store, run_id: str, logprobs: LogprobsOf = no_logprobs, seed: int = 0) -> None:
        self._store, self._run_id, self._logprobs = store, run_id, logprobs
        self._random = random.Random(seed)
        self._count = 0
        self._said: list[list[int]] = []

    def record(self, plan: GroupPlan) -> str:
        """Record one group of made-up tokens; its id."""
        task = PREFIX + self._words(5)
        self._said: list[list[int]] = []
        turns_G = [self._turns(task, plan, forked=plan.forked and not index) for index in range(len(plan.rewards))]
        return self.record_turns(turns_G, plan.rewards, plan.version)

    def record_turns(self, turns_G: list[list[Tokens]], rewards_G: Sequence[float | None], version: int) -> str:
        """Record one group of these model calls; its id."""
        number, self._count = self._count, self._count + 1
        group_id = f"{self._run_id}-g{number}"
        rollout_ids = tuple(f"{group_id}-r{index}" for index in range(len(turns_G)))
        scores: dict[str, list[Score]] = {}
        for rollout_id, turns, reward in zip(rollout_ids, turns_G, rewards_G, strict=True):
            ending = Ending.ANSWERED if reward is not None else Ending.ENGINE_ERROR
            self._rollout(rollout_id, group_id, turns, (version, ending))
            if reward is not None:
                scores[rollout_id] = [Score(value=reward, name="checks")]
        record = GroupRecord(
            group_id=group_id, run_id=self._run_id, task_id=f"t{number}", split="train", position=number,
            rollout_ids=rollout_ids,
        )  # fmt: skip
        self._store.append_group(record, scores)
        return group_id

    def _words(self, count: int) -> list[int]:
        return [self._random.randrange(2, VOCABULARY) for _ in range(count)]

    def _turns(self, task: list[int], plan: GroupPlan, *, forked: bool) -> list[Tokens]:
        turns: list[Tokens] = []
        prompt = list(task)
        before, self._said = self._said, []
        agrees = bool(before)
        for turn in range(plan.turns):
            if forked and turn == 1:
                prompt = task + self._words(4)
            agrees = agrees and self._random.random() < plan.agree
            said = before[turn] if agrees else [*self._words(plan.length - 1), 1, *self._words(6)]
            self._said.append(said)
            completion, result = said[: plan.length], said[plan.length :]
            logprobs = self._logprobs(prompt + completion)[len(prompt) - 1 :]
            tokens = (np.array(prompt, np.int32), np.array(completion, np.int32), logprobs.astype(np.float32))
            turns.append(Tokens(*tokens))
            prompt = prompt + completion + result
        return turns

    def _rollout(self, rollout_id: str, group_id: str, turns: list[Tokens], end: tuple[int, Ending]) -> None:
        version, ending = end
        place = Place(trace_id=new_trace_id(), rollout_id=rollout_id, group_id=group_id, run_id=self._run_id)
        output = {"role": "assistant", "content": "said"}
        for turn, tokens in enumerate(turns):
            call = ModelCall(
                model=f"policy-v{version}", messages=(), output=output, finish_reason="stop", tokens=tokens,
                policy_version=version,
            )  # fmt: skip
            self._store.append_spans([chat_span(place, Outcome(start_ns=turn * 2 + 1, end_ns=turn * 2 + 2), call)])
        self._store.append_rollout(
            RolloutRecord(
                rollout_id=rollout_id, group_id=group_id, run_id=self._run_id, task_id="t", split="train",
                policy_version=version, ending=ending, end_ns=10,
            )
        )  # fmt: skip


def write_run(
    folder: Path, model: Path, engine_url: str | None = None, adapter: Path | None = None, **training: Any
) -> Path:
    """A run folder with what a trainer is started with, small enough for tests; `training` goes over its settings."""
    settings = {"steps": 2, "batch_rows": 8, "group_size": 4, "lr": 1e-2, "lora_rank": 4, "checkpoint_every": 2}
    config = TrainerConfig(
        run_id=folder.name,
        model=str(model),
        engine_url=engine_url,
        adapter=str(adapter) if adapter is not None else None,
        training=TrainingSection(**{**settings, "device": "cpu", "group_timeout_s": 20.0, **training}),
        wandb=WandbSection(mode="disabled"),
    )
    config.write(folder)
    Store(folder / "traces.db").close()
    return folder
