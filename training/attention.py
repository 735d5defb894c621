"""Attention over a packed forest of token sequences: each segment sees its root-to-segment path and itself, causally.

It knows nothing about models, TRL or how the forest was packed beyond the three index tensors that describe it
(`trl.experimental.async_grpo.packing`). Segments lie in depth-first pre-order, so the queries that see a key segment
are one contiguous range: its own tokens, then its whole subtree. Nothing is gathered and no token is computed twice.
`trainer.py` registers `tree_attention` with the model; the tests hold it against one sequence at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.utils._triton import has_triton
from torch.utils.weak import WeakIdKeyDictionary

_FLASH: Callable[..., tuple[Tensor, Tensor]] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_FLASH_BACKWARD: Callable[..., tuple[Tensor, ...]] = (
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
)


@dataclass(frozen=True, slots=True)
class TreeLayout:
    """Where the segments of one packed row lie, and which queries see each of them."""

    segments: tuple[tuple[int, int, int], ...]
    """Start, end, and end of the subtree, in packed positions; depth-first pre-order."""
    roots: frozenset[int]
    """Starts of the segments that have no parent."""
    subtree_end_T: Tensor
    """For each packed position, the end of its segment's subtree; int64, on the row's device."""
    block_mask: BlockMask | None
    """The same for FlexAttention; None on a CPU."""


def tree_layout(kv_index_K: Tensor, query_ends_S: Tensor, path_ends_S: Tensor) -> TreeLayout:
    """Read the layout from a packed row's `tree_kv_index`, `tree_cu_seqlens_q`, `tree_cu_seqlens_k`.

    A segment's path is its ancestors' positions and then its own, so the position before its own is its parent's last.
    """
    starts, path_bounds = cast(list[int], query_ends_S.tolist()), cast(list[int], path_ends_S.tolist())
    n_segments = len(starts) - 1
    before_own = [path_bounds[s + 1] - (starts[s + 1] - starts[s]) - 1 for s in range(n_segments)]
    has_parent = [before_own[s] >= path_bounds[s] for s in range(n_segments)]
    last_of_parent = cast(
        list[int], kv_index_K[torch.tensor(before_own, device=kv_index_K.device).clamp(min=0)].tolist()
    )
    segment_of_last = {starts[s + 1] - 1: s for s in range(n_segments)}
    subtree_ends = list(starts[1:])
    for s in reversed(range(n_segments)):
        if has_parent[s]:
            parent = segment_of_last[last_of_parent[s]]
            subtree_ends[parent] = max(subtree_ends[parent], subtree_ends[s])
    lengths = torch.tensor([starts[s + 1] - starts[s] for s in range(n_segments)], dtype=torch.long)
    subtree_end_T = torch.repeat_interleave(torch.tensor(subtree_ends, dtype=torch.long), lengths).to(kv_index_K.device)
    return TreeLayout(
        segments=tuple(zip(starts[:-1], starts[1:], subtree_ends, strict=True)),
        roots=frozenset(starts[s] for s in range(n_segments) if not has_parent[s]),
        subtree_end_T=subtree_end_T,
        block_mask=tree_block_mask(subtree_end_T) if kv_index_K.is_cuda else None,
    )


def visible(query: Tensor, key: Tensor, subtree_end_T: Tensor) -> Tensor:
    """Whether the token at packed position `query` sees the one at `key` (both broadcastable int tensors)."""
    return (key <= query) & (query < subtree_end_T[key])


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree_kv_index: Tensor,
    tree_cu_seqlens_q: Tensor,
    tree_cu_seqlens_k: Tensor,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention as `transformers.AttentionInterface` calls it: `query` (1, H, T, D), `key` and `value` (1, H_kv, T, D).

    Returns (1, T, H, D) and no weights. H is a multiple of H_kv (grouped queries). Raises ValueError for a sliding
    window or a soft cap, which no layer of the supported models uses.
    """
    for option in ("sliding_window", "softcap"):
        if options.get(option):
            raise ValueError(f"tree attention has no {option}, and {type(module).__name__} asks for {options[option]}")
    layout = cast("TreeLayout | None", _LAYOUTS.get(tree_kv_index))
    if layout is None:
        layout = tree_layout(tree_kv_index, tree_cu_seqlens_q, tree_cu_seqlens_k)
        _LAYOUTS[tree_kv_index] = layout
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if not query.is_cuda:
        out = cast(Tensor, _SegmentAttention.apply(query, key, value, layout, scale))
    elif layout.block_mask is not None and has_triton():
        out = flex_tree_attention(query, key, value, layout, scale)
    else:
        out = dense_tree_attention(query, key, value, layout, scale)
    return out.transpose(1, 2).contiguous(), None


# One layout a packed row, not one a layer: every layer is handed the same index tensor.
_LAYOUTS: Any = WeakIdKeyDictionary()


def dense_tree_attention(query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, scale: float) -> Tensor:
    """The plain form with a T × T mask: any device, any dtype; (1, H, T, D)."""
    positions_T = torch.arange(query.shape[2], device=query.device)
    mask_TT = visible(positions_T[:, None], positions_T[None, :], layout.subtree_end_T)
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask_TT, scale=scale, enable_gqa=True
    )


def flex_tree_attention(query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, scale: float) -> Tensor:
    """The block-sparse form for CUDA, compiled once for all lengths; (1, H, T, D)."""
    return _compiled_flex()(query, key, value, block_mask=layout.block_mask, scale=scale, enable_gqa=True)


@functools.cache
def _compiled_flex() -> Callable[..., Tensor]:
    return cast(Callable[..., Tensor], torch.compile(flex_attention, dynamic=True))


def tree_block_mask(subtree_end_T: Tensor) -> BlockMask:
    """`visible` as FlexAttention takes it: which 128 × 128 blocks hold anything, and the rule inside them."""

    def mask(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return visible(query, key, subtree_end_T)

    length = len(subtree_end_T)
    return create_block_mask(mask, None, None, length, length, device=str(subtree_end_T.device))


class _SegmentAttention(torch.autograd.Function):
    """One flash call a key segment for its own tokens and one for its subtree, joined by their log-sum-exps.

    Partial softmaxes over disjoint keys add up exactly: out = Σ exp(lse_i − lse)·out_i (Dao et al. 2022, §3.1). The
    backward kernel needs only the joint output and log-sum-exp, so each block's gradient is a kernel call of its own.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, scale: float) -> Tensor:
        out = torch.empty(query.shape, dtype=torch.float32)
        lse = torch.empty(query.shape[:3], dtype=torch.float32)
        for start, end, subtree_end in layout.segments:
            for first, last, causal in _blocks(start, end, subtree_end):
                part, part_lse = _FLASH(
                    query[:, :, first:last], key[:, :, start:end], value[:, :, start:end], 0.0, causal, scale=scale
                )
                if start in layout.roots:
                    out[:, :, first:last] = part
                    lse[:, :, first:last] = part_lse
                else:
                    _join(out[:, :, first:last], lse[:, :, first:last], part, part_lse)
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        (grad_out,) = grad_outputs
        query, key, value, out, lse = cast(tuple[Tensor, ...], ctx.saved_tensors)
        grads = tuple(torch.zeros(x.shape, dtype=torch.float32) for x in (query, key, value))
        layout = cast(TreeLayout, ctx.layout)
        for start, end, subtree_end in layout.segments:
            for first, last, causal in _blocks(start, end, subtree_end):
                rows, keys = slice(first, last), slice(start, end)
                parts = _FLASH_BACKWARD(
                    grad_out[:, :, rows], query[:, :, rows], key[:, :, keys], value[:, :, keys],
                    out[:, :, rows], lse[:, :, rows], 0.0, causal, scale=ctx.scale,
                )  # fmt: skip
                for grad, part, where in zip(grads, parts, (rows, keys, keys), strict=True):
                    grad[:, :, where] += part
        grad_query, grad_key, grad_value = (g.to(x.dtype) for g, x in zip(grads, (query, key, value), strict=True))
        return grad_query, grad_key, grad_value, None, None


def _blocks(start: int, end: int, subtree_end: int) -> list[tuple[int, int, bool]]:
    own = (start, end, True)
    return [own] if subtree_end == end else [own, (end, subtree_end, False)]


def _join(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    joint = torch.logaddexp(lse, part_lse)
    out.mul_(torch.exp(lse - joint).unsqueeze(-1)).add_(part * torch.exp(part_lse - joint).unsqueeze(-1))
    lse.copy_(joint)
