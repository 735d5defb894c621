"""A LoRA adapter on disk, checked before an engine sees it: is it whole, is it of this base, is its rank served.

vLLM 0.32 loads an adapter of another base without a word and answers with noise, so that the check is ours. Knows the
files that PEFT writes and nothing of engines or training; needs no torch.
Called by `engine.py` before it loads an adapter.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

_LAYER = re.compile(r"\.layers\.(\d+)\..*?(\w+)\.lora_A\.weight$")
_HEADER_LIMIT_BYTES = 100_000_000  # the safetensors format's own bound


class AdapterMismatch(Exception):
    """Why the adapter can't be served on this base, in one sentence."""


@dataclass(frozen=True, slots=True)
class BaseShape:
    """What an adapter must fit, from the base's config.json."""

    layers: int
    """Transformer layers."""
    inputs: dict[str, int]
    """Projection name → width of its input."""


def base_shape(model: Path) -> BaseShape | None:
    """The shape of the base model in `model`; None where its config.json does not say (another architecture family)."""
    config = cast(dict[str, Any], json.loads((model / "config.json").read_text()))
    text = cast(dict[str, Any], config.get("text_config", config))
    hidden, heads, layers = (text.get(key) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    if not (isinstance(hidden, int) and isinstance(heads, int) and isinstance(layers, int)):
        return None
    head_dim = int(text.get("head_dim") or hidden // heads)
    inputs: dict[str, int] = dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), hidden)
    inputs["o_proj"] = heads * head_dim
    if isinstance(text.get("intermediate_size"), int) and not text.get("num_experts"):
        inputs["down_proj"] = int(text["intermediate_size"])
    return BaseShape(layers, inputs)


def check_adapter(adapter: Path, base: str, max_rank: int | None) -> None:
    """Raise AdapterMismatch unless `adapter` is a whole PEFT folder that fits `base` and the rank that is served.

    `base` is the folder or Hugging Face name of the served model. Shapes are compared where it is a folder, names where
    both are Hugging Face names.
    """
    config = _read_config(adapter)
    rank = int(config.get("r") or 0)
    if max_rank is not None and rank > max_rank:
        raise AdapterMismatch(f"its rank is {rank}, the engine serves at most {max_rank} (engine.max_lora_rank)")
    shapes = _tensor_shapes(adapter / "adapter_model.safetensors")
    if Path(base).is_dir():
        shape = base_shape(Path(base))
        if shape is not None:
            _compare(shapes, shape, base)
        return
    trained_on = str(config.get("base_model_name_or_path") or "")
    if trained_on and trained_on != base and not Path(trained_on).is_absolute():
        raise AdapterMismatch(f"it was trained on {trained_on!r}, the engine serves {base!r}")


def _read_config(adapter: Path) -> dict[str, Any]:
    path = adapter / "adapter_config.json"
    try:
        return cast(dict[str, Any], json.loads(path.read_text()))
    except FileNotFoundError:
        raise AdapterMismatch(f"there is no {path}") from None
    except ValueError as error:
        raise AdapterMismatch(f"{path} is not JSON: {error}") from error


def _tensor_shapes(path: Path) -> dict[str, list[int]]:
    """Tensor name → shape, from the file's header (safetensors: u64 length, JSON, data)."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(size, _HEADER_LIMIT_BYTES):
                raise AdapterMismatch(f"{path} is cut off or no safetensors file")
            header = cast(dict[str, Any], json.loads(file.read(length)))
    except FileNotFoundError:
        raise AdapterMismatch(f"there is no {path}") from None
    except ValueError as error:
        raise AdapterMismatch(f"{path} is no safetensors file: {error}") from error
    tensors = {name: cast(dict[str, Any], entry) for name, entry in header.items() if name != "__metadata__"}
    if 8 + length + max((entry["data_offsets"][1] for entry in tensors.values()), default=0) > size:
        raise AdapterMismatch(f"{path} is cut off")
    return {name: entry["shape"] for name, entry in tensors.items()}


def _compare(shapes: dict[str, list[int]], base: BaseShape, name: str) -> None:
    for tensor, shape in shapes.items():
        found = _LAYER.search(tensor)
        if found is None:
            continue
        layer, module = int(found[1]), found[2]
        if layer >= base.layers:
            raise AdapterMismatch(f"it has a layer {layer}, the base {name!r} has {base.layers} layers")
        expected = base.inputs.get(module)
        if expected is not None and shape[1] != expected:
            raise AdapterMismatch(f"its {module} takes {shape[1]} inputs, that of the base {name!r} {expected}")
