"""A policy: the model a rollout samples from, by the name the engine serves it under; how it samples, how far it goes.

It knows nothing about engines, the contents of adapters or training.
Training makes new versions, rollouts run under one, the gateway holds every rollout to its own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

BASE_VERSION = 0
"""Version of the base model, before any adapter."""


def adapter_name(version: int) -> str:
    """The name an engine serves version `version` under; each version has its own, so that no cached block is stale."""
    return f"policy-v{version}"


@dataclass(frozen=True, slots=True)
class Policy:
    """One version of the policy."""

    model: str
    """Name the engine serves it under: the base model's, or the adapter's."""
    version: int = BASE_VERSION
    """0 is the base model; each published adapter counts one up."""
    adapter_path: str | None = None
    """Folder of the adapter; None for the base model."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the gateway has the policy sampled, whatever the agent asks for."""

    temperature: float = 1.0
    """0 is greedy."""
    max_tokens: int = 512
    """Tokens of one answer at most."""
    top_p: float = 1.0
    """Nucleus; 1 samples from the whole distribution, which training assumes."""
    seed: int | None = None
    """Engine seed; None for a fresh one each call."""
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further engine sampling parameters, passed on as they are."""

    def to_dict(self) -> dict[str, Any]:
        """As the gateway's admin API takes it; what is not set is left out."""
        named = {name: value for name, value in asdict(self).items() if name != "extra" and value is not None}
        return {**self.extra, **named}


@dataclass(frozen=True, slots=True)
class Limits:
    """How far one rollout may go; the gateway refuses what goes beyond, and the rollout ends for that reason."""

    turns: int = 30
    """Model calls."""
    tokens: int = 32_768
    """Tokens sampled over all model calls."""
    wall_s: float = 600.0
    """Seconds from the rollout's start to the agent's end."""

    def to_dict(self) -> dict[str, Any]:
        """As the gateway's admin API takes it."""
        return asdict(self)
