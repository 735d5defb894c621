"""The backend on this machine: starts, keeps and ends the runs of models that are registered with it.

It knows nothing about rollouts or training. Made by the user's code, handed to `model.register`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.api.model import Model, TrainableModel
from harness.api.run import Run, open_run
from harness.config_source import load_config
from harness.errors import ConfigError


class LocalBackend:
    """Engine, gateway, tool server and trainer on this machine; a set of its own for each trainable model."""

    def __init__(
        self, path: str | Path = "runs", *, tools: str | None = None, settings: Mapping[str, Any] | None = None
    ) -> None:
        """`path` is where projects lie; `tools` names the tool server whose tasks are worked on, if any.

        `settings` are keys of the configuration tree for every model here, such as `{"engine.max_num_seqs": 64}`.
        """
        self._path = Path(path)
        self._tools = tools
        self._settings = dict(settings or {})
        self._parts = AsyncExitStack()
        self._names: set[Path] = set()

    async def open_run(self, model: TrainableModel) -> Run:
        """Start the run of a model; called by `model.register`. Raises HarnessError for what can't be started."""
        folder = self.folder_of(model)
        if folder in self._names:
            raise ConfigError(
                f"register {model.name!r} twice", f"{folder} is in use", "give each model a name of its own"
            )
        given = {"tools.server": self._tools or "none"}
        # Every step is a checkpoint, whatever is set: a caller that was told of a step must find it again.
        place = {
            "training.checkpoint_every": 1,
            "run.folder": str(self._path / model.project),
            "run.name": model.name,
            "model.name": model.base_model,
        }
        config = load_config(flags={**given, **self._settings, **model.settings, **place})
        run = await self._parts.enter_async_context(open_run(config))
        self._names.add(folder)
        return run

    def folder_of(self, model: Model | TrainableModel) -> Path:
        """The folder of a model's run or logs."""
        return self._path / model.project / model.name

    async def close(self) -> None:
        """End every run's parts; what ended is on disk, and a later registration goes on from there."""
        await self._parts.aclose()
        self._names.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
