"""Generated retail tasks: solved as stated, not by doing nothing or carelessly; nothing leaks between the splits."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from mcp_servers.drafts import SPLITS
from mcp_servers.generator import expert_actions
from mcp_servers.retail.data import generated_base
from mcp_servers.retail.tasks import KINDS, generate_tasks
from mcp_servers.retail.tools import TOOLBOX
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
