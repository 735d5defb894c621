"""How distinct transcripts are put before a judge: in which order, under which ids, in how many prompts.

It knows nothing about groups, endpoints or answers; pure and seeded. Heats of one vote share anchors, whose scores will
put them on one scale; votes are independent orders of the same question; a twin is one transcript under two ids, to see
whether the judge agrees with itself. Called by ballot.py and by ruler.py for a preview.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.scoring.rubric import Rubric
from harness.scoring.ruler_prompt import GENTLE_LADDER, LADDER, Cut, Entry, OverBudget, Prompt, build_prompt
from harness.scoring.transcript import Transcript

# Ids that no text of a trajectory can guess and that say nothing about order.
_CONSONANTS = "bcdfghjkmnpqrstvwxz"
_LABELS = tuple(first + second + digit for first in _CONSONANTS for second in _CONSONANTS for digit in "23456789")


@dataclass(frozen=True, slots=True)
class RulerOptions:
    """How a group is put before the judge."""

    seed: int = 0
    """Seeds orders, ids, heats and twins; the same seed and content give the same prompts."""
    votes: int = 1
    """Independent orders whose scores are averaged."""
    heat_size: int = 8
    """Distinct transcripts of one prompt at most; more go into heats."""
    heat_anchors: int = 2
    """Transcripts that every heat of a large group holds."""
    twin_share: float = 0.05
    """Share of the prompts in which one transcript stands twice."""


@dataclass(frozen=True, slots=True)
class Heat:
    """One question: a prompt and who its ids stand for."""

    prompt: Prompt
    """What is sent."""
    names: dict[str, str]
    """Label → fingerprint."""
    anchors: tuple[str, ...]
    """Fingerprints that all heats of the vote share; empty where there is one heat."""
    twin: tuple[str, str] | None
    """Two labels of the same fingerprint."""
    vote: int
    """Which vote it belongs to."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be judged, and how."""

    transcripts: Mapping[str, Transcript]
    """Fingerprint → transcript; distinct, so that what is the same gets the same score."""
    rubric: Rubric
    """What the judge shall look for."""
    max_prompt_tokens: int
    """Budget of one prompt."""
    options: RulerOptions
    """Votes, heats, twins, seed."""


def plan_vote(question: Question, vote: int) -> list[Heat]:
    """The heats of one vote, in which every transcript occurs; smaller heats where the budget asks for much cutting.

    Empty when even two transcripts don't fit. Nothing depends on the order of `question.transcripts`.
    """
    size = max(2, question.options.heat_size)
    while True:
        is_last = size == 2 or len(question.transcripts) < 3
        try:
            return _heats(question, vote, size, LADDER if is_last else GENTLE_LADDER)
        except OverBudget:
            if is_last:
                return []
            size = max(2, min(size, len(question.transcripts)) // 2)


def _heats(question: Question, vote: int, size: int, ladder: Sequence[Cut]) -> list[Heat]:
    options = question.options
    names = sorted(question.transcripts)
    rng = random.Random(_seed_of(options.seed, vote, size, *names))
    rng.shuffle(names)
    if len(names) <= size:
        return [_heat(question, names, ladder, vote, rng)]
    anchors = tuple(names[: max(1, min(options.heat_anchors, size - 1))])
    rest = names[len(anchors) :]
    step = size - len(anchors)
    chunks = [[*anchors, *rest[start : start + step]] for start in range(0, len(rest), step)]
    return [replace(_heat(question, chunk, ladder, vote, rng), anchors=anchors) for chunk in chunks]


def _heat(question: Question, chunk: Sequence[str], ladder: Sequence[Cut], vote: int, rng: random.Random) -> Heat:
    order = list(chunk)
    has_twin = len(order) > 1 and rng.random() < question.options.twin_share
    twin_name = rng.choice(order) if has_twin else None
    if twin_name is not None:
        order.append(twin_name)
    rng.shuffle(order)
    labels = rng.sample(_LABELS, len(order))
    names = dict(zip(labels, order, strict=True))
    twins = [label for label, name in names.items() if name == twin_name]
    entries = [Entry(label, question.transcripts[name]) for label, name in names.items()]
    return Heat(
        prompt=build_prompt(entries, question.rubric, question.max_prompt_tokens, ladder=ladder),
        names=names,
        anchors=(),
        twin=(twins[0], twins[1]) if twins else None,
        vote=vote,
    )


def _seed_of(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big")
