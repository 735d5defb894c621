"""What generated customers say: phrases by split, choices expanded, and a whole opening message put together.

Knows nothing about any domain. A server keeps its table in phrases.toml; used by the files that make its tasks.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

Phrases = dict[str, dict[str, Any]]
_CHOICE = re.compile(r"\[([^\]]*)\]")


@lru_cache(maxsize=8)
def read_phrases(file: Path) -> Phrases:
    """Split → phrase name → lines, and under "reason" reason → lines; `[a|b]` is a choice, `{slot}` is filled in."""
    with file.open("rb") as opened:
        return tomllib.load(opened)


@dataclass(slots=True)
class Wording:
    """Draws phrases of one split and remembers which lines it used."""

    lines: Mapping[str, Any]
    """The split's part of the table."""
    rng: random.Random
    """Where the draws come from."""
    used: list[str] = field(default_factory=list[str])
    """The lines drawn so far, before their slots were filled: the fingerprint by which splits are compared."""
    said: list[tuple[str, dict[str, str]]] = field(default_factory=list[tuple[str, dict[str, str]]])
    """The phrases said so far, by name, and what filled their slots."""

    def say(self, phrase: str, /, **slots: str) -> str:
        """One phrase of that name with its choices made and its slots filled."""
        self.said.append((phrase, slots))
        return self._fill(self.lines[phrase], slots)

    def reason(self, reason: str) -> str:
        """A sentence that gives a reason, by the reason's name."""
        return self._fill(self.lines["reason"][reason], {})

    def message(self, identity: str, requests: list[str], go: str = "consent") -> str:
        """The opening message: greeting, identity, requests and go-ahead (a phrase of that name), in varying order."""
        wish = f" {self.say('also')} ".join(requests)
        parts = self.rng.choice(
            ([identity, wish, "{go}"], [wish, identity, "{go}"], [identity, wish, "{go}"], [wish, "{go}", identity])
        )
        text = " ".join(parts).replace("{go}", self.say(go))
        greeting = self.say("greeting")
        sentences = text[:1].upper() + text[1:] if not greeting else f"{greeting} {text}"
        return _capitalised(re.sub(r"\s+", " ", sentences).strip())

    def _fill(self, lines: list[str], slots: dict[str, str]) -> str:
        line = self.rng.choice(lines)
        self.used.append(line)
        chosen = _CHOICE.sub(lambda match: self.rng.choice(match[1].split("|")), line)
        return chosen.format(**slots)


def _capitalised(text: str) -> str:
    """Capital letters after full stops; the dots of e-mail addresses have no space behind them."""
    return re.sub(r"(?<=[.!?] )[a-z]", lambda match: match[0].upper(), text)
