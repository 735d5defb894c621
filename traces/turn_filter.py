"""Which turns of a trajectory are trained: by the sub-agent that spoke, by the model it asked for, by place.

Pure; it knows nothing about tokens or training. `tokens.py` masks what it leaves out, which stays context for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traces.trajectory import Turn


@dataclass(frozen=True, slots=True)
class TurnFilter:
    """All three must let a turn pass; empty ones let all pass."""

    agents: tuple[str, ...] = ()
    """Names of sub-agents."""
    models: tuple[str, ...] = ()
    """Model names as the agent asked for them."""
    turns: str = ":"
    """Slice of the turns that the other two let pass, as Python writes it: `:`, `-1:` (the last), `:3`."""

    def chosen(self, turns: Sequence[Turn]) -> frozenset[int]:
        """Indices of the turns that are trained. Raises ValueError where `turns` is no slice."""
        passing = [
            turn.index
            for turn in turns
            if (not self.agents or turn.agent_name in self.agents)
            and (not self.models or turn.asked_model in self.models)
        ]
        return frozenset(passing[parse_slice(self.turns)])


def parse_slice(text: str) -> slice:
    """`start:stop` as a slice. Raises ValueError for anything else."""
    start, colon, stop = text.partition(":")
    if not colon:
        raise ValueError(f"{text!r} is no slice of turns: write `:`, `-1:` or `:3`")
    return slice(int(start) if start else None, int(stop) if stop else None)


EVERY_TURN = TurnFilter()
"""Trains all that was sampled."""
