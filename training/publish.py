"""Adapter → policy v<N>: written whole or not at all, loaded into the engine under its own name, then announced.

It knows nothing about torch or TRL (it is handed a function that writes the adapter) and nothing about rollouts.
`trainer.py` publishes after every step. The order is the durability law: folder, engine, record. Nothing pauses: a
new name is a fresh prefix cache, and rollouts under way keep the version they started with until it is unloaded.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from harness.engine import Engine, ServedBase
from harness.errors import TrainingError
from harness.policy import BASE_VERSION, adapter_name
from traces.records import PolicyRecord
from traces.store import Store
from training.config import ADAPTERS_FOLDER, TrainerConfig

BASE_FILE = "base.json"
_SAMPLE_BYTES = 1 << 16

WriteFolder = Callable[[Path], None]
"""Writes files into an existing empty folder."""


class Publisher:
    """Publishes the versions of one run."""

    def __init__(self, store: Store, config: TrainerConfig, run_dir: Path) -> None:
        self._store = store
        self._config = config
        self._folder = run_dir.resolve() / ADAPTERS_FOLDER
        self._base = base_fingerprint(config.model)
        self._engine = _engine(config)

    def publish(self, version: int, write: WriteFolder) -> PolicyRecord:
        """Make `version` the newest policy; `write` saves the adapter. A version on record is only loaded again.

        Version 0 is what the run starts from: the base model itself, which is faster to sample than the same model
        with an adapter of zeros and agrees with the trainer exactly as well; or the adapter it was told to start from.

        Raises:
            EngineError: the engine refused the adapter or is gone.
            OSError: the adapter could not be written.
        """
        record = next((r for r in self._store.policies(self._config.run_id) if r.version == version), None)
        if record is not None:
            self._load(record)
            return record
        path = self._config.adapter if version == BASE_VERSION else str(self._write(version, write))
        model = adapter_name(version) if path is not None else self._config.base_name
        record = PolicyRecord(run_id=self._config.run_id, version=version, model=model, adapter_path=path, step=version)
        self._load(record)
        self._store.append_policy(record)
        self._unload(version - self._config.training.max_staleness - 1)
        return record

    def _write(self, version: int, write: WriteFolder) -> Path:
        def write_all(folder: Path) -> None:
            write(folder)
            (folder / BASE_FILE).write_text(json.dumps({"base": self._base, "model": self._config.model}) + "\n")

        return write_folder(self._folder / adapter_name(version), write_all)

    def _load(self, record: PolicyRecord) -> None:
        if self._engine is not None and record.adapter_path is not None:
            asyncio.run(self._engine.load_adapter(record.model, Path(record.adapter_path)))

    def _unload(self, version: int) -> None:
        if self._engine is not None and version > BASE_VERSION:
            asyncio.run(self._engine.unload_adapter(adapter_name(version)))


def _engine(config: TrainerConfig) -> Engine | None:
    if config.engine_url is None:
        return None
    return Engine(config.engine_url, ServedBase(config.base_name, config.model))


def write_folder(folder: Path, write: WriteFolder) -> Path:
    """Make `folder` hold what `write` writes, on disk, whole or not at all; one that exists is replaced."""
    staged = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    write(staged)
    place_folder(staged, folder)
    return folder


def place_folder(staged: Path, folder: Path) -> None:
    """Flush `staged` to disk and rename it to `folder`, replacing what a killed run left there."""
    for path in [*staged.rglob("*"), staged]:
        _flush(path)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged.replace(folder)
    _flush(folder.parent)


def base_fingerprint(model: str) -> str:
    """A hash that tells base models apart: configuration, and size, beginning and end of every weight file.

    A model that is no folder (a Hugging Face id) is its own fingerprint.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return model
    digest = hashlib.sha256()
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE_BYTES))
            file.seek(max(0, size - _SAMPLE_BYTES))
            digest.update(file.read())
    return digest.hexdigest()


def check_base(folder: Path, model: str) -> None:
    """Refuse an adapter or checkpoint of ours that was trained on another base model than `model`.

    Raises:
        TrainingError: its `base.json` names another; a folder without that file passes.
    """
    file = folder / BASE_FILE
    if not file.exists():
        return
    found = json.loads(file.read_text())
    if found["base"] != base_fingerprint(model):
        raise TrainingError(
            f"use {folder} with the model {model!r}",
            f"it was trained on {found['model']!r}, whose weights are others",
            "give the model it was trained on, or start without it",
        )


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
