"""The trainer of the Python API: the same trainer, whose steps are what `train` calls hand in.

It knows nothing about torch, agents or who calls. harness/api starts it as `python -m training.calls --run runs/<name>
--engine-url …` beside a run folder with config.toml, and reads versions and metrics from the run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.config_source import load_config
from harness.errors import HarnessError
from harness.stack import model_folder
from training.config import trainer_config

CONFIG_FILE = "config.toml"
ENDLESS = 1_000_000_000
"""Steps of a trainer that is stopped and not finished."""


def write_trainer_config(run_dir: Path, engine_url: str | None, base_name: str) -> Path:
    """Write trainer.json from the run's config.toml; its path. Raises ConfigError."""
    config = load_config(run_dir / CONFIG_FILE)
    made = trainer_config(config, model_folder(config.model.name), engine_url, base_name)
    endless = made.training.model_copy(update={"steps": ENDLESS})
    return made.model_copy(update={"by_call": True, "training": endless}).write(run_dir)


def main() -> int:
    """Train the run named on the command line until the process is stopped; 1 and a message where it can't."""
    parser = argparse.ArgumentParser(prog="python -m training.calls", description="Train what the Python API hands in.")
    parser.add_argument("--run", type=Path, required=True, help="run folder with config.toml and traces.db")
    parser.add_argument("--engine-url", help="engine that new versions are loaded into; none where left out")
    parser.add_argument("--base-name", default="base", help="what the engine calls the model without an adapter")
    arguments = parser.parse_args()
    try:
        write_trainer_config(arguments.run, arguments.engine_url, arguments.base_name)
    except HarnessError as error:
        print(error, file=sys.stderr)
        return 1
    # Here, because torch takes seconds and a wrong configuration is told before.
    from training.trainer import train_and_tell

    return train_and_tell(arguments.run)


if __name__ == "__main__":
    sys.exit(main())
