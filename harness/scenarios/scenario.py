"""A scenario: a request that a user might make of an agent with certain tools, read from a model's answer.

Pure: it knows nothing about servers, models or files. What a model wrote is checked here one by one; near repetition
and splits are variety.py's. Called by generate.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

LEVELS = (1, 2, 3, 4, 5)
"""Difficulty: from one obvious call to a chain of calls whose results must be combined."""
SHORTEST, LONGEST = 20, 2000
"""Characters of a request."""

_PLACEHOLDER = re.compile(
    r"\[[a-z][a-z _-]*\]|<[a-z][a-z _-]*>|\{[a-z][a-z _-]*\}|\bTODO\b|\bXXX+\b|\blorem ipsum\b", re.I
)
_PLAIN_WORD = re.compile(r"[a-z]+$")


class AnswerUnreadable(ValueError):
    """A model's answer that holds no scenarios; the text says why, in words a model can act on."""


class Rejected(ValueError):
    """A scenario that can't be used; the text is the reason, the same for all of its kind."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One request."""

    request: str
    """What the user asks, with everything an agent needs to know."""
    kind: str
    """What it is about, in one or two words."""
    difficulty: int
    """1 to 5."""
    tools: tuple[str, ...]
    """Tools that a good solution uses, by name."""
    success: str
    """What a good answer shows; for people and rubrics, never shown to an agent."""


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "scenarios": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "request": {"type": "string"},
                    "kind": {"type": "string"},
                    "difficulty": {"type": "integer"},
                    "tools": {"type": "array", "items": {"type": "string"}},
                    "success": {"type": "string"},
                },
                "required": ["request", "kind", "difficulty", "tools", "success"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["scenarios"],
    "additionalProperties": False,
}


def read_rows(text: str, name: str) -> list[Mapping[str, Any]]:
    """The objects of the list `name` in the last JSON object of an answer that has one; prose around it is borne.

    Raises AnswerUnreadable.
    """
    decoder, place, found = json.JSONDecoder(), 0, None
    while (place := text.find("{", place)) >= 0:
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            place += 1
            continue
        rows = cast("dict[str, Any]", value).get(name)
        found = cast("list[Any]", rows) if isinstance(rows, list) else found
    if found is None:
        raise AnswerUnreadable(f"there is no JSON object with a list {name!r} in the answer")
    return [cast("Mapping[str, Any]", row) for row in found if isinstance(row, Mapping)]


def read_scenario(row: Mapping[str, Any], offered: Collection[str]) -> Scenario:
    """One row of a model's answer, checked against the tools that are offered. Raises Rejected."""
    request, tools, difficulty = row.get("request"), row.get("tools"), row.get("difficulty")
    if not isinstance(request, str) or not SHORTEST <= len(request.strip()) <= LONGEST:
        raise Rejected(f"a request that is no text of {SHORTEST} to {LONGEST} characters")
    if not isinstance(tools, list) or not tools:
        raise Rejected("no tools named")
    named = tuple(dict.fromkeys(str(tool) for tool in cast("list[Any]", tools)))
    if set(named) - set(offered):
        raise Rejected("tools that the server doesn't have")
    if isinstance(difficulty, bool) or difficulty not in LEVELS:
        raise Rejected("a difficulty that is not 1 to 5")
    if _PLACEHOLDER.search(request):
        raise Rejected("a placeholder where a value belongs")
    if any(_gives_away(request, tool) for tool in offered):
        raise Rejected("a tool's name in the request")
    kind = " ".join(str(row.get("kind") or "other").lower().split())[:40]
    success = str(row.get("success") or "").strip()[:LONGEST]
    return Scenario(request.strip(), kind, difficulty, named, success)


def _gives_away(request: str, tool: str) -> bool:
    """Whether a request names a tool as such; a name that is a plain word (`move`) may stand in any sentence."""
    return not _PLAIN_WORD.match(tool) and re.search(rf"(?<!\w){re.escape(tool)}(?!\w)", request) is not None
