"""What generated customers say: phrases.toml read once, choices expanded, and a whole opening message put together.

Knows nothing about orders or tools. Used by requests.py (one request) and tasks.py (the message).
"""

from __future__ import annotations

import random
import re
import tomllib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

PHRASES = Path(__file__).with_name("phrases.toml")
_CHOICE = re.compile(r"\[([^\]]*)\]")


@lru_cache(maxsize=1)
def phrases() -> dict[str, dict[str, Any]]:
    """Split → phrase name → lines, and under "reason" reason → lines."""
    with PHRASES.open("rb") as file:
        return tomllib.load(file)


@dataclass(slots=True)
class Wording:
    """Draws phrases of one split and remembers which lines it used."""

    split: str
    """train, validation or held_out."""
    rng: random.Random
    """Where the draws come from."""
    used: list[str] = field(default_factory=list[str])
    """The lines drawn so far, before their slots were filled: the fingerprint by which splits are compared."""

    def say(self, phrase: str, /, **slots: str) -> str:
        """One phrase of that name with its choices made and its slots filled."""
        return self._fill(phrases()[self.split][phrase], slots)

    def reason(self, reason: str) -> str:
        """A sentence that gives a reason: one of the valid ones, or "other"."""
        return self._fill(phrases()[self.split]["reason"][reason], {})

    def message(self, identity: str, requests: list[str]) -> str:
        """The opening message: greeting, identity, requests and go-ahead, in varying order."""
        wish = f" {self.say('also')} ".join(requests)
        parts = self.rng.choice(
            ([identity, wish, "{go}"], [wish, identity, "{go}"], [identity, wish, "{go}"], [wish, "{go}", identity])
        )
        text = " ".join(parts).replace("{go}", self.say("consent"))
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
