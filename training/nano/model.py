"""A small Qwen3 in plain torch, with the parameter names of the Hugging Face model.

Episodes of one batch share a long prefix (system prompt and tools); it is computed once and its keys and values are
lent to every episode, which is what makes training on a CPU affordable.
It knows nothing about tokenizers, tasks or optimizers.
Called by `training.nano.sft` (loss), `training.nano.play` (generation) and `training.nano.export` (Hugging Face files).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LayerCache = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class NanoConfig:
    """Shape of the model; the defaults are the shipped policy's."""

    vocab_size: int
    """Rows of the embedding, tied with the output; a multiple of 64."""
    width: int = 256
    """Size of the residual stream."""
    layers: int = 5
    """Number of transformer blocks."""
    heads: int = 4
    """Attention heads; keys and values have as many."""
    head_dim: int = 64
    """Size of one head."""
    mlp: int = 384
    """Inner size of the gated MLP."""
    rope_theta: float = 1e6
    """Base of the rotary embedding."""
    max_positions: int = 4096
    """Longest sequence, in tokens."""


class Attention(nn.Module):
    """Causal attention with normalised queries and keys and rotary positions, as in Qwen3."""

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        inner = config.heads * config.head_dim
        self.heads, self.head_dim = config.heads, config.head_dim
        self.q_proj = nn.Linear(config.width, inner, bias=False)
        self.k_proj = nn.Linear(config.width, inner, bias=False)
        self.v_proj = nn.Linear(config.width, inner, bias=False)
        self.o_proj = nn.Linear(inner, config.width, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=1e-6)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=1e-6)

    def project(self, x: Tensor, rope: LayerCache) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys, values of `x` (B, T, width), each (B, heads, T, head_dim)."""
        shape = (x.shape[0], x.shape[1], self.heads, self.head_dim)
        q = rotate(self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2), rope)
        k = rotate(self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2), rope)
        return q, k, self.v_proj(x).view(shape).transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        """Back from (B, heads, T, head_dim) to (B, T, width)."""
        batch, _, length, _ = heads.shape
        return self.o_proj(heads.transpose(1, 2).reshape(batch, length, self.heads * self.head_dim))


class Mlp(nn.Module):
    """Gated MLP."""

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.mlp, bias=False)
        self.up_proj = nn.Linear(config.width, config.mlp, bias=False)
        self.down_proj = nn.Linear(config.mlp, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention and MLP with pre-normalisation."""

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = nn.RMSNorm(config.width, eps=1e-6)
        self.post_attention_layernorm = nn.RMSNorm(config.width, eps=1e-6)

    def feed(self, x: Tensor) -> Tensor:
        """The MLP half, with its residual."""
        return x + self.mlp(self.post_attention_layernorm(x))


class Inner(nn.Module):
    """Embedding, blocks and last norm, under the name that Hugging Face gives them."""

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList([Block(config) for _ in range(config.layers)])
        self.norm = nn.RMSNorm(config.width, eps=1e-6)


class Nano(nn.Module):
    """The policy network."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Inner(config)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                zero = "o_proj" in name or "down_proj" in name
                std = 0.02 if "embed" in name else weight.shape[1] ** -0.5
                nn.init.normal_(weight, std=0.0 if zero else std)
        rates = config.rope_theta ** (-torch.arange(0, config.head_dim, 2).float() / config.head_dim)
        angles = torch.outer(torch.arange(config.max_positions).float(), rates)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    @property
    def blocks(self) -> list[Block]:
        """The blocks, typed."""
        return [block for block in self.model.layers if isinstance(block, Block)]

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary from normalised hidden states."""
        return F.linear(hidden, self.model.embed_tokens.weight)

    def hidden_after_prefix(self, prefix_P: Tensor, ids_BT: Tensor, selected_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states of episodes that all begin with one prefix.

        Returns the prefix's states (P, width) and the states at the selected positions (N, width), both normalised;
        the last MLP runs at selected positions only.
        """
        size_p, size_t = prefix_P.shape[0], ids_BT.shape[1]
        rope_p = (self.cos[:size_p], self.sin[:size_p])
        rope_t = (self.cos[size_p : size_p + size_t], self.sin[size_p : size_p + size_t])
        seen = torch.ones(size_t, size_p + size_t, dtype=torch.bool).tril(size_p)
        p, x = self.model.embed_tokens(prefix_P[None]), self.model.embed_tokens(ids_BT)
        blocks = self.blocks
        for block in blocks:
            last = block is blocks[-1]
            p, x = _block_after_prefix(block, (p, x), (rope_p, rope_t), seen)
            x = block.feed(x[selected_BT] if last else x)
            p = block.feed(p)
        return self.model.norm(p[0]), self.model.norm(x)

    def hidden(self, ids_BT: Tensor) -> Tensor:
        """Normalised hidden states of plain sequences, (B, T, width)."""
        rope = (self.cos[: ids_BT.shape[1]], self.sin[: ids_BT.shape[1]])
        x = self.model.embed_tokens(ids_BT)
        for block in self.blocks:
            q, k, v = block.self_attn.project(block.input_layernorm(x), rope)
            x = x + block.self_attn.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True))
            x = block.feed(x)
        return self.model.norm(x)


def rotate(x: Tensor, rope: LayerCache) -> Tensor:
    """Turns each half-pair of the last axis by its position's angle; `rope` is (cosines, sines)."""
    cos, sin = rope
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _block_after_prefix(
    block: Block, states: tuple[Tensor, Tensor], ropes: tuple[LayerCache, LayerCache], seen: Tensor
) -> tuple[Tensor, Tensor]:
    p, x = states
    q_p, k_p, v_p = block.self_attn.project(block.input_layernorm(p), ropes[0])
    p = p + block.self_attn.merge(F.scaled_dot_product_attention(q_p, k_p, v_p, is_causal=True))
    q, k, v = block.self_attn.project(block.input_layernorm(x), ropes[1])
    batch = x.shape[0]
    k = torch.cat((k_p.expand(batch, -1, -1, -1), k), 2)
    v = torch.cat((v_p.expand(batch, -1, -1, -1), v), 2)
    return p, x + block.self_attn.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=seen))
