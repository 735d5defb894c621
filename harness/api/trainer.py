"""The trainer process of one model: started at the first `train` call, told by the store, asked by the store.

It starts `python -m training.calls`, by name, since this package may not import `training`; groups and versions pass
through the run's store, as they do for `harness train`. It knows nothing about groups' contents. Used by run.py.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from harness.errors import TrainingError
from harness.process import Process, ProcessSpec, start_process
from harness.run_facts import METRICS_FILE, read_jsonl
from harness.stack import LOGS_FOLDER
from traces.store import Store

_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a call's groups."""

    step: int
    """The step that used them up."""
    metrics: dict[str, float]
    """Numbers of that step; empty where they taught nothing and no step was made."""


class CallTrainer:
    """Trains what is closed in a run's store, a step for each `train` call."""

    def __init__(self, folder: Path, engine_url: str, base_name: str) -> None:
        self._folder = folder
        self._argv = (sys.executable, "-m", "training.calls", "--run", str(folder))
        self._argv += ("--engine-url", engine_url, "--base-name", base_name)
        self._parts = AsyncExitStack()
        self._process: Process | None = None

    async def start(self) -> None:
        """Start the process, if it doesn't run. Raises ProcessError."""
        if self._process is None:
            spec = ProcessSpec(self._argv, self._folder / LOGS_FOLDER / "trainer.log", name="trainer")
            self._process = await self._parts.enter_async_context(start_process(spec))

    async def stop(self) -> None:
        """End the process; the next start goes on from the last checkpoint."""
        await self._parts.aclose()
        self._process = None

    async def wait_until_taken(self, store: Store, run_id: str, group_id: str, before: int) -> Taken:
        """Wait until the group is used up and, where a step after `before` did that, its policy served and kept.

        Raises TrainingError where the trainer ends instead.
        """
        while True:
            step = await asyncio.to_thread(step_of, store, run_id, group_id)
            if step is not None and step <= before:
                return Taken(step, {})
            # The checkpoint comes last: a step that was told of before it is lost when the backend closes right then.
            kept = await asyncio.to_thread(store.latest_checkpoint, run_id)
            if step is not None and kept is not None and kept.policy_version >= step:
                return Taken(step, metrics_of(self._folder, step))
            self._check()
            await asyncio.sleep(_POLL_S)

    def _check(self) -> None:
        process = self._process
        if process is None or process.returncode is None:
            return
        ended = process.error(f"it ended with code {process.returncode}", "")
        fix = "nothing that was handed in is lost: read the log, then call `train` again"
        self._process = None
        raise TrainingError(f"train the run in {self._folder}", ended.found, fix)


def step_of(store: Store, run_id: str, group_id: str) -> int | None:
    """The step that consumed a group; None while none did."""
    return next((step for step, groups in store.consumed(run_id).items() if group_id in groups), None)


def metrics_of(folder: Path, step: int) -> dict[str, float]:
    """The numbers of a step; empty before they are written."""
    rows = [row for row in read_jsonl(folder / METRICS_FILE) if row.get("step") == step]
    return {name: float(value) for name, value in rows[-1].items() if isinstance(value, int | float)} if rows else {}
