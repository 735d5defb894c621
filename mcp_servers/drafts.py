"""What generated tasks are made of before they are written down: requests, what is right, and what careless agents do.

Knows nothing about any domain or about phrases. A server's tasks.py draws drafts, keeps those that hold, and writes
them down.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcp_servers.state import Base

Action = tuple[str, dict[str, Any]]
"""A tool and its arguments."""
SPLITS = ("train", "validation", "held_out")
DIFFICULTY_WEIGHTS = {1: 50, 2: 35, 3: 15}
"""Difficulty → how often it is drawn where none is asked for."""


@dataclass(slots=True)
class Request:
    """A request and the ways to answer it."""

    text: str
    """What the user says."""
    reads: list[Action]
    """What a careful agent looks at, after the user is identified."""
    writes: list[Action]
    """The right writes; empty where there is nothing to be changed."""
    careless: list[list[Action]] = field(default_factory=list[list[Action]])
    """Wrong writes, the most typical first."""
    communicate: list[str] = field(default_factory=list[str])
    """What the answer has to say."""
    other: tuple[str, str] | None = None
    """Words of `text`, and others in their place: what a user who changes its mind asks for first."""


@dataclass(slots=True)
class Draft:
    """A task before it is written down."""

    message: str
    """The user's opening message, with everything needed in it."""
    identify: Action
    """The look-up that identifies the user."""
    requests: list[Request]
    """What is asked, in order."""
    metadata: dict[str, Any]
    """How it was drawn."""

    def right(self) -> list[Action]:
        """What a careful agent does, reads included."""
        return [self.identify, *(action for request in self.requests for action in (*request.reads, *request.writes))]

    def careless(self) -> list[list[Action]]:
        """What careless agents do, reads included, the most typical first."""
        *earlier, last = self.requests
        before = [self.identify, *(action for request in earlier for action in (*request.reads, *request.writes))]
        wrong = [[*before, *last.reads, *writes] for writes in last.careless]
        return [before, *wrong] if earlier and last.writes else wrong

    def communicate(self) -> list[str]:
        """What the answer has to say, over all requests."""
        return [info for request in self.requests for info in request.communicate]


def check_request(
    base: Base, split: str, wanted: Sequence[str], difficulty: int | None, kinds: Collection[str]
) -> None:
    """Whether tasks of that split, of the wanted kinds and of that difficulty can be drawn from a base; ValueError."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; there are {', '.join(SPLITS)}")
    unknown = [kind for kind in wanted if kind not in kinds]
    if unknown or not wanted:
        raise ValueError(f"unknown kinds {unknown}; there are {', '.join(kinds)}")
    if difficulty is not None and difficulty not in DIFFICULTY_WEIGHTS:
        raise ValueError(f"unknown difficulty {difficulty}; there are {', '.join(map(str, DIFFICULTY_WEIGHTS))}")
    if "splits" not in base.meta:
        raise ValueError("this base says nothing of splits, so no tasks can be drawn from it; use a generated base")
