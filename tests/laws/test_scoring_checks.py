"""A grader's answer becomes a Score, and an unreadable one an error that is never reward 0."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import JudgeError
from harness.scoring.checks import score_from_grade


def test_a_grade_becomes_a_score_that_keeps_its_components_apart() -> None:
    grade = {"passed": False, "value": 0, "components": {"orders": 0.5, "users": 1}, "reason": "order #7 still open"}
    score = score_from_grade(grade, server="retail")
    assert (score.name, score.value, score.explanation) == ("checks", 0.0, "order #7 still open")
    assert score.components == {"passed": 0.0, "orders": 0.5, "users": 1.0}


def test_a_grade_without_a_value_trains_on_passed() -> None:
    assert score_from_grade({"passed": True}, server="retail").value == 1.0


@pytest.mark.parametrize(
    "grade",
    [
        {},
        {"passed": "yes", "value": 1},
        {"passed": None, "value": 1},
        {"passed": True, "value": 1.5},
        {"passed": True, "value": float("nan")},
        {"passed": True, "value": "1"},
        {"passed": True, "value": True},
        {"passed": True, "value": 1, "components": [1]},
        {"passed": True, "value": 1, "components": {"orders": "all"}},
        {"passed": True, "value": 1, "components": {"orders": float("inf")}},
    ],
)
def test_an_unreadable_grade_is_an_error_that_names_the_server(grade: dict[str, Any]) -> None:
    with pytest.raises(JudgeError, match="retail"):
        score_from_grade(grade, server="retail")
