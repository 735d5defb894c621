"""A vLLM plug-in: LoRA on a CPU as one matrix product over all adapter slots, or over the one that all tokens use.

vLLM's own CPU operations gather the whole adapter for every token, which makes LoRA two to four times slower than the
base model. Here one product against all slots, masked to each token's slot, gives the same numbers; a batch under one
adapter needs no mask, and the parts of a fused projection share their product. It knows nothing about training. vLLM
calls `register` in each of its processes (entry point group `vllm.general_plugins`).

It also mends a defect of vLLM 0.32: a token without an adapter (slot -1) gets the last slot's adapter there, because
-1 indexes the last one; here it gets none.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

MODULES = ("vllm.lora.ops.torch_ops", "vllm.lora.ops.torch_ops.lora_ops", "vllm.lora.punica_wrapper.punica_cpu")
"""Where vLLM holds the operations by name: a module that imported one keeps its own reference."""
Operation = Callable[..., None]


def _slots(weights: torch.Tensor) -> torch.Tensor:
    """Stacked adapters as (slots, out, in): some layers keep an axis of length 1 in between."""
    return weights.squeeze(1) if weights.dim() == 4 else weights


def _only_slot(indices_T: torch.Tensor) -> int | None:
    """The one slot that all tokens use; None where they use several or none."""
    first = int(indices_T[0])
    return first if first >= 0 and bool((indices_T == first).all()) else None


def _mask(indices_T: torch.Tensor, slots: int, dtype: torch.dtype) -> torch.Tensor:
    """1 where token t uses slot s, shape (T, slots); slot -1 is a row of zeros."""
    return (indices_T[:, None] == torch.arange(slots, device=indices_T.device)).to(dtype)


def _shrunk(inputs: torch.Tensor, weights: torch.Tensor, indices_T: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """inputs (T, in) through each token's A (slots, rank, in) → (T, rank)."""
    stacked, hidden = _slots(weights), inputs.to(dtype)
    slot = _only_slot(indices_T)
    if slot is not None:
        return hidden @ stacked[slot].to(dtype).T
    slots, rank, width = stacked.shape
    every = (hidden @ stacked.to(dtype).reshape(slots * rank, width).T).view(-1, slots, rank)
    return (every * _mask(indices_T, slots, dtype)[:, :, None]).sum(1)


def _expanded(inputs: torch.Tensor, weights: torch.Tensor, indices_T: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """inputs (T, rank) through each token's B (slots, out, rank) → (T, out)."""
    stacked = _slots(weights)
    slots, width, rank = stacked.shape
    low = inputs[:, :rank].to(dtype)
    slot = _only_slot(indices_T)
    if slot is not None:
        return low @ stacked[slot].to(dtype).T
    spread = (_mask(indices_T, slots, dtype)[:, :, None] * low[:, None, :]).reshape(-1, slots * rank)
    return spread @ stacked.to(dtype).permute(0, 2, 1).reshape(slots * rank, width)


def bgmv_shrink(
    inputs: torch.Tensor,
    lora_b_weights: torch.Tensor,
    output_tensor: torch.Tensor,
    lora_indices_tensor: torch.Tensor,
    scaling: float = 1.0,
) -> None:
    """Down-projection, one slot index a token; parameter names are vLLM's."""
    rows = _shrunk(inputs, lora_b_weights, lora_indices_tensor, output_tensor.dtype)
    output_tensor[:, : rows.shape[1]] = scaling * rows


def bgmv_expand(
    inputs: torch.Tensor,
    lora_b_weights: torch.Tensor,
    output_tensor: torch.Tensor,
    lora_indices_tensor: torch.Tensor,
    add_inputs: bool = True,
) -> None:
    """Up-projection into the whole output; adapter and layer may be padded differently, and one row serves all."""
    rows = _expanded(inputs, lora_b_weights, lora_indices_tensor, output_tensor.dtype)
    width = min(rows.shape[1], output_tensor.shape[1])
    _write(output_tensor[:, :width], rows[: output_tensor.shape[0], :width], add_inputs)


def bgmv_expand_slice(
    inputs: torch.Tensor,
    lora_b_weights: torch.Tensor,
    output_tensor: torch.Tensor,
    lora_indices_tensor: torch.Tensor,
    slice_offset: int,
    slice_size: int,
    add_inputs: bool = True,
) -> None:
    """Up-projection into one slice of the output, as for the three parts of a fused QKV projection."""
    rows = _expanded(inputs, lora_b_weights, lora_indices_tensor, output_tensor.dtype)
    _write(output_tensor[:, slice_offset : slice_offset + slice_size], rows, add_inputs)


def _write(target: torch.Tensor, rows: torch.Tensor, add: bool) -> None:
    if add:
        target += rows
    else:
        target.copy_(rows)


def _per_sequence(operation: Operation, tail_length: int) -> Operation:
    """The form for prefill: slot indices come one a sequence, with the sequences' lengths.

    Arguments after the three tensors, in vLLM's order: starts, lengths, slot indices, sequences, longest, tokens, and
    `tail_length` arguments of the operation itself.
    """

    def sgmv(*arguments: Any, **named: Any) -> None:
        tensors, lengths, indices, tail = arguments[:3], arguments[4], arguments[5], arguments[9:]
        if operation is not bgmv_shrink and len(tail) < tail_length:
            # vLLM's forms for prefill don't add unless told to, those for decoding do.
            named.setdefault("add_inputs", False)
        operation(*tensors, torch.repeat_interleave(indices, lengths), *tail, **named)

    return sgmv


OPERATIONS: dict[str, Operation] = {
    "bgmv_shrink": bgmv_shrink,
    "bgmv_expand": bgmv_expand,
    "bgmv_expand_slice": bgmv_expand_slice,
    "sgmv_shrink": _per_sequence(bgmv_shrink, 1),
    "sgmv_expand": _per_sequence(bgmv_expand, 1),
    "sgmv_expand_slice": _per_sequence(bgmv_expand_slice, 3),
}
"""Name of the operation in vLLM → ours."""


def update_metadata(wrapper: Any, shipped: Operation, *arguments: Any, **named: Any) -> None:
    """Before a step: what vLLM notes about it, and which slots its tokens use."""
    shipped(wrapper, *arguments, **named)
    indices_T: torch.Tensor = wrapper.token_lora_indices
    wrapper.harness_slot = _only_slot(indices_T) if len(indices_T) else None
    wrapper.harness_tokens = len(indices_T)


def add_lora_linear(wrapper: Any, shipped: Operation, *arguments: Any, **named: Any) -> None:
    """y += (x A) B for all parts of a (fused) projection; parameters are vLLM's.

    A step under one adapter is done here in one product for all A and one for each B; any other is vLLM's, through
    our operations.
    """
    y, x, lora_a, lora_b, scale, sizes = arguments[:6]
    slot: int | None = getattr(wrapper, "harness_slot", None)
    rows = x.view(-1, x.shape[-1])
    if slot is None or named.get("buffer") is not None or len(rows) != wrapper.harness_tokens:
        shipped(wrapper, *arguments, **named)
        return
    # float32 in between, as vLLM's own buffers are.
    down = torch.cat([_slots(weights)[slot] for weights in lora_a]).float()
    low = rows.float() @ down.T
    if scale != 1.0:
        low *= scale
    target, low = y.view(-1, y.shape[-1]), low.to(y.dtype)
    column = rank_column = 0
    for weights, size in zip(lora_b, sizes, strict=True):
        up = _slots(weights)[slot].to(y.dtype)
        rank = up.shape[1]
        target[:, column : column + size].addmm_(low[:, rank_column : rank_column + rank], up.T)
        column, rank_column = column + size, rank_column + rank


METHODS: dict[str, Operation] = {"update_metadata": update_metadata, "add_lora_linear": add_lora_linear}
"""Name of the method of vLLM's CPU wrapper → ours, which is given the shipped one."""


def _around(shipped: Operation, ours: Operation) -> Operation:
    def method(self: Any, *arguments: Any, **named: Any) -> None:
        ours(self, shipped, *arguments, **named)

    return method


def register() -> None:
    """Put our operations in the place of vLLM's, on a CPU; does nothing on other devices.

    Raises AttributeError where this vLLM has no such operation, so that a new version is noticed.
    """
    platform: Any = importlib.import_module("vllm.platforms").current_platform
    if not platform.is_cpu():
        return
    modules: list[ModuleType] = [importlib.import_module(name) for name in MODULES]
    wrapper: Any = modules[-1].PunicaWrapperCPU
    if getattr(wrapper, "harness_slot", "absent") != "absent":
        return
    for name, operation in OPERATIONS.items():
        for module in modules:
            getattr(module, name)
            setattr(module, name, operation)
    for name, ours in METHODS.items():
        setattr(wrapper, name, _around(getattr(wrapper, name), ours))
    wrapper.harness_slot = None
    logging.getLogger("vllm.harness").info("LoRA on the CPU: %d operations replaced", len(OPERATIONS) + len(METHODS))
