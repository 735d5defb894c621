"""An initialisation whose first two layers already copy: what followed the last match of the last token.

Copying identifiers is the hard part of tool calls; from here it works at step 0 instead of after many minutes.
It knows nothing about data. The circuit is that of "In-context Learning and Induction Heads" (Olsson et al., 2022),
written into a Qwen3 block with normalised queries and keys.
Called by `training.nano.build`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from training.nano.model import Attention, Nano

BIAS = 255
"""Residual dimension that is constant over tokens: the previous-token heads read it."""
FAST = range(5)
"""Rotary pairs that turn fast enough to tell neighbouring positions apart."""
PREVIOUS = ((0, 1, 128, 64), (1, 2, 192, 63))
"""(head, distance, where its copy is written in the residual, how many dimensions)."""
MATCH = ((0, 0, 128), (1, 128, 192))
"""(head, residual dimensions of the query, of the key): token against previous, previous against the one before."""


@torch.no_grad()
def write_induction(network: Nano, std: float = 0.05, sharpness: float = 2.0) -> None:
    """Overwrites the embedding and heads 0 and 1 of layers 0 and 1. Needs width 256, head size 64."""
    shape = network.config
    if (shape.width, shape.head_dim) != (256, 64) or shape.heads < 2 or shape.layers < 2:
        raise ValueError(
            f"The induction start needs width 256 and heads of 64, got {shape}: change NanoConfig or skip it."
        )
    embedding = network.model.embed_tokens.weight
    embedding.normal_(std=std)
    embedding[:, BIAS] = std
    first, second = (block.self_attn for block in network.blocks[:2])
    rates = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    for head, distance, target, count in PREVIOUS:
        _write_previous(first, (head, distance, target, count), rates)
    half = shape.head_dim // 2
    slow = [*range(12, half), *range(12 + half, 2 * half)]
    for head, query, key in MATCH:
        _write_match(second, (head, query, key), slow)
    for norm in (first.q_norm, first.k_norm):
        for pair in FAST:
            norm.weight[pair] = norm.weight[pair + half] = sharpness
    for norm in (second.q_norm, second.k_norm):
        for dimension in slow:
            norm.weight[dimension] = sharpness


def _write_previous(attention: Attention, plan: tuple[int, int, int, int], rates: Tensor, gain: float = 0.1) -> None:
    head, distance, target, count = plan
    size = attention.head_dim
    start, half = head * size, size // 2
    for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
        layer.weight[start : start + size] = 0
    for pair in FAST:
        turn = float(-rates[pair] * distance)
        attention.k_proj.weight[start + pair, BIAS] = 1.0
        attention.q_proj.weight[start + pair, BIAS] = math.cos(turn)
        attention.q_proj.weight[start + pair + half, BIAS] = math.sin(turn)
    for index in range(count):
        attention.v_proj.weight[start + index, index] = 1.0
        attention.o_proj.weight[target + index, start + index] = gain


def _write_match(attention: Attention, plan: tuple[int, int, int], slow: list[int], gain: float = 0.5) -> None:
    head, query, key = plan
    size = attention.head_dim
    start = head * size
    for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
        layer.weight[start : start + size] = 0
    for index, dimension in enumerate(slow):
        attention.q_proj.weight[start + dimension, query + index] = 1.0
        attention.k_proj.weight[start + dimension, key + index] = 1.0
    for index in range(size):
        attention.v_proj.weight[start + index, 64 + index] = 1.0
        attention.o_proj.weight[64 + index, start + index] = gain
