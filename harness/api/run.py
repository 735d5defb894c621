"""A registered model's run: its folder, store, engine, gateway and trainer, and what passes between them.

The folder is one that `harness show`, `eval` and `report` read like any other. It knows nothing about how rollout
functions are run (gather.py). Opened by backend.py, used by model.py.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openai.types.chat.chat_completion import Choice

from harness.api.scope import Rollout
from harness.api.trainer import CallTrainer, Taken
from harness.api.trajectory import Trajectory, TrajectoryGroup
from harness.config import Config
from harness.config_source import write_config
from harness.errors import ConfigError, TrainingError
from harness.policy import Policy
from harness.rollout import World, score_by_checks, score_later
from harness.stack import STORE_FILE, Stack, start_stack
from harness.task import Task
from traces.records import GroupRecord
from traces.store import Store
from traces.trajectory import Score
from traces.trajectory import Trajectory as Record

CONFIG_FILE = "config.toml"
ENDS_CALL = "ends_call"
"""Group metric by which the trainer sees where a call ends; read in training/batch.py."""
REWARD = "reward"
"""Name of the score that a trajectory's reward becomes."""


@dataclass(slots=True)
class Run:
    """One model's run while its backend is open."""

    config: Config
    """Its resolved configuration."""
    folder: Path
    """Its folder."""
    store: Store
    """Where its rollouts, groups and versions are."""
    stack: Stack
    """Engine, gateway and tool server."""
    trainer: CallTrainer
    """Trains what `train` closes."""
    policy: Policy
    """The newest version."""

    def start_rollout(self, task: Task | None, group_id: str, policy: Policy, temperature: float) -> Rollout:
        """A rollout that is about to open: with a session for `task`, or without tools."""
        world = self.world(temperature, graded=task is not None)
        plain = Task(id=group_id, server="none", split="train", kind="", user_message="")
        return Rollout(task or plain, policy, world, group_id)

    def world(self, temperature: float, *, graded: bool) -> World:
        """What its rollouts run in."""
        world = self.stack.world(self.config, self.store, temperature)
        return replace(world, score=score_by_checks if graded else score_later)

    async def pinned(self, name: str, version: int) -> Policy:
        """Any version of the history, served under a name that no training step takes away. Raises ConfigError."""
        if version == 0:
            return Policy(self.stack.engine.model_name)
        records = {record.version: record for record in self.store.policies(self.config.run.name)}
        record = records.get(version)
        if record is None or record.adapter_path is None:
            known = f"the versions 0 to {max(records, default=0)}"
            raise ConfigError(f"{name}@{version}", known, "ask for one of these")
        served = f"{name}@{version}"
        await self.stack.engine.load_adapter(served, Path(record.adapter_path))
        return Policy(served, version, record.adapter_path)

    async def train(self, groups: Sequence[TrajectoryGroup], config: Config) -> Taken:
        """One optimizer step on these groups, whose policy is the newest when this returns.

        Raises TrainingError for trajectories that can't be trained on, and where the trainer fails.
        """
        calls = [self._checked(group) for group in groups if len(group)]
        if not calls:
            fix = "gather rollouts first; their errors are in `group.exceptions`"
            raise TrainingError(f"train {self.config.run.name!r} on {len(groups)} groups", "no trajectory in them", fix)
        await asyncio.to_thread(self._compare_choices, groups)
        if config != self.config:
            await self.trainer.stop()
            self.config = config
            write_run_config(config, self.folder)
        last = await asyncio.to_thread(self._close, groups, calls)
        await self.trainer.start()
        taken = await self.trainer.wait_until_taken(self.store, self.config.run.name, last, self.policy.version)
        self.policy = latest_policy(self.store, self.config, self.stack.engine.model_name)
        return taken

    def close_group(
        self, group: TrajectoryGroup, split: str, position: int | None = None, *, ends: bool = False
    ) -> str:
        """Write a group with its rewards as the scores of its rollouts; its id."""
        name = self.config.run.name
        scores = {self._rollout_of(one): [_score(one)] for one in group}
        metrics = {**group.metrics, "exceptions": float(len(group.exceptions)), **({ENDS_CALL: 1.0} if ends else {})}
        record = GroupRecord(
            group_id=group.new_id(),
            run_id=name,
            task_id=group.about("task_id") or self.store.rollout(next(iter(scores))).task_id,
            kind=group.about("kind"),
            split=split,
            position=position,
            rollout_ids=tuple(scores),
            metrics=metrics,
        )
        return self.store.append_group(record, scores).group_id

    def _close(self, groups: Sequence[TrajectoryGroup], calls: Sequence[list[str]]) -> str:
        first = self.store.next_position(self.config.run.name)
        filled = [group for group in groups if len(group)]
        ids = [
            self.close_group(group, "train", first + index, ends=index == len(calls) - 1)
            for index, group in enumerate(filled)
        ]
        return ids[-1]

    def _rollout_of(self, trajectory: Trajectory) -> str:
        name = self.config.run.name
        if name not in trajectory.rollouts:
            found = f"it has rollouts of {sorted(trajectory.rollouts) or 'no model'}"
            fix = "call the model through `model.openai_client()` in a function that is gathered, or `model.rollout()`"
            raise TrainingError(f"use a trajectory as one of {name!r}", found, fix)
        return trajectory.rollouts[name]

    def _checked(self, group: TrajectoryGroup) -> list[str]:
        ids = [self._rollout_of(trajectory) for trajectory in group]
        for trajectory in group:
            if not math.isfinite(trajectory.reward):
                found = f"the reward {trajectory.reward}"
                raise TrainingError(f"train on rollout {self._rollout_of(trajectory)}", found, "give it a number")
        if len(set(ids)) < len(ids):
            found = "the same rollout twice"
            raise TrainingError(f"train on group {group.id}", found, "give each trajectory a coroutine of its own")
        return ids

    def _compare_choices(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Every choice of a trajectory must be an answer that the gateway recorded (law 1)."""
        for trajectory in (one for group in groups for one in group if one.choices()):
            record = self.store.trajectory(self._rollout_of(trajectory))
            said = {_said(turn.output_message) for turn in record.turns}
            strange = next((choice for choice in trajectory.choices() if _words(choice) not in said), None)
            if strange is not None:
                raise TrainingError(
                    f"train on rollout {record.rollout_id}",
                    f"a choice that this rollout never sampled: {str(strange.message.content)[:200]!r}",
                    "keep other models' answers, and answers you edited, as messages (dicts), not as choices",
                )


def _said(message: dict[str, Any]) -> tuple[str, str]:
    return message.get("content") or "", " ".join(call["id"] for call in message.get("tool_calls") or ())


def _words(choice: Choice) -> tuple[str, str]:
    return choice.message.content or "", " ".join(call.id for call in choice.message.tool_calls or ())


def _score(trajectory: Trajectory) -> Score:
    return Score(value=float(trajectory.reward), name=REWARD, components=dict(trajectory.metrics))


def trajectory_of(record: Record, model: str) -> Trajectory:
    """A rollout that an agent made, as a trajectory: its last conversation, with its score as the reward."""
    score = record.score()
    last = record.turns[-1] if record.turns else None
    return Trajectory(
        messages_and_choices=[] if last is None else [*last.input_messages, last.output_message],
        reward=0.0 if score is None else score.value,
        tools=None if last is None else last.tools,
        metrics={} if score is None else dict(score.components),
        metadata={"task_id": record.task_id, "kind": record.kind, "ending": record.ending.value},
        logs=[] if score is None or not score.explanation else [score.explanation],
        rollouts={model: record.rollout_id},
    )


def latest_policy(store: Store, config: Config, base_name: str) -> Policy:
    """The newest version of a run; the model itself before the first."""
    record = store.latest_policy(config.run.name)
    return Policy(base_name) if record is None else Policy(record.model, record.version, record.adapter_path)


def write_run_config(config: Config, folder: Path) -> None:
    """Write what the run is made of. Raises ConfigError."""
    write_config(config, folder / CONFIG_FILE, f"harness show {folder}   # made by the Python API")


@asynccontextmanager
async def open_run(config: Config) -> AsyncGenerator[Run]:
    """Start a run's parts, with the newest policy served; a run that a kill cut short goes on from its checkpoint."""
    folder = Path(config.run.folder) / config.run.name
    name = config.run.name
    write_run_config(config, folder)
    with Store(folder / STORE_FILE) as store:
        store.abandon_open_rollouts(name)
        checkpoint = store.latest_checkpoint(name)
        store.rollback_to(name, 0 if checkpoint is None else checkpoint.step)
        async with start_stack(config, folder, adapter_slots=config.training.max_staleness + 2) as stack:
            policy = latest_policy(store, config, stack.engine.model_name)
            if policy.adapter_path is not None:
                await stack.engine.load_adapter(policy.model, Path(policy.adapter_path))
            trainer = CallTrainer(folder, stack.engine.url, stack.engine.model_name)
            try:
                yield Run(config, folder, store, stack, trainer, policy)
            finally:
                await trainer.stop()
