"""A judge's answer → one verdict a trajectory, matched by id, complete, in range; or the reason why not.

It knows nothing about prompts, endpoints or groups; pure. Prose around the JSON and code fences are tolerated, doubt is
not: two readings that differ are no reading. Called by ruler.py and independent.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from harness.scoring.rubric import Rubric

EXPLANATION_CHARACTERS = 2000
ANSWER_CHARACTERS = 200_000
# Deep nesting makes each try slow, so that a text of brackets alone would take minutes.
FAILED_STARTS = 100


class AnswerError(ValueError):
    """The answer can't be used; the text says why, in words a judge can act on."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge said of one trajectory."""

    score: float
    """From 0 to 1; the weighted mean of the criteria where the rubric has some."""
    explanation: str
    """Why, as the judge put it."""
    criteria: dict[str, float] = field(default_factory=dict[str, float])
    """Score of each criterion; empty for a rubric without."""


def read_answer(text: str, labels: Sequence[str], rubric: Rubric) -> dict[str, Verdict]:
    """Label → verdict, for exactly these labels.

    Raises AnswerError when there is no JSON object with scores, when an id is missing, unknown or given twice, when a
    score is no number from 0 to 1, and when the text holds two valid answers that differ.
    """
    found: list[dict[str, Verdict]] = []
    errors: list[str] = []
    for candidate in _json_values(text[:ANSWER_CHARACTERS]):
        rows = _score_rows(candidate)
        if rows is None:
            continue
        try:
            found.append(_verdicts(rows, labels, rubric))
        except AnswerError as error:
            errors.append(str(error))
    if not found:
        raise AnswerError(errors[-1] if errors else _nothing_found(text))
    if any(_scores(other) != _scores(found[0]) for other in found[1:]):
        raise AnswerError("there are two answers with different scores; give one JSON object only")
    return found[-1]


def answer_schema(rubric: Rubric) -> dict[str, Any]:
    """JSON schema of the answer; the same for every group, so that endpoints can keep it compiled."""
    number = {"type": "number", "minimum": 0, "maximum": 1}
    value: dict[str, Any] = {"score": number}
    if rubric.criteria:
        names = [criterion.name for criterion in rubric.criteria]
        value = {"criteria": _strict_object(dict.fromkeys(names, number))}
    row = _strict_object({"id": {"type": "string"}, "explanation": {"type": "string"}, **value})
    return _strict_object({"scores": {"type": "array", "items": row}})


def _strict_object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


class _TwiceError(ValueError):
    pass


def _object_without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        doubled = next(name for name in names if names.count(name) > 1)
        raise _TwiceError(f"the key {doubled!r} stands twice in one JSON object")
    return dict(pairs)


_DECODER = json.JSONDecoder(object_pairs_hook=_object_without_doubles)


def _json_values(text: str) -> Iterator[Any]:
    """Every outermost JSON object in the text, in order, and arrays too as long as no object before them was broken.

    An array inside a broken object may be a draft of what its lost part would have said. Raises AnswerError for a key
    that stands twice.
    """
    place, broken, failed_starts = 0, False, 0
    while place < len(text) and failed_starts < FAILED_STARTS:
        starts = [start for start in (text.find("{", place), text.find("[", place)) if start >= 0]
        if not starts:
            return
        start = min(starts)
        try:
            value, place = _DECODER.raw_decode(text, start)
        except _TwiceError as error:
            raise AnswerError(str(error)) from error
        except (ValueError, RecursionError):
            failed_starts += 1
            broken = broken or text[start] == "{"
            place = start + 1
            continue
        if not (broken and isinstance(value, list)):
            yield value


def _score_rows(value: Any) -> list[Any] | None:
    """The list of score rows in a JSON value; None when it is about something else."""
    if isinstance(value, Mapping):
        scores = cast("Mapping[str, Any]", value).get("scores")
        return cast("list[Any]", scores) if isinstance(scores, list) else None
    rows = cast("list[Any]", value)
    return rows if rows and all(isinstance(row, Mapping) and "id" in row for row in rows) else None


def _verdicts(rows: Sequence[Any], labels: Sequence[str], rubric: Rubric) -> dict[str, Verdict]:
    verdicts: dict[str, Verdict] = {}
    for row in rows:
        if not isinstance(row, Mapping):
            raise AnswerError(f"an entry of 'scores' is {_shown(row)}, not an object with id and score")
        entry = cast("Mapping[str, Any]", row)
        label = entry.get("id")
        if label not in labels:
            raise AnswerError(f"the id {_shown(label)} was not given; the ids are {', '.join(labels)}")
        if label in verdicts:
            raise AnswerError(f"the id {label!r} occurs twice")
        verdicts[str(label)] = _verdict(entry, str(label), rubric)
    missing = [label for label in labels if label not in verdicts]
    if missing:
        raise AnswerError(f"the ids {', '.join(missing)} have no score")
    return verdicts


def _verdict(entry: Mapping[str, Any], label: str, rubric: Rubric) -> Verdict:
    explanation = str(entry.get("explanation") or "")[:EXPLANATION_CHARACTERS]
    if not rubric.criteria:
        return Verdict(_unit_number(entry.get("score"), f"the score of {label!r}"), explanation)
    given = entry.get("criteria")
    named: Mapping[str, Any] = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else dict[str, Any]()
    values = {
        criterion.name: _unit_number(named.get(criterion.name), f"criterion {criterion.name!r} of {label!r}")
        for criterion in rubric.criteria
    }
    return Verdict(rubric.weighted(values), explanation, values)


def _unit_number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AnswerError(f"{what} is {_shown(value)}, not a JSON number")
    if not 0 <= value <= 1:  # NaN fails this too, and an integer too large for a float is compared without harm
        raise AnswerError(f"{what} is {_shown(value)}, outside 0 to 1")
    return float(value)


def _scores(verdicts: Mapping[str, Verdict]) -> dict[str, float]:
    return {label: verdict.score for label, verdict in verdicts.items()}


def _shown(value: object) -> str:
    return repr(value)[:60]


def _nothing_found(text: str) -> str:
    if not text.strip():
        return "the answer is empty"
    return f"there is no JSON object with 'scores' in the answer, which begins {text.strip()[:80]!r}"
