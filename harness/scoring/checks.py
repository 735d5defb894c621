"""State checks: what a tool server's grader says about a session, as a Score.

It knows nothing about HTTP, servers or domains: it gets the grader's JSON answer as it came. An answer that can't be
read is a JudgeError, so that the rollout ends as an infrastructure failure and never as reward 0 (law 4).
Called by rollout.py when a session has been graded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from harness.errors import JudgeError
from traces.trajectory import Score

CHECKS = "checks"
CHECKS_VERSION = "checks-1"


def score_from_grade(grade: Mapping[str, Any], *, server: str) -> Score:
    """Turn `{passed, value, components, reason}` of the control API into a Score named `checks`.

    `value` is what trains (0 or 1, or a number between); `components` ride along by name and are never mixed into it.
    Raises JudgeError when a field is missing or not a number from 0 to 1, naming the server and what came.
    """
    passed = grade.get("passed")
    if not isinstance(passed, bool):
        raise _unreadable(server, f"'passed' is {passed!r}, not true or false")
    value = unit_number(grade.get("value", 1.0 if passed else 0.0))
    if value is None:
        raise _unreadable(server, f"'value' is {grade.get('value')!r}, not a number from 0 to 1")
    return Score(
        value=value,
        name=CHECKS,
        components={"passed": float(passed), **_components(grade.get("components"), server)},
        explanation=str(grade.get("reason") or ""),
        scorer_version=CHECKS_VERSION,
    )


def unit_number(value: object) -> float | None:
    """`value` as a float when it is a finite number from 0 to 1; None for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value)
    return number if math.isfinite(number) and 0.0 <= number <= 1.0 else None


def _components(raw: object, server: str) -> dict[str, float]:
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        raise _unreadable(server, f"'components' is {type(raw).__name__}, not an object of numbers")
    parts: dict[str, float] = {}
    for name, value in cast("Mapping[object, object]", raw).items():
        if not isinstance(value, int | float) or not math.isfinite(float(value)):
            raise _unreadable(server, f"component {name!r} is {value!r}, not a finite number")
        parts[str(name)] = float(value)
    return parts


def _unreadable(server: str, found: str) -> JudgeError:
    return JudgeError(
        asked=f"a grade from the tool server {server!r}",
        found=found,
        fix="make the server's grade answer {passed: bool, value: 0..1, components: {name: number}, reason: str}",
    )
