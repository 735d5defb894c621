"""One row of numbers a step: appended to `metrics.jsonl` in the run folder and logged to Weights & Biases.

It knows nothing about what the numbers mean or who measured them, and imports no torch.
`trainer.py` logs every step; reports read the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from harness.tracking import start_wandb
from training.config import TrainerConfig

METRICS_FILE = "metrics.jsonl"


class MetricsLog:
    """The metrics of one run; also of its continuation after a stop."""

    def __init__(self, run_dir: Path, config: TrainerConfig) -> None:
        self._path = run_dir / METRICS_FILE
        self._wandb = start_wandb(run_dir, config.run_id, config.wandb, config.model_dump(mode="json"))

    def rewind(self, step: int) -> None:
        """Forget steps after `step`: a resumed run repeats them."""
        if not self._path.exists():
            return
        lines = [line for line in self._path.read_text().splitlines() if _step_of(line) <= step]
        staged = self._path.with_suffix(".tmp")
        staged.write_text("".join(f"{line}\n" for line in lines))
        staged.replace(self._path)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add one step's numbers; those that are not finite become null, which JSON can say."""
        row = {"step": step, **{key: value if math.isfinite(value) else None for key, value in values.items()}}
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        if self._wandb is not None:
            self._wandb.log(dict(values), step=step)

    def close(self) -> None:
        """End the W&B run."""
        if self._wandb is not None:
            self._wandb.finish()


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf  # half a line of a killed process
