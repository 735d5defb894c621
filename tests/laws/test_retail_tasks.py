"""Generated retail tasks: solved as stated, not by doing nothing or carelessly; nothing leaks between the splits."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from mcp_servers.drafts import SPLITS, Action
from mcp_servers.retail.data import generated_base
from mcp_servers.retail.grade import grade
from mcp_servers.retail.state import Retail, open_retail
from mcp_servers.retail.tasks import KINDS, expert_actions, generate_tasks, sloppy_actions
from mcp_servers.retail.tools import TOOLBOX, call_tool
from mcp_servers.retail.wording import phrases
from mcp_servers.state import Base

Task = dict[str, Any]
COUNT = 250


@pytest.fixture(scope="module")
def base() -> Base:
    return generated_base()


@pytest.fixture(scope="module", params=SPLITS)
def tasks(request: pytest.FixtureRequest, base: Base) -> list[Task]:
    return generate_tasks(request.param, 7, 0, COUNT, base=base)


def play(base: Base, actions: list[Action]) -> Retail:
    retail = open_retail(base)
    for name, arguments in actions:
        call_tool(retail, name, arguments)
    return retail


def passes(base: Base, task: Task, actions: list[Action]) -> bool:
    return grade(play(base, actions).state, task, "").passed


def near_misses(base: Base, actions: list[Action]) -> Iterator[list[Action]]:
    """The right actions with one write left out, done for another of its values, or followed by one more write."""
    for n, (name, arguments) in enumerate(actions):
        if name not in TOOLBOX.writes:
            continue
        yield actions[:n] + actions[n + 1 :]
        for changed in changed_arguments(name, arguments):
            yield [*actions[:n], (name, changed), *actions[n + 1 :]]
    other = next(
        order_id for order_id in base.ids("orders") if (base.get("orders", order_id) or {})["status"] == "pending"
    )
    if all(arguments.get("order_id") != other for _, arguments in actions):
        yield [*actions, ("cancel_pending_order", {"order_id": other, "reason": "no longer needed"})]


def changed_arguments(name: str, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "reason" in arguments:
        other = {"no longer needed": "ordered by mistake", "ordered by mistake": "no longer needed"}
        yield {**arguments, "reason": other[arguments["reason"]]}
    if "zip" in arguments:
        yield {**arguments, "zip": "000"}
        yield {**arguments, "address2": arguments["address2"] + " x"}
    if len(arguments.get("item_ids", [])) == 2:
        lists = {name: arguments[name][:1] for name in ("item_ids", "new_item_ids") if name in arguments}
        yield {**arguments, **lists}


def test_the_right_actions_of_every_task_pass_and_fail_no_call(base: Base, tasks: list[Task]) -> None:
    for task in tasks:
        retail = open_retail(base)
        failed = [call for call in expert_actions(task) if call_tool(retail, *call).is_error]
        # A customer who isn't there is found out by a look-up that fails.
        assert not failed or task["metadata"]["refusal"] == "unknown_user", task["id"]
        found = grade(retail.state, task, "")
        assert found.passed, f"{task['id']}: {found.reason}"


def test_doing_nothing_passes_only_tasks_in_which_nothing_is_to_be_done(base: Base, tasks: list[Task]) -> None:
    for task in tasks:
        idle = passes(base, task, [])
        assert idle == (task["expected"]["changes"] == {}), task["id"]
        assert not idle or task["is_refusal"], task["id"]
        assert not task["is_refusal"] or idle or task["difficulty"] == 3, task["id"]


def test_near_misses_of_every_task_fail(base: Base, tasks: list[Task]) -> None:
    tried = 0
    for task in tasks:
        for actions in near_misses(base, expert_actions(task)):
            tried += 1
            assert not passes(base, task, actions), f"{task['id']}: {actions}"
    assert tried > 2 * COUNT


def test_careless_actions_never_pass_and_exist_for_nearly_every_task(base: Base, tasks: list[Task]) -> None:
    without = 0
    for task in tasks:
        actions = sloppy_actions(task, base)
        without += actions is None
        assert actions is None or not passes(base, task, actions), task["id"]
    assert without <= COUNT * 0.08


def test_splits_share_no_customer_order_or_e_mail(base: Base) -> None:
    seen: dict[str, str] = {}
    for split in SPLITS:
        for user_id in base.meta["splits"][split]:
            user = base.get("users", user_id) or {}
            for name in (user_id, user["email"], *user["orders"]):
                assert seen.setdefault(name, split) == split, f"{name} is in {split} and in {seen[name]}"
    assert sum(name.startswith("#") for name in seen) == len(list(base.ids("orders")))


def test_tasks_of_a_split_name_only_customers_and_orders_of_that_split(base: Base, tasks: list[Task]) -> None:
    members = {user_id: split for split in SPLITS for user_id in base.meta["splits"][split]}
    for task in tasks:
        assert members[task["metadata"]["user_id"]] == task["split"]
        for order_id in re.findall(r"#[A-Z]\d{3}", json.dumps([task["user_message"], task["expected"]])):
            assert members[(base.get("orders", order_id) or {})["user_id"]] == task["split"], task["id"]


def lines_of(table: dict[str, Any]) -> Iterator[str]:
    for value in table.values():
        yield from lines_of(value) if isinstance(value, dict) else value


def words_of(line: str) -> set[str]:
    return set(re.findall(r"[a-z'-]+", re.sub(r"\{\w+\}", " ", line).lower()))


def test_splits_share_no_phrase_and_every_phrase_has_a_split(tasks: list[Task]) -> None:
    tables = {split: set(lines_of(phrases()[split])) - {""} for split in SPLITS}
    for split, lines in tables.items():
        others = set[str]().union(*(other for name, other in tables.items() if name != split))
        shared = {
            line
            for line in lines
            if re.sub(r"\W+", " ", line).lower() in {re.sub(r"\W+", " ", o).lower() for o in others}
        }
        assert not shared, f"{split} shares {shared}"
    for task in tasks:
        assert set(task["metadata"]["phrases"]) - {""} <= tables[task["split"]]


def test_every_word_of_the_other_splits_is_a_word_of_train() -> None:
    known = set[str]().union(*map(words_of, lines_of(phrases()["train"])))
    for split in ("validation", "held_out"):
        for line in lines_of(phrases()[split]):
            assert words_of(line) <= known, f"{split}: {line!r} has {words_of(line) - known}"


def test_train_has_at_least_twelve_phrases_for_each_kind_of_request() -> None:
    table = phrases()["train"]
    assert all(len(set(table[kind])) >= 12 for kind in KINDS if kind != "refuse")


def test_the_opening_message_holds_all_that_the_right_writes_need(base: Base, tasks: list[Task]) -> None:
    for task in tasks:
        message = task["user_message"]
        assert "{" not in message
        assert "[" not in message
        for name, arguments in expert_actions(task):
            if name == "find_user_id_by_email":
                assert arguments["email"] in message.lower()
            if name in TOOLBOX.writes:
                assert arguments["order_id"] in message
                said = [
                    arguments[part] for part in ("address1", "address2", "city", "state", "zip") if part in arguments
                ]
                assert all(part in message for part in said)


def test_all_kinds_and_difficulties_occur_and_can_be_asked_for(base: Base) -> None:
    drawn = generate_tasks("train", 0, 0, 400, base=base)
    assert set(Counter(task["kind"] for task in drawn)) == set(KINDS)
    assert set(Counter(task["difficulty"] for task in drawn)) == {1, 2, 3}
    for kind in KINDS:
        for difficulty in (1, 2, 3):
            only = generate_tasks("held_out", 0, 0, 3, base=base, kinds=[kind], difficulty=difficulty)
            assert {(task["kind"], task["difficulty"]) for task in only} == {(kind, difficulty)}


def test_the_same_arguments_give_the_same_tasks_wherever_the_count_starts(base: Base) -> None:
    together = generate_tasks("validation", 3, 0, 20, base=base)
    assert together[12:] == generate_tasks("validation", 3, 12, 8, base=base)
    assert together != generate_tasks("validation", 4, 0, 20, base=base)
    assert len({task["user_message"] for task in together}) == 20


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"split": "test"}, "unknown split 'test'; there are train, validation, held_out"),
        ({"split": "train", "kinds": ["retrun"]}, r"unknown kinds \['retrun'\]"),
        ({"split": "train", "difficulty": 9}, "unknown difficulty 9; there are 1, 2, 3"),
        ({"split": "train", "base": Base({})}, "says nothing of splits"),
    ],
)
def test_what_can_not_be_drawn_is_refused_with_what_there_is(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        generate_tasks(**arguments)


def test_identifiers_are_short_enough_for_a_very_small_model(base: Base) -> None:
    assert all(re.fullmatch(r"#[A-Z]\d{3}", order_id) for order_id in base.ids("orders"))
    assert all(re.fullmatch(r"[a-z]+_[a-z]+_\d{3}", user_id) for user_id in base.ids("users"))
    products = [base.get("products", product_id) or {} for product_id in base.ids("products")]
    numbers = [product["product_id"] for product in products] + [
        item for product in products for item in product["variants"]
    ]
    assert len(numbers) == len(set(numbers)) <= 900
    assert all(re.fullmatch(r"\d{3}", number) for number in numbers)
    for user_id in base.ids("users"):
        orders = (base.get("users", user_id) or {})["orders"]
        assert len({order_id[1] for order_id in orders}) == len(orders)
