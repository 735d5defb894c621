"""τ²-bench folders are taken unchanged, published ones as published; a broken one is refused in one clear message."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_servers.airline.__main__ import run as run_airline
from mcp_servers.airline.server import tau2_world as airline_folder
from mcp_servers.errors import ServerError
from mcp_servers.retail.__main__ import run as run_retail
from mcp_servers.retail.server import tau2_world as retail_folder
from mcp_servers.state import State, normalise
from mcp_servers.world import World
from tests.tau2_replay import entities_by_path

MAKE: dict[str, Callable[[Path], World]] = {"airline": airline_folder, "retail": retail_folder}
USER = {
    "user_id": "ann_lee_1",
    "name": {"first_name": "Ann", "last_name": "Lee"},
    "address": {"address1": "1 A St", "address2": None, "city": "B", "country": "USA", "state": "C", "zip": "1"},
    "email": "ann@example.com",
    "dob": "1990-01-01",
    "payment_methods": {"credit_card_1": {"source": "credit_card", "id": "credit_card_1"}},
    "saved_passengers": [],
    "membership": "gold",
    "reservations": ["AAAAAA"],
}
RESERVATION = {
    "reservation_id": "AAAAAA",
    "user_id": "ann_lee_1",
    "origin": "JFK",
    "destination": "SEA",
    "flight_type": "one_way",
    "cabin": "economy",
    "flights": [],
    "passengers": [],
    "payment_history": [{"payment_id": "credit_card_1", "amount": 100}],
    "created_at": "2024-05-01T00:00:00",
    "total_baggages": 0,
    "nonfree_baggages": 0,
    "insurance": "no",
}
CANCEL = {"action_id": "1", "name": "cancel_reservation", "arguments": {"reservation_id": "AAAAAA"}, "info": None}
INSTRUCTIONS = {
    "domain": "airline",
    "reason_for_call": "You want to cancel.",
    "known_info": "You are Ann.",
    "unknown_info": None,
    "task_instructions": "Be brief.",
}


def task(task_id: str, actions: list[Any], **fields: Any) -> dict[str, Any]:
    criteria = {"actions": actions, "communicate_info": ["100"], "nl_assertions": ["kind"], "reward_basis": ["DB"]}
    scenario = {"persona": None, "instructions": INSTRUCTIONS}
    return {"id": task_id, "user_scenario": scenario, "evaluation_criteria": criteria, "initial_state": None, **fields}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An airline folder as τ²-bench lays it out."""
    database = {"flights": {}, "users": {"ann_lee_1": USER}, "reservations": {"AAAAAA": RESERVATION}}
    write(tmp_path / "db.json", database)
    write(tmp_path / "tasks.json", [task("0", [CANCEL]), task("1", []), task("2", [])])
    write(tmp_path / "split_tasks.json", {"train": ["0"], "test": ["1"], "base": ["0", "1", "2"]})
    (tmp_path / "policy.md").write_text("# Their own policy\n", encoding="utf-8")
    return tmp_path


def write(file: Path, value: object) -> None:
    file.write_text(json.dumps(value), encoding="utf-8")


def test_a_folder_gives_its_data_tasks_and_policy(folder: Path) -> None:
    world = airline_folder(folder)
    (one,) = world.tasks("train", 0, 0, 1)
    changed = one["expected"]["changes"]["reservations"]["AAAAAA"]
    assert (one["id"], changed["status"], one["is_refusal"]) == ("airline-tau2-0", "cancelled", False)
    assert one["user_message"] == one["user"]["goal"] == "You want to cancel.\n\nYou are Ann.\n\nBe brief."
    assert one["system_prompt"] == world.policy == "# Their own policy"
    # COMMUNICATE is not what this task is judged by.
    assert (one["expected"]["communicate"], one["metadata"]["nl_assertions"]) == ([], ["kind"])
    state = State(world.base)
    assert not world.grade(state, one, "").passed
    world.run(state, CANCEL["name"], CANCEL["arguments"])
    state.commit()
    assert world.grade(state, one, "").passed


def test_tasks_of_a_test_split_or_of_none_are_held_out(folder: Path) -> None:
    held_out = airline_folder(folder).tasks("held_out", 0, 0, 2)
    assert [(one["metadata"]["tau2_id"], one["is_refusal"]) for one in held_out] == [("1", True), ("2", True)]
    (folder / "split_tasks.json").unlink()
    assert len(airline_folder(folder).tasks("held_out", 5, 0, 3)) == 3


def test_more_tasks_than_there_are_and_empty_splits_are_refused(folder: Path) -> None:
    world = airline_folder(folder)
    with pytest.raises(ValueError, match=r"no train tasks 0 to 4: .* has 1 such; ask for no more: tasks.train"):
        world.tasks("train", 0, 0, 5)
    with pytest.raises(ValueError, match="no tasks of the split 'validation'"):
        world.tasks("validation")
    with pytest.raises(ValueError, match=r"unknown kinds \['cancel'\]"):
        world.tasks("train", kinds=["cancel"])


def damage(file: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).write_text(text, encoding="utf-8") and None


def break_entity(folder: Path) -> None:
    database = json.loads((folder / "db.json").read_text())
    del database["reservations"]["AAAAAA"]["cabin"]
    write(folder / "db.json", database)


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (lambda folder: (folder / "db.json").unlink(), "db.json: No such file"),
        (damage("db.json", '{"flights": {'), "db.json is no JSON: Expecting"),
        (damage("db.json", '{"orders": {}}'), "no flights, users, reservations in it, but orders"),
        (
            damage("db.json", '{"flights": [], "users": {}, "reservations": {}}'),
            "flights: Input should be a valid dict",
        ),
        (break_entity, "reservations → AAAAAA → cabin: Field required"),
        (lambda folder: (folder / "tasks.json").unlink(), "no tasks.json in it, but db.json, policy.md, split_tasks"),
        (damage("tasks.json", "[{]"), "tasks.json is no JSON"),
        (damage("tasks.json", '{"tasks": []}'), "tasks.json: Input should be a valid list"),
        (damage("tasks.json", '[{"id": "7"}]'), "tasks.json → 0 → user_scenario: Field required"),
        (damage("tasks.json", json.dumps([task("0", []), task("0", [])])), "tasks.json has the ids 0 more than once"),
        (damage("split_tasks.json", '["0"]'), "split_tasks.json: Input should be a valid dictionary, got"),
        (
            damage("tasks.json", json.dumps([task("3", [{"name": "cancel_pending_order", "arguments": {}}])])),
            "task '3' has actions of tools that airline doesn't have: cancel_pending_order",
        ),
        (
            damage("tasks.json", json.dumps([task("4", [], initial_state={"initialization_data": {}})])),
            "task '4' has an initial_state (initialization_data), which starts the world in another state",
        ),
    ],
)
def test_a_broken_folder_is_one_message_with_what_was_found(
    folder: Path, harm: Callable[[Path], None], found: str
) -> None:
    harm(folder)
    with pytest.raises(SystemExit) as stopped:
        run_airline(["--tau2-folder", str(folder)])
    message = str(stopped.value.code)
    assert f"asked to open the tau2 database '{folder}" in message or f"tau2 tasks in '{folder}" in message
    assert f"found: {found}" in message
    assert "; give " in message


def test_a_folder_that_is_not_there_or_of_the_other_domain_is_refused(folder: Path) -> None:
    with pytest.raises(SystemExit, match=r"No such file or directory; give the db\.json"):
        run_retail(["--tau2-folder", str(folder / "none")])
    with pytest.raises(ServerError, match="no products, users, orders in it, but flights, users, reservations"):
        retail_folder(folder)


@pytest.mark.parametrize(("domain", "count"), [("airline", 30), ("retail", 74)])
def test_published_folders_expect_the_published_states(shared_data: Path, domain: str, count: int) -> None:
    published = shared_data / "tau2" / domain
    golden = {one["id"]: one for one in json.loads((published / "golden.train.json").read_text())["tasks"]}
    tasks = MAKE[domain](published).tasks("train", 0, 0, count)
    assert len(tasks) == len(golden) == count
    for one in tasks:
        wanted = golden[one["metadata"]["tau2_id"]]["changed_entities_after"]
        assert entities_by_path(one["expected"]["changes"]) == {
            path: normalise(found) for path, found in wanted.items()
        }
