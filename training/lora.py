"""The adapter that is trained: its shape from the configuration, or the one a run starts from.

It knows nothing about TRL, steps or publishing.
`trainer.py` makes the model with `lora_config` and fills it with `load_start_adapter`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from peft import LoraConfig, PeftModel, load_peft_weights, set_peft_model_state_dict

from harness.adapter import AdapterMismatch, check_adapter
from harness.errors import TrainingError
from training.config import TrainerConfig
from training.publish import check_base

_FIX = "give the model the adapter was trained on, or start without an adapter"


def lora_config(config: TrainerConfig) -> LoraConfig:
    """PEFT's configuration of the adapter; that of the adapter to start from, where there is one.

    Raises:
        TrainingError: that adapter isn't there, isn't whole, or was trained on another base model.
    """
    if config.adapter is not None:
        try:
            check_adapter(Path(config.adapter), config.model, None)
        except AdapterMismatch as mismatch:
            raise TrainingError(_asked(config), str(mismatch), _FIX) from mismatch
        check_base(Path(config.adapter), config.model)
        found = cast(LoraConfig, LoraConfig.from_pretrained(config.adapter))
        found.inference_mode = False
        return found
    targets = config.training.lora_targets
    return LoraConfig(
        r=config.training.lora_rank,
        lora_alpha=config.training.lora_alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )


def load_start_adapter(model: PeftModel, config: TrainerConfig) -> None:
    """Give the model the weights of the adapter that the run starts from.

    Raises:
        TrainingError: the adapter doesn't fit the model, or can't be read.
    """
    try:
        result: Any = set_peft_model_state_dict(model, load_peft_weights(str(config.adapter), device="cpu"))
    except (RuntimeError, OSError) as error:
        raise TrainingError(_asked(config), str(error).splitlines()[0], _FIX) from error
    if result.unexpected_keys:
        found = f"it changes {result.unexpected_keys[0]!r}, which the model does not have"
        raise TrainingError(_asked(config), found, _FIX)


def _asked(config: TrainerConfig) -> str:
    return f"start from the adapter {config.adapter!r} on {config.model!r}"
