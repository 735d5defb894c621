"""The nano network is the Qwen3 that engines serve: same logits, whether prefixes are shared, cached or neither."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from training.nano.export import export_policy, load_policy
from training.nano.induction import write_induction
from training.nano.model import Nano, NanoConfig
from training.nano.play import Decoder
from training.nano.sft import Episode, Muon, SftConfig, train_sft

WEIGHTS = Path(__file__).resolve().parents[2] / "training" / "nano" / "weights"


def small_network() -> Nano:
    torch.manual_seed(0)
    network = Nano(NanoConfig(512, layers=2, mlp=64))
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim == 2:
                weight.normal_(std=0.05)
    return network


def test_exported_files_load_as_qwen3_with_equal_logits(tmp_path: Path) -> None:
    network, tokenizer = load_policy(WEIGHTS)
    file = export_policy(network, tokenizer, tmp_path)
    served = Qwen3ForCausalLM.from_pretrained(file.parent, dtype=torch.float32)
    ids = torch.randint(0, 2000, (2, 60))
    with torch.no_grad():
        ours = network.logits(network.hidden(ids))
        assert torch.allclose(ours, served(ids).logits, atol=1e-4)


def test_a_shared_prefix_gives_the_states_of_whole_sequences() -> None:
    network = small_network()
    prefix, ids = torch.randint(0, 512, (11,)), torch.randint(0, 512, (3, 7))
    chosen = torch.rand(3, 7) < 0.6
    whole = network.hidden(torch.cat((prefix.expand(3, -1), ids), 1))
    p, x = network.hidden_after_prefix(prefix, ids, chosen)
    assert torch.allclose(p, whole[0, :11], atol=1e-5)
    assert torch.allclose(x, whole[:, 11:][chosen], atol=1e-5)


def test_cached_generation_writes_the_likeliest_token_each_time() -> None:
    network = small_network()
    prefix, rows = torch.randint(0, 512, (9,)), [[5, 6, 7], [8, 9, 10, 11, 12]]
    with torch.no_grad():
        new = Decoder(network, prefix).generate(rows, 3, 0.0)
        for row, written in zip(rows, new, strict=True):
            whole = torch.tensor([[*prefix.tolist(), *row, *written]])
            best = network.logits(network.hidden(whole))[0].argmax(-1)
            assert best[8 + len(row) : -1].tolist() == written


def test_the_induction_start_copies_repeats_before_any_training() -> None:
    torch.manual_seed(0)
    network = Nano(NanoConfig(2560))
    write_induction(network)
    half = torch.randint(5, 2560, (2, 120))
    with torch.no_grad():
        best = network.logits(network.hidden(torch.cat((half, half), 1))).argmax(-1)
    assert (best[:, 120:-1] == half[:, 1:]).float().mean() > 0.9


def test_muon_moves_each_matrix_by_nearly_equal_singular_values() -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(16, 32))
    weight.grad = torch.randn(16, 32)
    Muon([weight], lr=1.0).step()
    values = torch.linalg.svdvals(weight.detach()) / (0.2 * 32**0.5)
    assert 0.5 < float(values.min()) <= float(values.max()) < 1.4


def test_supervised_training_learns_a_tiny_task_in_sixty_steps() -> None:
    network = small_network()
    ids = np.array([1, 2, 3, 4, 5, 6], np.int64)
    episode = Episode("cancel", ids, np.array([False, False, False, True, True, True]), 6)
    losses: list[float] = []
    config = SftConfig(5.0, steps=60, batch_tokens=24)
    train_sft(network, [episode] * 8, np.array([7, 8, 9], np.int64), config, lambda _, __, loss: losses.append(loss))
    assert losses[-1] < 0.2 * losses[0]
