"""What one trainer process needs to know, resolved: written by the main process, read by `python -m training.trainer`.

It knows nothing about the command line, agents, tools or how rollouts are made, and imports no torch.
`training.loop` builds and writes it; `trainer.py` and the modules beneath it read it.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from harness.config import Config, Section, TrainingSection, WandbSection
from harness.errors import TrainingError
from traces.turn_filter import TurnFilter
from training.batch import BatchRules

TRAINER_FILE = "trainer.json"
STORE_FILE = "traces.db"
ADAPTERS_FOLDER = "adapters"
CHECKPOINTS_FOLDER = "checkpoints"


class TrainerConfig(Section):
    """One trainer of one run."""

    run_id: str
    """The run whose groups it trains on."""
    model: str
    """Folder of the base model (or a Hugging Face id): weights and tokenizer."""
    base_name: str = "base"
    """What the engine calls the base model in requests."""
    adapter: str | None = None
    """Folder of a LoRA adapter to start from; None starts with the base model itself as version 0."""
    engine_url: str | None = None
    """The engine that new versions are loaded into; None loads them nowhere (tests, replay of recorded groups)."""
    seed: int = 0
    """Seeds the adapter's first weights."""
    temperature: float = 1.0
    """Temperature the rollouts were sampled at: the trainer compares with the same distribution."""
    score_name: str | None = None
    """Score that is the reward, by name; None takes the newest of each rollout."""
    threads: int | None = None
    """Threads torch computes with on a CPU; None leaves it to torch."""
    by_call: bool = False
    """True where a step is what one `train` call of the Python API hands in, not as many rows as `batch_rows`."""
    training: TrainingSection = TrainingSection()
    """How the adapter learns."""
    wandb: WandbSection = WandbSection()
    """Where metrics also go."""

    @property
    def rules(self) -> BatchRules:
        """How groups become a step; the main process plans with the same rules."""
        return BatchRules(
            rows=self.training.batch_rows,
            max_staleness=self.training.max_staleness,
            max_row_tokens=self.training.max_row_tokens,
            loss_weight=self.training.loss_weight,
            score_name=self.score_name,
            only=TurnFilter(self.training.agents, self.training.models, self.training.turns),
        )

    def write(self, run_dir: Path) -> Path:
        """Write it into the run folder, whole or not at all; the file's path."""
        path = run_dir / TRAINER_FILE
        run_dir.mkdir(parents=True, exist_ok=True)
        staged = path.with_suffix(".tmp")
        staged.write_text(self.model_dump_json(indent=2) + "\n")
        staged.replace(path)
        return path


def trainer_config(config: Config, model: str, engine_url: str | None, base_name: str = "base") -> TrainerConfig:
    """The trainer's part of a run's configuration; `model` is the resolved folder or id."""
    return TrainerConfig(
        run_id=config.run.name,
        model=model,
        base_name=base_name,
        adapter=config.model.adapter,
        engine_url=engine_url,
        seed=config.run.seed,
        temperature=config.rollout.temperature,
        training=config.training,
        wandb=config.wandb,
    )


def load_trainer_config(run_dir: Path) -> TrainerConfig:
    """What the main process wrote for this run.

    Raises:
        TrainingError: there is no such file, or it isn't one of ours.
    """
    path = run_dir / TRAINER_FILE
    asked = f"train the run in {run_dir}"
    try:
        return TrainerConfig.model_validate_json(path.read_text())
    except FileNotFoundError as error:
        fix = "start it with `harness train`, which writes that file, or check the folder"
        raise TrainingError(asked, f"there is no {path}", fix) from error
    except ValidationError as error:
        fix = f"delete {path} and run `harness train --resume {run_dir}`"
        raise TrainingError(asked, f"{path} is not valid: {error}", fix) from error
