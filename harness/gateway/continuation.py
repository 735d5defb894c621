"""The splice: how turn n+1's prompt comes to hold, id for id, what was sampled in turn n (law 2). Pure.

The engine renders the whole conversation; what was sampled is put in place of what the template made of it. A turn's
end is the token that the chat template closes an assistant message with.
It knows nothing about HTTP, rollouts or messages, only ids. Called by model.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The token that closes a message in this model's chat template."""

    token: int
    """Its id."""
    text: str
    """Its text; a message that holds it as text can mislead the quick way."""


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """What is kept of an answered turn until another continues it."""

    rendered: list[int]
    """Its prompt as the template rendered it, before any splice."""
    closed: bool
    """True where sampling ended with the turn's end; False at a length limit or a stop string."""


def find_turn_end(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The turn's end, from two renderings that differ in the last assistant message only; None where there is none.

    It is the first token of what both end with.
    """
    shared = 0
    while shared < min(len(left), len(right)) and left[-1 - shared] == right[-1 - shared]:
        shared += 1
    return left[-shared] if shared else None


def tail_after_turn(rendered: list[int], earlier: list[int], end: int) -> list[int] | None:
    """What the template puts after the continued turn, the turn's end included: the quick way, one rendering.

    `earlier` is the continued turn's prompt as it was rendered. Right where the template renders old messages as before
    and closes an assistant message with one turn's end; None where the former is seen not to hold.
    """
    start = _last(earlier, end) + 1
    if rendered[:start] != earlier[:start]:
        return None
    try:
        return rendered[rendered.index(end, start) :]
    except ValueError:
        return None


def tail_by_count(rendered: list[int], upto_turn: list[int], end: int) -> list[int] | None:
    """The same by a second rendering, of the messages up to the continued turn's own: holds for any template.

    However the template renders old messages, it closes as many as before; what follows is the tail. None where it
    closes none.
    """
    closed = upto_turn.count(end)
    position = -1
    for _ in range(closed):
        try:
            position = rendered.index(end, position + 1)
        except ValueError:
            return None
    return rendered[position:] if closed else None


def splice(sequence: list[int], tail: list[int], turn: SampledTurn) -> list[int]:
    """The next prompt: prompt and completion of the continued turn as they were, then the tail.

    A turn that was cut off gets its end from the template.
    """
    return sequence + (tail[1:] if turn.closed else tail)


def _last(ids: list[int], token: int) -> int:
    for position in range(len(ids) - 1, -1, -1):
        if ids[position] == token:
            return position
    return -1
