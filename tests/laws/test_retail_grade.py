"""The retail grader: exact about entities and numbers, fair about partial credit, readable about why."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_servers.retail.grade import grade
from mcp_servers.state import Base, State


def state(**changes: Any) -> State:
    base = Base({"orders": {"#A100": {"status": "pending", "total": 5}, "#B200": {"status": "pending", "total": 6}}})
    found = State(base)
    for order_id, fields in changes.items():
        found.edit("orders", f"#{order_id}").update(fields)
    found.commit()
    return found


def task(changes: dict[str, Any] | None = None, communicate: list[str] | None = None) -> dict[str, Any]:
    orders = {f"#{order_id}": entity for order_id, entity in (changes or {}).items()}
    return {"id": "t", "expected": {"changes": {"orders": orders} if orders else {}, "communicate": communicate or []}}


CANCELLED = task({"A100": {"status": "cancelled", "total": 5}})


def test_the_expected_state_passes_with_all_components_at_one() -> None:
    found = grade(state(A100={"status": "cancelled"}), CANCELLED, "")
    assert found.passed
    assert set(found.components.values()) == {1.0}
    assert found.to_dict()["value"] == 1


@pytest.mark.parametrize(("total", "passed"), [(5.0, True), (5, True), (5.000001, False), (4.99, False), ("5", False)])
def test_numbers_are_compared_exactly_once_whole_floats_are_integers(total: object, passed: bool) -> None:
    assert grade(state(A100={"status": "cancelled", "total": total}), CANCELLED, "").passed == passed


def test_a_null_field_is_the_same_as_a_missing_one() -> None:
    assert grade(state(A100={"status": "cancelled", "return_items": None}), CANCELLED, "").passed


def test_a_change_that_is_missing_fails_and_is_named() -> None:
    found = grade(state(), CANCELLED, "")
    assert (found.passed, found.reason) == (False, "orders #A100 was not changed, but should have been")
    assert (found.components["entities_right"], found.components["nothing_else_changed"]) == (0.0, 1.0)


def test_a_change_too_many_fails_and_is_named_with_its_fields() -> None:
    found = grade(state(A100={"status": "cancelled"}, B200={"total": 1}), CANCELLED, "")
    assert (found.passed, found.reason) == (False, "orders #B200 was changed (total), but should not have been")
    assert (found.components["entities_right"], found.components["nothing_else_changed"]) == (1.0, 0.0)


def test_partial_credit_counts_the_fields_that_had_to_change_and_never_passes() -> None:
    wanted = task({"A100": {"status": "cancelled", "total": 0}})
    found = grade(state(A100={"status": "cancelled"}), wanted, "")
    assert found.components["fields_right"] == 0.5
    assert (found.passed, found.reason) == (False, "orders #A100 total: expected 0, found 5")


def test_a_refusal_passes_only_if_nothing_changed() -> None:
    untouched = grade(state(), task(), "")
    assert (untouched.passed, untouched.reason) == (True, "nothing was changed, as it should be")
    assert not grade(state(B200={"total": 1}), task(), "Sorry, no.").passed


@pytest.mark.parametrize(
    ("answer", "info", "said"),
    [
        ("The refund is $1,234.50.", "1234.5", True),
        ("The refund is 2010.", "10", False),
        ("You get 10 back", "10", True),
        ("It goes to your PayPal account.", "paypal", True),
        ("It goes to your card.", "paypal", False),
        ("", "10", False),
    ],
)
def test_what_must_be_said_is_looked_for_by_value_or_by_words(answer: str, info: str, said: bool) -> None:
    found = grade(state(), task(communicate=[info]), answer)
    assert (found.passed, found.components["communicated"]) == (said, float(said))
    assert said or f"the answer does not say {info!r}" in found.reason


def test_many_differences_are_counted_rather_than_all_told() -> None:
    found = grade(
        state(A100={f"f{n}": n for n in range(9)}, B200={}), task({"A100": {"status": "pending", "total": 5}}), ""
    )
    assert found.reason.endswith("and 6 more differences")


def test_a_task_without_expectations_is_refused_by_its_id() -> None:
    with pytest.raises(ValueError, match="task 'x' has no expected changes"):
        grade(state(), {"id": "x"}, "")
