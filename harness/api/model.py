"""The models of the Python API: one that is trained, any version of it, and ones that are only prompted.

A trainable model is its run (run.py) under the names that ART's users know. It knows nothing about processes, HTTP or
how a step is made. Made by the user's code, registered with backend.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from openai import AsyncOpenAI
from pydantic import ValidationError

from harness.agent import Run as AgentRun
from harness.agent import load_agent
from harness.api.client import RolloutClient
from harness.api.log import write_log
from harness.api.run import Run, trajectory_of
from harness.api.scope import Rollout, RolloutFailed, Scope, current_scope, entered
from harness.api.trajectory import Trajectory, TrajectoryGroup
from harness.config import Config, TrainingSection
from harness.errors import ConfigError, HarnessError
from harness.policy import Policy
from harness.rollout import run_rollout
from harness.task import Task


class Backend(Protocol):
    """What a model is registered with."""

    async def open_run(self, model: TrainableModel) -> Run:
        """Start the model's run."""
        ...

    def folder_of(self, model: Model) -> Path:
        """Where a model's logs go."""
        ...


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How a `train` call learns, where that differs from the model's settings."""

    learning_rate: float | None = None
    """Learning rate; None for `training.lr` of the model."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further keys of `[training]`, such as `{"epsilon": 0.1}`; another value than before restarts the trainer."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a `train` call did."""

    step: int
    """The model's step after it."""
    trained: bool
    """False where no group had rewards that differ, so that there was nothing to learn."""
    metrics: dict[str, float]
    """Numbers of the step: loss, reward, ratio, kl, rows, …; empty where nothing was trained."""


@dataclass(slots=True, eq=False)
class Model:
    """A model that is prompted and not trained: any OpenAI-compatible endpoint."""

    name: str
    """Its name in logs."""
    project: str
    """Folder that its logs go into."""
    inference_model_name: str = ""
    """What the endpoint calls it."""
    inference_base_url: str | None = None
    """The endpoint; None for OpenAI's own."""
    inference_api_key: str | None = field(default=None, repr=False)
    """Its key; None leaves it to the environment."""
    config: Any = None
    """Whatever your rollout function wants to know about it."""
    _folder: Path | None = field(default=None, repr=False)

    async def register(self, backend: Backend) -> None:
        """Say where its logs go."""
        self._folder = backend.folder_of(self)

    def openai_client(self) -> AsyncOpenAI:
        """A client of its endpoint."""
        return AsyncOpenAI(base_url=self.inference_base_url, api_key=self.inference_api_key)

    def get_inference_name(self) -> str:
        """What to ask its endpoint for."""
        return self.inference_model_name or self.name

    async def get_step(self) -> int:
        """Such a model stays at step 0."""
        return 0

    async def log(self, groups: Iterable[TrajectoryGroup], split: str = "val") -> dict[str, float]:
        """Write trajectories and their mean numbers to the model's folder; the numbers."""
        listed = list(groups)
        if self._folder is None:
            raise _unregistered(self.name, "log")
        return await asyncio.to_thread(write_log, self._folder, listed, split, await self.get_step())


@dataclass(slots=True, eq=False)
class TrainableModel:
    """A model that learns from its own rollouts."""

    name: str
    """Name of its run: letters, digits, dot, dash, underscore."""
    project: str
    """Folder that its run lies in."""
    base_model: str = "nano"
    """`nano`, a folder, or a Hugging Face id."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keys of the configuration tree: `{"training.lora_rank": 8, "rollout.temperature": 1.0}`."""
    config: Any = None
    """Whatever your rollout function wants to know about it."""
    _run: Run | None = field(default=None, repr=False)
    _pin: tuple[Policy | None, float | None] = field(default=(None, None), repr=False)
    _client: AsyncOpenAI | None = field(default=None, repr=False)
    _training: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    async def register(self, backend: Backend) -> None:
        """Start (or go on with) its run: engine, gateway, tool server, the newest version served."""
        self._run = await backend.open_run(self)

    @property
    def run(self) -> Run:
        """Its run. Raises HarnessError before `register`."""
        if self._run is None:
            raise _unregistered(self.name, "use")
        return self._run

    @property
    def policy(self) -> Policy:
        """The version that rollouts which open now sample."""
        return self._pin[0] or self.run.policy

    @property
    def temperature(self) -> float:
        """What rollouts are sampled at, whatever a call asks for: `rollout.temperature`, or that of `at_step`."""
        return self.run.config.rollout.temperature if self._pin[1] is None else self._pin[1]

    def openai_client(self) -> AsyncOpenAI:
        """The official client; a call belongs to the rollout of the code that makes it.

        Outside of rollouts a call goes to the engine itself: nothing is recorded, nothing can be trained.
        """
        if self._client is None:
            self._client = RolloutClient(self._address)
        return self._client

    def get_inference_name(self) -> str:
        """What the engine calls this version."""
        return self.policy.model

    async def get_step(self) -> int:
        """Optimizer steps so far: the version that is served."""
        return self.policy.version

    async def at_step(self, step: int | None = None, *, temperature: float | None = None) -> TrainableModel:
        """`name@step`: any version, served beside the newest, or the newest at another temperature; not to be trained.

        Raises ConfigError for a step that is not there.
        """
        chosen = self.policy.version if step is None else step
        policy = self.policy if step is None else await self.run.pinned(self.name, step)
        return TrainableModel(
            name=f"{self.name}@{chosen}",
            project=self.project,
            base_model=self.base_model,
            config=self.config,
            _run=self.run,
            _pin=(policy, temperature),
        )

    async def tasks(
        self, split: str = "train", *, count: int = 1, offset: int = 0, seed: int | None = None
    ) -> list[Task]:
        """Tasks of the tool server that the backend was given. Raises ToolServerError."""
        drawn = self.run.config.tasks
        given = drawn.seed if seed is None else seed
        server = self.run.stack.server
        return await server.tasks(
            split, seed=given, offset=offset, count=count, kinds=drawn.kinds, difficulty=drawn.difficulty
        )

    @asynccontextmanager
    async def rollout(self, task: Task | None = None) -> AsyncGenerator[Rollout]:
        """This trajectory's rollout for the length of the block; `rollout.door` has `base_url`, `api_key`, `mcp_url`.

        With a task it has tools: a session of the tool server, whose checks are in `rollout.score` after the block.
        Without a block the first call of the model opens one without tools, which ends with the trajectory's code.
        Raises RolloutFailed where a failure of infrastructure ended it.
        """
        scope = current_scope()
        if scope is not None:
            async with scope.rollout(self, task) as rollout:
                yield rollout
            return
        with entered(Scope()) as fresh:
            async with fresh.rollout(self, task) as rollout:
                yield rollout

    async def run_agent(self, agent: str | AgentRun, task: Task) -> Trajectory:
        """Have an agent (a function, a file, a command) work on a task; the checks' score is the reward.

        Raises RolloutFailed where a failure of infrastructure ended it, AgentError for an agent that isn't there.
        """
        scope = current_scope() or Scope()
        scope.version = max(scope.version, self.policy.version)
        world = self.run.world(self.temperature, graded=True)
        record = await run_rollout(task, load_agent(agent), self.policy, world, group_id=scope.group_id)
        if record.ending.is_infrastructure:
            raise RolloutFailed(record)
        return trajectory_of(record, self.name)

    def start_rollout(self, task: Task | None, group_id: str) -> Rollout:
        """A rollout of this version that is about to open; called by scopes."""
        return self.run.start_rollout(task, group_id, self.policy, self.temperature)

    async def train(self, groups: Iterable[TrajectoryGroup], config: TrainConfig | None = None) -> TrainResult:
        """One optimizer step on the groups; the new version is served when this returns.

        A group whose rewards are all the same teaches nothing. Killed at any moment, the run goes on from its last step
        when the model is registered again, with the groups that were handed in. Raises TrainingError.
        """
        if self._pin != (None, None):
            fix = "train the model itself; a pinned version is for inference"
            raise HarnessError(f"train {self.name!r}", "it is one version, pinned", fix)
        if (hosted := self.run.config.engine.hosted) is not None:
            raise HarnessError(
                f"train {self.name!r}", f"{hosted!r} is somebody else's", "train a model that is served here"
            )
        async with self._training:
            taken = await self.run.train(list(groups), self._trained_with(config or TrainConfig()))
        return TrainResult(self.policy.version, bool(taken.metrics), taken.metrics)

    async def log(self, groups: Iterable[TrajectoryGroup], split: str = "val") -> dict[str, float]:
        """Write trajectories and their mean numbers to the run; the numbers. Nothing logged is trained on."""
        listed = [group for group in groups if len(group)]
        for group in listed:
            if all(self.run.config.run.name in trajectory.rollouts for trajectory in group):
                await asyncio.to_thread(self.run.close_group, group, split)
        return await asyncio.to_thread(write_log, self.run.folder, listed, split, await self.get_step())

    def _trained_with(self, given: TrainConfig) -> Config:
        config = self.run.config
        changes = {**given.settings, **({} if given.learning_rate is None else {"lr": given.learning_rate})}
        try:
            training = TrainingSection.model_validate({**config.training.model_dump(), **changes})
        except ValidationError as error:
            found = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            raise ConfigError(f"train with {changes}", found, "`harness keys training` lists what there is") from error
        return config.model_copy(update={"training": training})

    async def _address(self) -> tuple[str, str | None]:
        scope = current_scope()
        if scope is None:
            return f"{self.run.stack.engine.url}/v1", self.policy.model
        # The gateway serves the rollout's policy whatever is asked for; `training.models` chooses by what was asked.
        return (await scope.door(self)).base_url, None


def _unregistered(name: str, what: str) -> HarnessError:
    return HarnessError(f"{what} the model {name!r}", "it is not registered", "await model.register(backend) first")
