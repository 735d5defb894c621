"""Generated airline tasks: solved as stated, not by doing nothing or carelessly; nothing leaks between the splits."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from harness.task import task_from_dict
from harness.user import scenario_of
from mcp_servers.airline.data import free_bags, generated_base
from mcp_servers.airline.grade import grade
from mcp_servers.airline.refusals import REFUSALS
from mcp_servers.airline.state import Airline, open_airline
from mcp_servers.airline.tasks import (
    KINDS,
    expert_actions,
    expert_answer,
    generate_tasks,
    phrases,
    sloppy_actions,
)
from mcp_servers.airline.tools import TOOLBOX, call_tool
from mcp_servers.drafts import SPLITS, Action
from mcp_servers.state import Base

Task = dict[str, Any]
COUNT = 120


@pytest.fixture(scope="module")
def base() -> Base:
    return generated_base()


@pytest.fixture(scope="module", params=SPLITS)
def tasks(request: pytest.FixtureRequest, base: Base) -> list[Task]:
    return generate_tasks(request.param, 7, 0, COUNT, base=base)


def play(base: Base, actions: list[Action]) -> Airline:
    airline = open_airline(base)
    for name, arguments in actions:
        call_tool(airline, name, arguments)
    return airline


def passes(base: Base, task: Task, actions: list[Action], answer: str) -> bool:
    return grade(play(base, actions).state, task, answer).passed


def near_misses(base: Base, actions: list[Action]) -> Iterator[list[Action]]:
    """The right actions with one write left out, done with another of its values, or followed by one more write."""
    for n, (name, arguments) in enumerate(actions):
        if name not in TOOLBOX.writes:
            continue
        yield actions[:n] + actions[n + 1 :]
        for changed in changed_arguments(name, arguments):
            yield [*actions[:n], (name, changed), *actions[n + 1 :]]
    other = next(id for id in base.ids("reservations") if all(a.get("reservation_id") != id for _, a in actions))
    yield [*actions, ("cancel_reservation", {"reservation_id": other})]


def changed_arguments(name: str, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if name == "send_certificate":
        yield {**arguments, "amount": arguments["amount"] + 50}
    if name == "update_reservation_baggages":
        yield {**arguments, "total_baggages": arguments["total_baggages"] + 1}
    if "passengers" in arguments:
        *others, last = arguments["passengers"]
        yield {**arguments, "passengers": [*others, {**last, "dob": "1901-01-01"}]}
    if name == "book_reservation":
        total, paid = arguments["total_baggages"] + 1, arguments["nonfree_baggages"]
        yield {**arguments, "total_baggages": total, "nonfree_baggages": paid}


def test_the_right_actions_of_every_task_pass_and_fail_no_call(base: Base, tasks: list[Task]) -> None:
    for task in tasks:
        airline = open_airline(base)
        failed = [call for call in expert_actions(task) if call_tool(airline, *call).is_error]
        # A user who isn't there is found out by a look-up that fails.
        assert not failed or task["metadata"]["refusal"] == "unknown_user", task["id"]
        found = grade(airline.state, task, expert_answer(task))
        assert found.passed, f"{task['id']}: {found.reason}"


def test_doing_nothing_passes_only_tasks_in_which_nothing_is_to_be_done(base: Base, tasks: list[Task]) -> None:
    for task in tasks:
        idle = passes(base, task, [], "")
        assert not idle or task["is_refusal"], task["id"]
        assert not task["is_refusal"] or idle or task["difficulty"] == 3, task["id"]


def test_what_must_be_said_must_be_said(base: Base, tasks: list[Task]) -> None:
    asked = [task for task in tasks if task["expected"]["communicate"]]
    assert len(asked) > COUNT * 0.1
    for task in asked:
        assert not passes(base, task, expert_actions(task), "It is done."), task["id"]


def test_near_misses_of_every_task_fail(base: Base, tasks: list[Task]) -> None:
    tried = 0
    for task in tasks:
        for actions in near_misses(base, expert_actions(task)):
            tried += 1
            assert not passes(base, task, actions, expert_answer(task)), f"{task['id']}: {actions}"
    assert tried > 2 * COUNT


def test_careless_actions_never_pass_and_exist_for_nearly_every_task(base: Base, tasks: list[Task]) -> None:
    without = 0
    for task in tasks:
        actions = sloppy_actions(task, base)
        without += actions is None
        assert actions is None or not passes(base, task, actions, expert_answer(task)), task["id"]
    assert without <= COUNT * 0.08


def test_splits_share_no_user_reservation_or_e_mail(base: Base) -> None:
    seen: dict[str, str] = {}
    for split in SPLITS:
        for user_id in base.meta["splits"][split]:
            user = base.get("users", user_id) or {}
            for name in (user_id, *user["reservations"]):
                assert seen.setdefault(name, split) == split, f"{name} is in {split} and in {seen[name]}"
    assert len(seen) == len(list(base.ids("reservations"))) + len(list(base.ids("users")))


def test_tasks_of_a_split_name_only_users_and_reservations_of_that_split(base: Base, tasks: list[Task]) -> None:
    members = {user_id: split for split in SPLITS for user_id in base.meta["splits"][split]}
    for task in tasks:
        assert members[task["metadata"]["user_id"]] == task["split"]
        for reservation_id in re.findall(r"\b[A-Y]\d{3}\b", json.dumps([task["user_message"], task["expected"]])):
            assert members[(base.get("reservations", reservation_id) or {})["user_id"]] == task["split"], task["id"]


def lines_of(table: dict[str, Any]) -> Iterator[str]:
    for value in table.values():
        yield from lines_of(value) if isinstance(value, dict) else value


def test_splits_share_no_phrase_and_every_phrase_has_a_split(tasks: list[Task]) -> None:
    tables = {split: set(lines_of(phrases()[split])) - {""} for split in SPLITS}
    plain = {split: {re.sub(r"\W+", " ", line).strip().lower() for line in lines} for split, lines in tables.items()}
    for split in SPLITS:
        others = set[str]().union(*(plain[name] for name in SPLITS if name != split))
        assert not plain[split] & others, f"{split} shares {plain[split] & others}"
    assert len({tuple(sorted(table)) for table in phrases().values()}) == 1
    for task in tasks:
        assert set(task["metadata"]["phrases"]) - {""} <= tables[task["split"]]


def test_the_opening_message_holds_all_that_the_right_writes_need(base: Base, tasks: list[Task]) -> None:
    for task in tasks:
        message = task["user_message"]
        assert not set("{}[]") & set(message)
        assert task["metadata"]["refusal"] == "unknown_user" or task["metadata"]["user_id"] in message.lower()
        for name, arguments in expert_actions(task):
            if name == "book_reservation":
                assert all(person["dob"] in message for person in arguments["passengers"][1:])
            held = base.get("reservations", arguments.get("reservation_id", ""))
            if held and name in TOOLBOX.writes:
                airports = {one["iata"]: one["city"] for one in base.meta["airports"]}
                route = [airports[held["origin"]], airports[held["destination"]]]
                assert held["reservation_id"] in message or all(city in message for city in route), task["id"]


def test_the_dialog_tells_who_asks_only_when_asked_and_leaves_nothing_out(tasks: list[Task]) -> None:
    for task in tasks:
        user = task["user"]
        (identity,) = user["facts"]
        asked_for = expert_actions(task)[0][1]["user_id"]
        assert asked_for in identity["say"].lower()
        assert asked_for not in user["opening"].lower()
        assert all(part in user["goal"] for part in (identity["say"], user["requests"][0]["wish"]))
        assert len(user["requests"]) == (2 if task["difficulty"] == 3 else 1)
        assert scenario_of(task_from_dict(task)).opening == user["opening"]


def test_all_kinds_difficulties_and_refusals_occur_and_can_be_asked_for(base: Base) -> None:
    drawn = generate_tasks("train", 0, 0, 300, base=base)
    assert set(Counter(task["kind"] for task in drawn)) == set(KINDS)
    assert set(Counter(task["difficulty"] for task in drawn)) == {1, 2, 3}
    for kind in KINDS:
        for difficulty in (1, 2, 3):
            only = generate_tasks("held_out", 0, 0, 3, base=base, kinds=[kind], difficulty=difficulty)
            assert {(task["kind"], task["difficulty"]) for task in only} == {(kind, difficulty)}
    refused = generate_tasks("train", 1, 0, 150, base=base, kinds=["refuse"], difficulty=1)
    assert {task["metadata"]["refusal"] for task in refused} == set(REFUSALS)


def test_the_same_arguments_give_the_same_tasks_wherever_the_count_starts(base: Base) -> None:
    together = generate_tasks("validation", 3, 0, 20, base=base)
    assert together[12:] == generate_tasks("validation", 3, 12, 8, base=base)
    assert together != generate_tasks("validation", 4, 0, 20, base=base)
    assert len({task["user_message"] for task in together}) == 20


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"split": "test"}, "unknown split 'test'; there are train, validation, held_out"),
        ({"split": "train", "kinds": ["bokk"]}, r"unknown kinds \['bokk'\]"),
        ({"split": "train", "difficulty": 9}, "unknown difficulty 9; there are 1, 2, 3"),
        ({"split": "train", "base": Base({})}, "says nothing of splits"),
    ],
)
def test_what_can_not_be_drawn_is_refused_with_what_there_is(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        generate_tasks(**arguments)


def test_generated_reservations_are_paid_for_with_the_right_bags(base: Base) -> None:
    for reservation_id in base.ids("reservations"):
        held = base.get("reservations", reservation_id) or {}
        user = base.get("users", held["user_id"]) or {}
        people = len(held["passengers"])
        free = free_bags(user["membership"], held["cabin"], people)
        assert held["nonfree_baggages"] == max(0, held["total_baggages"] - free)
        price = sum(one["price"] for one in held["flights"]) * people + 50 * held["nonfree_baggages"]
        price += 30 * people * (held["insurance"] == "yes")
        assert [entry["amount"] for entry in held["payment_history"]] == [price]
        assert held["payment_history"][0]["payment_id"] in user["payment_methods"]
