"""Writes the network and its tokenizer as the files that vLLM and transformers load.

It knows nothing about how the weights were trained.
Called by `training.nano.build`.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from training.nano.model import Nano, NanoConfig


def export_policy(network: Nano, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    """Writes config, bfloat16 safetensors, tokenizer, chat template and generation config; returns the weights file."""
    shape = network.config
    eos, pad = cast("int", tokenizer.eos_token_id), cast("int", tokenizer.pad_token_id)
    config = Qwen3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.width,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=pad,
        attention_bias=False,
    )
    model = Qwen3ForCausalLM(config)
    state = {name: value.float() for name, value in network.state_dict().items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    model.bfloat16().save_pretrained(folder)
    generation = GenerationConfig(eos_token_id=eos, pad_token_id=pad, do_sample=True)
    generation.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder / "model.safetensors"


def load_policy(folder: Path) -> tuple[Nano, PreTrainedTokenizerFast]:
    """The network in float32 and the tokenizer of an exported folder."""
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    shape = model.config
    network = Nano(
        NanoConfig(
            vocab_size=shape.vocab_size,
            width=shape.hidden_size,
            layers=shape.num_hidden_layers,
            heads=shape.num_attention_heads,
            head_dim=shape.head_dim,
            mlp=shape.intermediate_size,
            rope_theta=cast("dict[str, float]", shape.rope_parameters)["rope_theta"],
            max_positions=shape.max_position_embeddings,
        )
    )
    network.load_state_dict({name: value for name, value in model.state_dict().items() if name != "lm_head.weight"})
    return network, PreTrainedTokenizerFast.from_pretrained(folder)
