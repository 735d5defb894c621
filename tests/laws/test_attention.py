"""Law: packing a forest of sequences changes what is computed once, never what is computed."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention

from training.attention import dense_tree_attention, tree_attention, tree_block_mask, tree_layout, visible

trl_packing = pytest.importorskip("trl.experimental.async_grpo.packing")
transformers = pytest.importorskip("transformers")

VOCABULARY = 40


def random_forest(seed: int, sequences: int = 8, longest: int = 40) -> list[list[int]]:
    """Sequences that copy a random stretch of an earlier one before they go their own way; some end inside another."""
    draw = random.Random(seed)
    forest: list[list[int]] = []
    for _ in range(sequences):
        parent = draw.choice(forest) if forest and draw.random() < 0.85 else []
        shared = parent[: draw.randint(0, len(parent))]
        own = [draw.randrange(3 if draw.random() < 0.3 else VOCABULARY) for _ in range(draw.randint(0, longest))]
        forest.append((shared + own) or [draw.randrange(VOCABULARY)])
    return forest


def pack(forest: list[list[int]]) -> dict[str, torch.Tensor]:
    row = trl_packing.TreeRow()
    for index, tokens in enumerate(forest):
        mask = np.ones(len(tokens), dtype=np.int64)
        row.add(
            {"input_ids": np.array(tokens), "completion_mask": mask, "old_log_probs": np.zeros(len(tokens), np.float32)}
            | {"advantage": 1.0, "group_id": index}
        )
    return row.pack()


def indices(packed: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: packed[key] for key in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")}


def positions_of(packed: dict[str, torch.Tensor], forest: list[list[int]]) -> list[list[int]]:
    """Packed position of each token of each sequence, found by walking the paths of the segments."""
    ends = packed["tree_cu_seqlens_k"].tolist()
    paths = [packed["tree_kv_index"][a:b].tolist() for a, b in itertools.pairwise(ends)]
    by_tokens = {tuple(packed["input_ids"][path].tolist()): path for path in paths}
    return [by_tokens[tuple(tokens)] for tokens in forest]


def tiny_model(attention: str) -> Any:
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=True, attn_implementation=attention,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.Qwen3ForCausalLM(config).float()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_forwarded_tokens_are_the_unique_ones_plus_one_a_branch(seed: int) -> None:
    forest = random_forest(seed)
    continuations: dict[tuple[int, ...], set[int | None]] = {}
    for tokens in forest:
        for end in range(1, len(tokens) + 1):
            following = tokens[end] if end < len(tokens) else None
            continuations.setdefault(tuple(tokens[:end]), set()).add(following)
    branches = sum(len(nexts) - 1 for nexts in continuations.values())
    assert len(pack(forest)["input_ids"]) == len(continuations) + branches


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_each_token_sees_exactly_its_own_path_up_to_itself(seed: int) -> None:
    forest = random_forest(seed)
    packed = pack(forest)
    layout = tree_layout(*indices(packed).values())
    every = torch.arange(len(packed["input_ids"]))
    for path in positions_of(packed, forest):
        for place, position in enumerate(path):
            seen = every[visible(torch.tensor(position), every, layout.subtree_end_T)]
            assert seen.tolist() == path[: place + 1]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_segment_attention_agrees_with_the_dense_mask_in_value_and_gradient(seed: int, kv_heads: int) -> None:
    packed = pack(random_forest(seed))
    length = len(packed["input_ids"])
    torch.manual_seed(seed)
    shapes = [(1, heads, length, 8) for heads in (4, kv_heads, kv_heads)]
    inputs = [torch.randn(shape).requires_grad_() for shape in shapes]
    weight = torch.randn(1, length, 4, 8)
    out, _ = tree_attention(torch.nn.Identity(), *inputs, None, **indices(packed))
    gradients = torch.autograd.grad((out * weight).sum(), inputs)
    layout = tree_layout(*indices(packed).values())
    expected = dense_tree_attention(*inputs, layout, 8**-0.5).transpose(1, 2)
    expected_gradients = torch.autograd.grad((expected * weight).sum(), inputs)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, other, atol=1e-5, rtol=0)


def test_the_block_mask_of_the_gpu_form_shows_the_same_tokens() -> None:
    packed = pack(random_forest(3, sequences=12, longest=60))
    layout = tree_layout(*indices(packed).values())
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, len(packed["input_ids"]), 16) for heads in (4, 2, 2))
    mask = tree_block_mask(layout.subtree_end_T)
    out = flex_attention(query, key, value, block_mask=mask, scale=0.25, enable_gqa=True)
    torch.testing.assert_close(out, dense_tree_attention(query, key, value, layout, 0.25), atol=1e-5, rtol=0)


@pytest.mark.parametrize("seed", range(10))
def test_loss_and_gradients_equal_those_of_one_row_at_a_time(seed: int) -> None:
    trl_packing.register_tree_attention()
    transformers.AttentionInterface.register(trl_packing.TREE_ATTENTION, tree_attention)
    packed_model, plain_model = tiny_model(trl_packing.TREE_ATTENTION), tiny_model("sdpa")
    forest = [tokens for tokens in random_forest(seed) if len(tokens) > 1] or [[1, 2]]
    weights = torch.randn(len(forest), generator=torch.Generator().manual_seed(seed)).tolist()
    count = sum(len(tokens) - 1 for tokens in forest)

    packed = pack(forest)
    hidden = packed_model(
        input_ids=packed["input_ids"][None], position_ids=packed["position_ids"][None], use_cache=False,
        **indices(packed),
    ).logits[0]  # fmt: skip
    logprobs = torch.log_softmax(hidden[packed["token_index"]], -1)
    labels = packed["shift_labels"][packed["token_index"]]
    weight_M = torch.tensor(weights)[packed["segment_id"]]
    loss = -(logprobs.gather(1, labels[:, None])[:, 0] * weight_M).sum() / count
    loss.backward()

    plain_loss = torch.zeros(())
    for tokens, weight in zip(forest, weights, strict=True):
        ids = torch.tensor([tokens])
        row = torch.log_softmax(plain_model(input_ids=ids, use_cache=False).logits[0, :-1], -1)
        plain_loss = plain_loss - weight * row.gather(1, ids[0, 1:, None]).sum() / count
    plain_loss.backward()

    assert abs(loss.item() - plain_loss.item()) < 1e-5
    for (name, ours), theirs in zip(packed_model.named_parameters(), plain_model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=0, msg=lambda text, name=name: name + text)


def test_a_sliding_window_is_refused_rather_than_ignored() -> None:
    packed = pack([[1, 2, 3]])
    query = torch.randn(1, 1, 3, 8)
    with pytest.raises(ValueError, match="no sliding_window"):
        tree_attention(torch.nn.Identity(), query, query, query, None, sliding_window=128, **indices(packed))
