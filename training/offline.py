"""`harness train --from-traces`: optimizer steps on scored trajectories of other runs; no rollout is made.

The trainer is the same, and so are batches, losses and adapters: only where groups come from differs. A row's
log-probabilities are those it was sampled with, whatever policy that was, and the clipped ratio bounds what an old row
can do; staleness is not limited. It knows nothing about torch. Called by loop.py's command.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

from harness.engine import Engine
from harness.errors import TrainingError
from harness.policy import Policy
from harness.process import ProcessSpec, start_process
from harness.stack import LOGS_FOLDER, Stack, model_folder, open_engine
from training.config import TRAINER_FILE, TrainerConfig, trainer_config
from training.loop import Training
from training.relabel import open_relabeller
from training.rollouts import rewind
from training.stored import Into, Taken, count_steps, take_groups, why_no_step

_ANY_AGE = 10**9


class OfflineTraining(Training):
    """One `harness train --from-traces` under way."""

    async def run(self) -> None:
        """All phases of a run if it is to be evaluated; else the trainer alone, with an engine only to rescore."""
        config = self._config
        if config.evaluation.before or config.evaluation.after:
            await super().run()
            return
        rewind(self._store, config.run.name)
        try:
            async with contextlib.AsyncExitStack() as parts:
                engine = None
                if config.offline.rescore and not self._has_begun():
                    logs = self._folder / LOGS_FOLDER
                    engine = await parts.enter_async_context(open_engine(config, logs, adapter_slots=1))
                await self._take(engine)
            trainer = trainer_config(config, model_folder(config.model.name), None)
            await self._steps(trainer)
        finally:
            self._store.close()

    async def _train(self, stack: Stack, trainer: TrainerConfig) -> Policy:
        """As on rollouts, but of what is stored."""
        await self._serve_latest(stack)
        await self._take(stack.engine)
        await self._steps(trainer)
        return self._latest()

    def _has_begun(self) -> bool:
        return (self._folder / TRAINER_FILE).exists()

    async def _take(self, engine: Engine | None) -> None:
        """Copy the stored groups, unless a trainer was started on them; copying again what was copied adds nothing."""
        if self._has_begun():
            return
        section, run = self._config.offline, self._config.run
        with self._phase("read stored trajectories"):
            async with contextlib.AsyncExitStack() as parts:
                relabel = None
                if section.rescore and engine is not None:
                    http, relabeller = open_relabeller(engine.url, engine.model_name)
                    parts.push_async_callback(http.close)
                    relabel = relabeller.tokens
                sources = [Path(source) for source in section.runs]
                into = Into(self._store, run.name, relabel)
                taken = await take_groups(into, sources, passes=section.passes, seed=run.seed)
        self._display.update(note=_told(taken))

    async def _steps(self, trainer: TrainerConfig) -> None:
        """Let the trainer take as many steps as there are rows for, at most those asked for."""
        training = trainer.training.model_copy(update={"max_staleness": _ANY_AGE})
        trainer = trainer.model_copy(update={"training": training})
        run_id, done = self._config.run.name, self._latest().version
        steps = min(training.steps, done + await asyncio.to_thread(count_steps, self._store, run_id, trainer.rules))
        if steps == 0:
            asked = f"train {run_id!r} from {', '.join(self._config.offline.runs)}"
            fix = (
                "score the runs (harness score), lower training.batch_rows, or set offline.rescore for imported traces"
            )
            raise TrainingError(asked, why_no_step(self._store, run_id, trainer.rules), fix)
        if done >= steps:
            return
        trainer = trainer.model_copy(update={"training": training.model_copy(update={"steps": steps})})
        with self._phase("train"):
            self._display.update(total=steps, unit="steps", done=done)
            trainer.write(self._folder)
            argv = (sys.executable, "-m", "training.trainer", "--run", str(self._folder))
            spec = ProcessSpec(argv, self._folder / LOGS_FOLDER / "trainer.log", name="trainer")
            async with start_process(spec) as process:
                if await process.wait() != 0:
                    raise self._stopped(process)


def _told(taken: Taken) -> str:
    left = ", ".join(f"{count} {reason}" for reason, count in taken.left_out.items())
    said = f"{taken.groups} groups, {taken.rollouts} rollouts, {taken.rescored_turns} turns rescored"
    return f"{said}; left out: {left}" if left else said
