"""Generated airline tasks: solved as stated, not by doing nothing or carelessly; nothing leaks between the splits."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from harness.task import task_from_dict
from harness.user import scenario_of
from mcp_servers.airline.data import free_bags, generated_base
from mcp_servers.airline.tasks import (
    generate_tasks,
)
from mcp_servers.airline.tools import TOOLBOX
from mcp_servers.drafts import SPLITS
from mcp_servers.generator import expert_actions
from mcp_servers.state import Base

Task = dict[str, Any]
COUNT = 120


@pytest.fixture(scope="module")
def base() -> Base:
    return generated_base()


@pytest.fixture(scope="module", params=SPLITS)
def tasks(request: pytest.FixtureRequest, base: Base) -> list[Task]:
    return generate_tasks(request.param, 7, 0, COUNT, base=base)


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
