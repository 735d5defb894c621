"""Weights & Biases, and the one file that imports it: one run of ours is one run there, by its name, resumed or not.

It knows nothing about what the numbers mean. The trainer logs its steps through it; `harness train` and `harness eval`
put the report's numbers into the run's summary. Without a key, runs are kept offline in the run folder (`wandb sync`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.config import WandbSection

_log = logging.getLogger(__name__)


def start_wandb(run_dir: Path, run_id: str, section: WandbSection, config: Mapping[str, Any] | None = None) -> Any:
    """The W&B run of this name, made or gone on with; None where the configuration wants none."""
    mode = section.mode
    if mode == "auto":
        mode = "online" if os.environ.get("WANDB_API_KEY") else "offline"
    if mode == "disabled":
        return None
    import wandb

    return wandb.init(
        project=section.project,
        entity=section.entity,
        name=run_id,
        id=run_id,
        resume="allow",
        dir=run_dir,
        mode=mode,
        config=dict(config) if config is not None else None,
        settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
    )


def publish_summary(run_dir: Path, run_id: str, section: WandbSection, numbers: Mapping[str, float]) -> None:
    """Put numbers that rest on a whole run, such as its evaluations, into the summary of its W&B run.

    They are in the run folder too: a W&B that fails is logged and costs the run nothing.
    """
    if not numbers or section.mode == "disabled":
        return
    import wandb

    try:
        run = start_wandb(run_dir, run_id, section)
        run.summary.update(dict(numbers))
        run.finish()
    except wandb.Error as error:
        _log.warning("the numbers of the report did not reach W&B (they are in %s): %s", run_dir, error)
