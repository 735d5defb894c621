"""The sixteen retail tools: what they change, what they refuse and in which order, with the tau2 switch off and on."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_servers.retail.state import Retail
from mcp_servers.retail.tools import TOOLS, call_tool
from mcp_servers.state import Base, State

VARIANTS: dict[str, dict[str, Any]] = {
    "101": {"item_id": "101", "options": {"color": "red"}, "available": True, "price": 10.1},
    "102": {"item_id": "102", "options": {"color": "blue"}, "available": True, "price": 30.3},
    "103": {"item_id": "103", "options": {"color": "green"}, "available": False, "price": 12},
}
MUGS: dict[str, dict[str, Any]] = {
    "201": {"item_id": "201", "options": {"size": "small"}, "available": True, "price": 5},
    "202": {"item_id": "202", "options": {"size": "large"}, "available": True, "price": 8},
}
HOME = {"address1": "1 Elm Street", "address2": "", "city": "Austin", "country": "USA", "state": "TX", "zip": "482"}
AWAY = {**HOME, "address1": "2 Oak Road", "zip": "100"}


def an_order(
    order_id: str, status: str, items: list[str], paid_with: str = "credit_card_1", **more: Any
) -> dict[str, Any]:
    goods = {**{i: ("Lamp", "100", v) for i, v in VARIANTS.items()}, **{i: ("Mug", "200", v) for i, v in MUGS.items()}}
    lines = [
        {
            "name": goods[i][0],
            "product_id": goods[i][1],
            "item_id": i,
            "price": goods[i][2]["price"],
            "options": goods[i][2]["options"],
        }
        for i in items
    ]
    paid = {
        "transaction_type": "payment",
        "amount": sum(line["price"] for line in lines),
        "payment_method_id": paid_with,
    }
    head = {"order_id": order_id, "user_id": "sofia_rossi_482", "status": status, "address": HOME}
    return {**head, "items": lines, "payment_history": [paid], **more}


def base() -> Base:
    methods = {
        "credit_card_1": {"source": "credit_card", "id": "credit_card_1", "brand": "visa", "last_four": "1111"},
        "paypal_2": {"source": "paypal", "id": "paypal_2"},
        "gift_card_3": {"source": "gift_card", "id": "gift_card_3", "balance": 15},
    }
    orders = {
        "#P100": an_order("#P100", "pending", ["101", "201"]),
        "#G100": an_order("#G100", "pending", ["201"], "gift_card_3"),
        "#D100": an_order("#D100", "delivered", ["101", "201", "201"]),
        "#S100": an_order("#S100", "processed", ["101"]),
    }
    user = {
        "user_id": "sofia_rossi_482",
        "name": {"first_name": "Sofia", "last_name": "Rossi"},
        "address": HOME,
        "email": "sofia.rossi917@example.com",
        "payment_methods": methods,
        "orders": list(orders),
    }
    products = {
        "100": {"name": "Lamp", "product_id": "100", "variants": VARIANTS},
        "200": {"name": "Mug", "product_id": "200", "variants": MUGS},
    }
    return Base({"products": products, "users": {"sofia_rossi_482": user}, "orders": orders})


@pytest.fixture
def retail() -> Retail:
    return Retail(State(base()))


@pytest.fixture
def published() -> Retail:
    return Retail(State(base()), tau2=True)


def ask(retail: Retail, name: str, **arguments: Any) -> str:
    return call_tool(retail, name, arguments).text


def order(retail: Retail, order_id: str) -> dict[str, Any]:
    return retail.order(order_id)


def gift_balance(retail: Retail) -> float:
    return retail.user("sofia_rossi_482")["payment_methods"]["gift_card_3"]["balance"]


def swap(order_id: str, old: list[str], new: list[str], method: str = "credit_card_1") -> dict[str, Any]:
    return {"order_id": order_id, "item_ids": old, "new_item_ids": new, "payment_method_id": method}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("cancel_pending_order", {"order_id": "#X1", "reason": "no longer needed"}, "Order not found"),
    ("cancel_pending_order", {"order_id": "#D100", "reason": "bad"}, "Non-pending order cannot be cancelled"),
    ("cancel_pending_order", {"order_id": "#P100", "reason": "too slow"}, "Invalid reason"),
    ("modify_pending_order_address", {"order_id": "#D100", **AWAY}, "Non-pending order cannot be modified"),
    ("modify_pending_order_payment", {"order_id": "#P100", "payment_method_id": "no"}, "Payment method not found"),
    (
        "modify_pending_order_payment",
        {"order_id": "#P100", "payment_method_id": "credit_card_1"},
        "The new payment method should be different from the current one",
    ),
    (
        "modify_pending_order_payment",
        {"order_id": "#P100", "payment_method_id": "gift_card_3"},
        "Insufficient gift card balance to pay for the order",
    ),
    ("modify_pending_order_items", swap("#D100", ["101"], ["102"]), "Non-pending order cannot be modified"),
    ("modify_pending_order_items", swap("#P100", ["101", "101"], ["102"]), "101 not found"),
    ("modify_pending_order_items", swap("#P100", ["101"], []), "The number of items to be exchanged should match"),
    (
        "modify_pending_order_items",
        swap("#P100", ["101"], ["101"]),
        "The new item id should be different from the old item id",
    ),
    ("modify_pending_order_items", swap("#P100", ["101"], ["202"]), "Variant not found"),
    ("modify_pending_order_items", swap("#P100", ["101"], ["103"]), "New item 103 not found or available"),
    ("modify_pending_order_items", swap("#P100", ["101"], ["102"], "no"), "Payment method not found"),
    (
        "modify_pending_order_items",
        swap("#P100", ["101"], ["102"], "gift_card_3"),
        "Insufficient gift card balance to pay for the new item",
    ),
    ("exchange_delivered_order_items", swap("#P100", ["101"], ["102"]), "Non-delivered order cannot be exchanged"),
    ("exchange_delivered_order_items", swap("#D100", ["999"], ["102"]), "Number of 999 not found."),
    (
        "exchange_delivered_order_items",
        swap("#D100", ["101"], []),
        "The number of items to be exchanged should match.",
    ),
    (
        "exchange_delivered_order_items",
        swap("#D100", ["101"], ["102"], "gift_card_3"),
        "Insufficient gift card balance to pay for the price difference",
    ),
    (
        "return_delivered_order_items",
        {"order_id": "#P100", "item_ids": ["101"], "payment_method_id": "credit_card_1"},
        "Non-delivered order cannot be returned",
    ),
    (
        "return_delivered_order_items",
        {"order_id": "#D100", "item_ids": ["999"], "payment_method_id": "paypal_2"},
        "Payment method should be the original payment method",
    ),
    (
        "return_delivered_order_items",
        {"order_id": "#D100", "item_ids": ["101", "101"], "payment_method_id": "credit_card_1"},
        "Some item not found",
    ),
    ("modify_user_address", {"user_id": "nobody", **AWAY}, "User not found"),
    ("find_user_id_by_email", {"email": "no@example.com"}, "User not found"),
    ("find_user_id_by_name_zip", {"first_name": "Sofia", "last_name": "Rossi", "zip": "1"}, "User not found"),
    ("get_user_details", {"user_id": "x"}, "User not found"),
    ("get_order_details", {"order_id": "P100"}, "Order not found"),
    ("get_product_details", {"product_id": "101"}, "Product not found"),
    ("get_item_details", {"item_id": "100"}, "Item not found"),
    ("calculate", {"expression": "abc"}, "Invalid characters in expression"),
    ("calculate", {"expression": "1/0"}, "division by zero"),
]


@pytest.mark.parametrize(("name", "arguments", "complaint"), REFUSED)
@pytest.mark.parametrize("tau2", [False, True])
def test_what_a_tool_refuses_it_names_exactly_and_leaves_alone(
    name: str, arguments: dict[str, Any], complaint: str, tau2: bool
) -> None:
    retail = Retail(State(base()), tau2)
    result = call_tool(retail, name, arguments)
    assert (result.text, result.is_error) == (f"Error: {complaint}", True)
    assert retail.state.changes() == {}


def test_there_are_the_sixteen_tools_of_the_published_domain() -> None:
    assert len(TOOLS) == 16


def test_look_ups_find_users_without_regard_to_case(retail: Retail) -> None:
    assert ask(retail, "find_user_id_by_email", email="SOFIA.rossi917@EXAMPLE.com") == "sofia_rossi_482"
    found = ask(retail, "find_user_id_by_name_zip", first_name="sofia", last_name="ROSSI", zip="482")
    assert found == "sofia_rossi_482"


def test_a_user_who_moved_is_found_by_the_new_zip_only(retail: Retail) -> None:
    ask(retail, "modify_user_address", user_id="sofia_rossi_482", **AWAY)
    found = [
        ask(retail, "find_user_id_by_name_zip", first_name="Sofia", last_name="Rossi", zip=zip_code)
        for zip_code in ("482", "100")
    ]
    assert found == ["Error: User not found", "sofia_rossi_482"]
    assert order(retail, "#P100")["address"] == HOME


@pytest.mark.parametrize(
    ("expression", "value"),
    [("1/3", "0.33"), ("2**3", "8.0"), ("10", "10.0"), ("-(2 + 3) * 4.5", "-22.5"), ("7//2", "3.0")],
)
def test_calculate_answers_numbers_rounded_to_two_decimals(retail: Retail, expression: str, value: str) -> None:
    assert ask(retail, "calculate", expression=expression) == value


@pytest.mark.parametrize(
    "expression", ["9**9**9", "(" * 300 + "1" + ")" * 300, "1" * 401, "", "()", "1 1", "9" * 399 + ".0"]
)
def test_calculate_refuses_what_would_take_for_ever_or_is_no_arithmetic(retail: Retail, expression: str) -> None:
    assert ask(retail, "calculate", expression=expression).startswith("Error: ")


def test_cancelling_refunds_the_order_and_credits_a_gift_card_at_once(retail: Retail) -> None:
    ask(retail, "cancel_pending_order", order_id="#G100", reason="no longer needed")
    cancelled = order(retail, "#G100")
    assert (cancelled["status"], cancelled["cancel_reason"]) == ("cancelled", "no longer needed")
    refund = {"transaction_type": "refund", "amount": 5, "payment_method_id": "gift_card_3"}
    assert cancelled["payment_history"][1:] == [refund]
    assert gift_balance(retail) == 20


def test_cancelling_after_a_change_of_payment_refunds_only_who_paid(retail: Retail, published: Retail) -> None:
    for session in (retail, published):
        ask(session, "modify_pending_order_payment", order_id="#G100", payment_method_id="paypal_2")
        ask(session, "cancel_pending_order", order_id="#G100", reason="no longer needed")
    refunds = order(retail, "#G100")["payment_history"][3:]
    assert refunds == [{"transaction_type": "refund", "amount": 5, "payment_method_id": "paypal_2"}]
    assert gift_balance(retail) == 20
    # The published tool mirrors every entry of the history, so the gift card is credited for both of its own.
    assert len(order(published, "#G100")["payment_history"]) == 6
    assert gift_balance(published) == 30


def test_another_payment_method_pays_and_the_first_is_refunded(retail: Retail) -> None:
    ask(retail, "modify_pending_order_payment", order_id="#G100", payment_method_id="credit_card_1")
    history = [
        (e["transaction_type"], e["amount"], e["payment_method_id"]) for e in order(retail, "#G100")["payment_history"]
    ]
    assert history == [("payment", 5, "gift_card_3"), ("payment", 5, "credit_card_1"), ("refund", 5, "gift_card_3")]
    assert gift_balance(retail) == 20
    again = ask(retail, "modify_pending_order_payment", order_id="#G100", payment_method_id="paypal_2")
    assert again == "Error: There should be exactly one payment for a pending order"


def test_each_changed_line_gets_its_own_price_unless_the_published_defect_is_on(
    retail: Retail, published: Retail
) -> None:
    for session in (retail, published):
        ask(session, "modify_pending_order_items", **swap("#P100", ["101", "201"], ["102", "202"]))
    right = [(line["item_id"], line["price"], line["options"]) for line in order(retail, "#P100")["items"]]
    assert right == [("102", 30.3, {"color": "blue"}), ("202", 8, {"size": "large"})]
    defect = [(line["item_id"], line["price"], line["options"]) for line in order(published, "#P100")["items"]]
    assert defect == [("102", 8, {"size": "large"}), ("202", 8, {"size": "large"})]


def test_differences_are_rounded_to_cents_unless_the_published_defect_is_on(retail: Retail, published: Retail) -> None:
    for session in (retail, published):
        ask(session, "modify_pending_order_items", **swap("#P100", ["101"], ["102"]))
    assert [order(session, "#P100")["payment_history"][1]["amount"] for session in (retail, published)] == [
        20.2,
        30.3 - 10.1,
    ]
    assert 30.3 - 10.1 != 20.2


def test_a_cheaper_item_is_refunded_to_the_gift_card_that_was_named(retail: Retail) -> None:
    ask(retail, "modify_pending_order_items", **swap("#P100", ["201"], ["202"], "gift_card_3"))
    assert gift_balance(retail) == 12
    assert order(retail, "#P100")["status"] == "pending (item modified)"


@pytest.mark.parametrize("change", ["address", "payment", "items", "cancel"])
def test_an_order_whose_items_changed_is_closed_to_further_changes(retail: Retail, change: str) -> None:
    ask(retail, "modify_pending_order_items", **swap("#P100", ["101"], ["102"]))
    calls: dict[str, tuple[str, dict[str, Any]]] = {
        "address": ("modify_pending_order_address", {"order_id": "#P100", **AWAY}),
        "payment": ("modify_pending_order_payment", {"order_id": "#P100", "payment_method_id": "paypal_2"}),
        "items": ("modify_pending_order_items", swap("#P100", ["201"], ["202"])),
        "cancel": ("cancel_pending_order", {"order_id": "#P100", "reason": "no longer needed"}),
    }
    name, arguments = calls[change]
    assert ask(retail, name, **arguments).startswith("Error: Non-pending order")


def test_the_published_tools_still_change_the_address_after_the_items(published: Retail) -> None:
    ask(published, "modify_pending_order_items", **swap("#P100", ["101"], ["102"]))
    ask(published, "modify_pending_order_address", order_id="#P100", **AWAY)
    assert order(published, "#P100")["address"] == AWAY


def test_an_exchange_keeps_which_item_is_for_which_and_moves_no_money(retail: Retail, published: Retail) -> None:
    for session in (retail, published):
        ask(session, "exchange_delivered_order_items", **swap("#D100", ["201", "101"], ["202", "102"]))
    requested = order(retail, "#D100")
    assert (requested["exchange_items"], requested["exchange_new_items"]) == (["101", "201"], ["102", "202"])
    assert (requested["status"], requested["exchange_price_difference"]) == ("exchange requested", 23.2)
    assert len(requested["payment_history"]) == 1
    assert order(published, "#D100")["exchange_new_items"] == ["102", "202"]


def test_only_the_published_exchange_takes_an_item_for_itself(retail: Retail, published: Retail) -> None:
    arguments = swap("#D100", ["101"], ["101"])
    refused = ask(retail, "exchange_delivered_order_items", **arguments)
    assert refused == "Error: The new item id should be different from the old item id"
    assert not call_tool(published, "exchange_delivered_order_items", arguments).is_error


def test_a_return_takes_items_that_were_bought_twice_twice(retail: Retail) -> None:
    ask(
        retail,
        "return_delivered_order_items",
        order_id="#D100",
        item_ids=["201", "201"],
        payment_method_id="gift_card_3",
    )
    returned = order(retail, "#D100")
    assert (returned["status"], returned["return_items"]) == ("return requested", ["201", "201"])
    assert returned["return_payment_method_id"] == "gift_card_3"
    assert gift_balance(retail) == 15


@pytest.mark.parametrize("name", ["return_delivered_order_items", "exchange_delivered_order_items"])
def test_an_empty_list_of_items_is_taken_by_the_published_tools_only(
    name: str, retail: Retail, published: Retail
) -> None:
    arguments = swap("#D100", [], [])
    if name.startswith("return"):
        del arguments["new_item_ids"]
    assert call_tool(retail, name, arguments).is_error
    assert not call_tool(published, name, arguments).is_error


def test_answers_leave_out_what_is_not_there_unless_the_published_form_is_on(retail: Retail, published: Retail) -> None:
    assert "null" not in ask(retail, "get_order_details", order_id="#P100")
    assert '"cancel_reason": null' in ask(published, "get_order_details", order_id="#P100")
