"""Supervised training of a small network on demonstrations: batches by length, Muon and AdamW, the prefix once a step.

It knows nothing about tool servers, tokenizers or files. Runs for a given time, since that is what is scarce on a CPU;
uses what the machine has: bfloat16 where the CPU has matrix units for it, compiled code where there is a C++ compiler.
Called by `training.nano.build`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from training.nano.episodes import Episode
from training.nano.model import Nano

Ids = NDArray[np.int64]
Forward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class SftConfig:
    """One phase of supervised training."""

    minutes: float
    """Wall time of the phase, batches and optimizer included."""
    steps: int = 0
    """Ends the phase after so many steps where that comes first; 0 leaves it to the time."""
    learning_rate: float = 2e-3
    """Peak, for both optimizers."""
    batch_tokens: int = 6000
    """Padded tokens of a batch, prefix not counted."""
    short_prefix: float = 0.0
    """Share of the phase, from its start, in which only a random piece of the prefix is shown: faster."""
    all_tokens: float = 0.0
    """Share of the phase, from its start, in which a sample of the other tokens is learnt too."""
    whole: float = 0.3
    """Share of conversations shown to their end; the others stop where the outcome is decided."""
    hold: float = 0.4
    """Share of the phase at the peak rate, before the rate falls in a line."""
    weight_decay: float = 0.02
    """Of the matrices that Muon trains."""
    seed: int = 0
    """Order of batches."""


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised by five Newton-Schulz steps, matrices of one shape together.

    Keller Jordan, "Muon" (2024), with the scale that makes its steps as large as AdamW's (Liu et al., 2025).
    torch.optim.Muon takes matrices one by one and always in bfloat16, which is slow on CPUs without matrix units.
    """

    def __init__(self, weights: Sequence[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(list(weights), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update of every weight that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for weight in group["params"]:
                by_shape.setdefault(weight.shape, []).append(weight)
            for shape, weights in by_shape.items():
                updates = _orthogonal(torch.stack([self._direction(weight, group["momentum"]) for weight in weights]))
                scale = group["lr"] * 0.2 * max(shape) ** 0.5
                for weight, update in zip(weights, updates, strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=scale)

    def _direction(self, weight: Tensor, momentum: float) -> Tensor:
        gradient = weight.grad if weight.grad is not None else torch.zeros_like(weight)
        state = self.state[weight]
        average = state.setdefault("average", torch.zeros_like(weight))
        average.lerp_(gradient, 1 - momentum)
        return gradient.lerp(average, momentum)


def train_sft(
    network: Nano,
    episodes: Sequence[Episode],
    prefix_P: Ids,
    config: SftConfig,
    report: Callable[[float, int, float], None],
) -> int:
    """Trains in place for `config.minutes`; calls `report(share of time, step, loss)` each step. Returns the steps."""
    rng = np.random.default_rng(config.seed)
    matrices = [w for name, w in network.named_parameters() if w.ndim == 2 and "embed" not in name]
    others = [w for name, w in network.named_parameters() if w.ndim != 2 or "embed" in name]
    optimizers = [
        Muon(matrices, config.learning_rate, weight_decay=config.weight_decay),
        torch.optim.AdamW(others, config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    forward: Forward = network.hidden_after_prefix
    if shutil.which("g++"):
        forward = torch.compile(forward, dynamic=True)
    started, step = time.monotonic(), 0
    for batch in _batches(episodes, config, rng):
        done = max((time.monotonic() - started) / (60 * config.minutes), step / config.steps if config.steps else 0.0)
        if done >= 1:
            break
        prefix = _piece(prefix_P, rng) if done < config.short_prefix else prefix_P
        with torch.autocast("cpu", torch.bfloat16, enabled=_has_matrix_units()):
            loss = _loss(network, forward, (batch, prefix), 0.2 if done < config.all_tokens else 0.0)
        loss.backward()
        rate = config.learning_rate * min(1.0, (step + 1) / 40) * min(1.0, max(0.03, (1 - done) / (1 - config.hold)))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        report(done, step, loss.item())
    return step


@torch.no_grad()
def teacher_forced(network: Nano, episodes: Sequence[Episode], prefix_P: Ids) -> dict[str, tuple[float, float]]:
    """Kind → (share of episodes whose every decided token is the likeliest, mean probability of them all): what greedy
    and temperature-1 play would reach if every conversation followed the demonstration.
    """
    results: dict[str, list[tuple[float, float]]] = {}
    for start in range(0, len(episodes), 24):
        rows = list(episodes[start : start + 24])
        ids, target = _pad([(row.ids_T[: row.decided], row.mask_T[: row.decided]) for row in rows])
        chosen = target[:, 1:]
        _, hidden = network.hidden_after_prefix(torch.from_numpy(prefix_P), ids[:, :-1], chosen)
        logps = network.logits(hidden).log_softmax(-1)
        wanted = ids[:, 1:][chosen]
        right = (logps.argmax(-1) == wanted).split(chosen.sum(1).tolist())
        logp = logps.gather(1, wanted[:, None])[:, 0].split(chosen.sum(1).tolist())
        for row, hits, values in zip(rows, right, logp, strict=True):
            results.setdefault(row.kind, []).append((float(hits.all()), float(values.sum().exp())))
    return {
        kind: (float(np.mean([a for a, _ in pairs])), float(np.mean([b for _, b in pairs])))
        for kind, pairs in results.items()
    }


def _has_matrix_units() -> bool:
    """Whether this CPU multiplies bfloat16 matrices in hardware (AMX); elsewhere bfloat16 is slower than float32."""
    return torch.cpu.get_capabilities().get("amx_bf16", False)


def _loss(network: Nano, forward: Forward, shown: tuple[list[Episode], Ids], others: float) -> Tensor:
    batch, prefix_P = shown
    ids, written = _pad([(row.ids_T, row.mask_T) for row in batch])
    target = written[:, 1:]
    chosen = target
    if others:
        real = torch.zeros_like(written)
        for row, episode in enumerate(batch):
            real[row, : len(episode.ids_T)] = True
        chosen = target | (real[:, 1:] & (torch.rand(target.shape) < others))
    _, hidden = forward(torch.from_numpy(prefix_P), ids[:, :-1], chosen)
    losses = F.cross_entropy(network.logits(hidden).float(), ids[:, 1:][chosen], reduction="none")
    ours = target[chosen].float()
    loss = (losses * ours).sum() / ours.sum()
    return loss + 0.3 * (losses * (1 - ours)).sum() / (1 - ours).sum() if others else loss


def _batches(episodes: Sequence[Episode], config: SftConfig, rng: np.random.Generator) -> Iterator[list[Episode]]:
    """Endless batches of about `batch_tokens`, of episodes of similar length, in random order."""
    while True:
        rows = [_cut(episode, rng.random() < config.whole) for episode in episodes]
        order = sorted(range(len(rows)), key=lambda index: len(rows[index].ids_T) + rng.random() * 24)
        batches: list[list[Episode]] = [[]]
        for index in order:
            if len(rows[index].ids_T) * (len(batches[-1]) + 1) > config.batch_tokens and batches[-1]:
                batches.append([])
            batches[-1].append(rows[index])
        for position in rng.permutation(len(batches)):
            yield batches[position]


def _cut(episode: Episode, whole: bool) -> Episode:
    if whole:
        return episode
    return Episode(episode.kind, episode.ids_T[: episode.decided], episode.mask_T[: episode.decided], episode.decided)


def _pad(rows: Sequence[tuple[Ids, NDArray[np.bool_]]]) -> tuple[Tensor, Tensor]:
    longest = max(len(ids) for ids, _ in rows)
    ids_BT, mask_BT = np.zeros((len(rows), longest), np.int64), np.zeros((len(rows), longest), np.bool_)
    for index, (ids, mask) in enumerate(rows):
        ids_BT[index, : len(ids)], mask_BT[index, : len(ids)] = ids, mask
    return torch.from_numpy(ids_BT), torch.from_numpy(mask_BT)


def _piece(prefix_P: Ids, rng: np.random.Generator, size: int = 28) -> Ids:
    start = int(rng.integers(4, max(5, len(prefix_P) - size)))
    return np.concatenate((prefix_P[:4], prefix_P[start : start + size]))


def _orthogonal(matrices: Tensor) -> Tensor:
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x = matrices if wide else matrices.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    if _has_matrix_units():
        x = x.bfloat16()
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x if wide else x.mT).float()


def parameter_count(network: nn.Module) -> int:
    """Number of weights."""
    return sum(weight.numel() for weight in network.parameters())
