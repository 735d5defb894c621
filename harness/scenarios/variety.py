"""Variety: what makes two requests near repetitions, and splits that share none.

Pure and seeded. Requests are compared by the runs of three words that they share, with numbers and names of things
made alike, so that "add 3 and 4" repeats "add 5 and 9". Called by generate.py.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence

from harness.scenarios.scenario import Scenario

SAME = 0.5
"""Share of common word runs from which one request repeats another and is left out."""
RELATED = 0.25
"""Share from which two requests must lie in the same split."""
SPLITS = {"train": 0.7, "validation": 0.1, "held_out": 0.2}
"""Shares of the splits."""

_WORD = re.compile(r"[\w']+")
_QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|`[^`]*`")


def shingles(request: str) -> frozenset[tuple[str, ...]]:
    """Runs of three words of a request, with numbers and quoted text made alike; of a short one, the words."""
    words = [_alike(word) for word in _WORD.findall(_QUOTED.sub(" quoted ", request.lower()))]
    if len(words) < 6:
        return frozenset((word,) for word in words)
    return frozenset(zip(words, words[1:], words[2:], strict=False))


def _alike(word: str) -> str:
    return "#" if any(character.isdigit() for character in word) else word


def likeness(left: frozenset[tuple[str, ...]], right: frozenset[tuple[str, ...]]) -> float:
    """Jaccard index: what both have over what either has, 0 to 1."""
    either = len(left | right)
    return len(left & right) / either if either else 1.0


class Kept:
    """Scenarios that are unlike one another."""

    def __init__(self) -> None:
        self.scenarios: list[Scenario] = []
        """In the order of coming."""
        self._shingles: list[frozenset[tuple[str, ...]]] = []

    def add(self, scenario: Scenario) -> bool:
        """Keep it, unless it repeats one that is kept; whether it was kept."""
        made = shingles(scenario.request)
        if any(likeness(made, other) >= SAME for other in self._shingles):
            return False
        self.scenarios.append(scenario)
        self._shingles.append(made)
        return True

    def families(self) -> list[list[int]]:
        """Indices of scenarios that are related, directly or through others; each in one family, oldest first."""
        family = list(range(len(self._shingles)))
        for right, made in enumerate(self._shingles):
            for left in range(right):
                if family[left] != family[right] and likeness(self._shingles[left], made) >= RELATED:
                    old, new = family[right], family[left]
                    family = [new if number == old else number for number in family]
        members: defaultdict[int, list[int]] = defaultdict(list)
        for index, number in enumerate(family):
            members[number].append(index)
        return list(members.values())


def assign_splits(kept: Kept, seed: int) -> list[str]:
    """A split for each scenario: no family in two, each split's share of every difficulty as near as that allows.

    Every split gets a scenario where there are as many families as splits.
    """
    families = kept.families()
    random.Random(seed).shuffle(families)
    # Large families first: what is left then evens the shares out.
    families.sort(key=len, reverse=True)
    splits = [""] * len(kept.scenarios)
    counts: dict[str, defaultdict[int, int]] = {split: defaultdict(int) for split in SPLITS}
    for number, members in enumerate(families):
        empty = [split for split in SPLITS if not sum(counts[split].values())]
        choices = empty if len(families) - number <= len(empty) else list(SPLITS)
        split = max(choices, key=lambda name: _lacking(name, members, counts, kept.scenarios))
        for index in members:
            splits[index] = split
            counts[split][kept.scenarios[index].difficulty] += 1
    return splits


def _lacking(
    split: str, members: Sequence[int], counts: dict[str, defaultdict[int, int]], scenarios: Sequence[Scenario]
) -> float:
    """How far a split is behind its share, overall and at the members' difficulties."""
    levels = [scenarios[index].difficulty for index in members]
    total = sum(sum(count.values()) for count in counts.values()) + len(members)
    behind = SPLITS[split] * total - sum(counts[split].values())
    at_level = sum(
        SPLITS[split] * (sum(count[level] for count in counts.values()) + 1) - counts[split][level] for level in levels
    )
    return behind + at_level / len(levels)
