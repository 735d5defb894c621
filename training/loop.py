"""`harness train`: evaluate, then alternate rollouts and optimizer steps until the policy is trained, evaluate, report.

It knows nothing about torch, tokens or HTTP: it starts the parts, hands tasks to groups and groups to the store, from
which the trainer process takes them. Found by the command line through the entry-point group `harness.commands`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.agent import configured_agent
from harness.config import Config
from harness.config_source import write_config
from harness.errors import ConfigError, TrainingError
from harness.live import Display, show_progress
from harness.measure import Measurement
from harness.outcomes import Outcome
from harness.policy import Policy
from harness.process import Process, ProcessSpec, start_process
from harness.report import summary_numbers, terminal_tables, write_report
from harness.run_facts import AFTER, BEFORE, read_run, record_phase
from harness.scoring.scorer import open_scorer
from harness.stack import LOGS_FOLDER, STORE_FILE, Stack, model_folder, start_stack
from harness.tracking import publish_summary
from traces.store import Store
from training.config import TrainerConfig, trainer_config
from training.groups import GroupMaker, GroupSource
from training.rollouts import rewind

CONFIG_FILE = "config.toml"


def command(config: Config) -> int:
    """Run or resume `harness train`; the exit code. Raises HarnessError or StoreError for what a person can mend."""
    if config.engine.hosted is not None:
        found = "the model's provider gives no token ids and takes no adapter"
        raise ConfigError(
            f"train with engine.hosted = {config.engine.hosted!r}", found, "measure it with `harness eval`"
        )
    if not config.offline.runs or config.evaluation.before or config.evaluation.after:
        configured_agent(config)  # a missing agent is told before anything is started or written
    folder = Path(config.run.folder) / config.run.name
    write_config(config, folder / CONFIG_FILE, f"harness train --resume {folder}")
    with show_progress(f"harness train · {folder}") as display:
        kind = _offline() if config.offline.runs else Training
        asyncio.run(kind(config, folder, display).run())
    report = write_report(folder)
    publish_summary(folder, config.run.name, config.wandb, summary_numbers(read_run(folder)))
    console = Console()
    console.print(*terminal_tables(folder), sep="\n")
    console.print(f"report    {report}\ncurve     {folder / 'reward.png'}\nadapters  {folder / 'adapters'}")
    console.print(f"look at a rollout: harness show {folder}\nevaluate again:    harness eval {folder}")
    return 0


def _offline() -> type[Training]:
    from training.offline import OfflineTraining  # builds on this module

    return OfflineTraining


class Training:
    """One `harness train` under way."""

    def __init__(self, config: Config, folder: Path, display: Display) -> None:
        self._config = config
        self._folder = folder
        self._display = display
        self._store = Store(folder / STORE_FILE)
        self._passed: list[bool] = []
        self._endings: dict[str, int] = {}

    async def run(self) -> None:
        """Everything from the start of the engine to the last evaluation; what is done already is not done again."""
        run_id = self._config.run.name
        self._store.abandon_open_rollouts(run_id)
        rewind(self._store, run_id)
        with self._phase("start engine, tools, gateway"):
            slots = self._config.training.max_staleness + 2
            stack = await self._stack(slots)
        try:
            async with stack.ended_by_a_dead_part(self._fix()):
                await self._phases(stack)
        finally:
            await self._parts.aclose()
            self._store.close()

    async def _stack(self, slots: int) -> Stack:
        self._parts = contextlib.AsyncExitStack()
        return await self._parts.enter_async_context(start_stack(self._config, self._folder, adapter_slots=slots))

    async def _phases(self, stack: Stack) -> None:
        config = self._config
        trainer = trainer_config(config, model_folder(config.model.name), stack.engine.url, stack.engine.model_name)
        measurement = Measurement(config, stack, self._store, self._folder)
        if config.evaluation.before:
            policy = Policy(stack.engine.model_name)
            await self._measure(measurement, BEFORE, policy)
        final = await self._train(stack, trainer)
        if config.evaluation.after:
            await self._measure(measurement, AFTER, final)
        if config.evaluation.before or config.evaluation.after:
            with self._phase("do-nothing agent"):
                await measurement.doing_nothing(final, self._count)

    async def _measure(self, measurement: Measurement, label: str, policy: Policy) -> None:
        with self._phase(f"evaluate {label}"):
            self._passed = []
            self._display.update(total=measurement.rollouts(), unit="rollouts", policy_version=policy.version)
            await measurement.policy(label, policy, self._count)

    async def _train(self, stack: Stack, trainer: TrainerConfig) -> Policy:
        """Serve what is trained so far, then let the trainer take steps while groups are made for it."""
        await self._serve_latest(stack)
        if self._latest().version < trainer.training.steps:
            with self._phase("train"):
                self._passed = []
                self._display.update(total=trainer.training.steps, unit="steps", done=self._latest().version)
                trainer.write(self._folder)
                argv = (sys.executable, "-m", "training.trainer", "--run", str(self._folder))
                spec = ProcessSpec(argv, self._folder / LOGS_FOLDER / "trainer.log", name="trainer")
                config = self._config
                scoring = open_scorer(config.reward, stack.judge(config), self._store, seed=config.run.seed)
                async with scoring as judge, start_process(spec) as process:
                    maker = GroupMaker(GroupSource(config, stack, judge), self._store, trainer, self._tell)
                    await self._until_trained(maker, process)
        return self._latest()

    async def _until_trained(self, maker: GroupMaker, process: Process) -> None:
        """Make groups until the trainer has taken its last step, or the time is up: the newest policy stands then."""
        minutes = self._config.training.minutes
        limit_s = None if minutes is None else 60.0 * minutes
        making = asyncio.create_task(maker.make_groups())
        ended = asyncio.create_task(process.wait())
        try:
            done, _ = await asyncio.wait({making, ended}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if making.done():
                making.result()
            if done and process.returncode != 0:
                raise self._stopped(process)
        finally:
            ended.cancel()
            making.cancel()
            await asyncio.gather(making, ended, return_exceptions=True)

    async def _serve_latest(self, stack: Stack) -> None:
        for record in self._store.policies(self._config.run.name)[-self._config.training.max_staleness - 1 :]:
            if record.adapter_path is not None:
                await stack.engine.load_adapter(record.model, Path(record.adapter_path))

    def _latest(self) -> Policy:
        record = self._store.latest_policy(self._config.run.name)
        return Policy("base") if record is None else Policy(record.model, record.version, record.adapter_path)

    def _stopped(self, process: Process) -> TrainingError:
        ended = process.error(f"it ended with code {process.returncode}", "")
        return TrainingError(f"train in {self._folder}", f"{process.spec.name}: {ended.found}", self._fix())

    def _fix(self) -> str:
        return f"nothing that ended is lost; read the log, then: harness train --resume {self._folder}"

    @contextlib.contextmanager
    def _phase(self, name: str) -> Generator[None]:
        """Name the phase on the display and record how long it took, however it ends."""
        self._display.update(phase=name)
        started = time.monotonic()
        try:
            yield
        finally:
            record_phase(self._folder, name, time.monotonic() - started)

    def _count(self, outcome: Outcome) -> None:
        """Take one rollout of an evaluation into the display."""
        self._note(outcome.ending, outcome.passed)
        self._display.update(done=self._display.progress.done + 1)

    def _tell(self, **changes: Any) -> None:
        """Take news of the training phase into the display."""
        for ending, passed in changes.pop("outcomes", ()):
            self._note(ending, passed)
        self._display.update(**changes)

    def _note(self, ending: str, passed: bool | None) -> None:
        self._endings[ending] = self._endings.get(ending, 0) + 1
        if passed is not None:
            self._passed = [*self._passed, passed][-256:]
        reward = sum(self._passed) / len(self._passed) if self._passed else None
        self._display.update(rollouts=self._display.progress.rollouts + 1, reward=reward, endings=dict(self._endings))
