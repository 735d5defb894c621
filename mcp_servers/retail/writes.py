"""The seven retail tools that change state, each with its checks in a fixed order before the first change.

Knows nothing about MCP. With `retail.tau2` they keep the published oddities (last variant's price on every line,
unrounded differences, refunds of refunds); without, they behave as the policy says. Listed for callers in tools.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from mcp_servers.retail.reads import show_order
from mcp_servers.retail.records import (
    City,
    Country,
    ItemIds,
    NewItemIds,
    OrderId,
    PaymentMethodId,
    Reason,
    StateCode,
    Street,
    Suite,
    UserId,
    Zip,
)
from mcp_servers.retail.state import ORDERS, PRODUCTS, USERS, Retail, RetailError
from mcp_servers.state import Entity

CANCEL_REASONS = ("no longer needed", "ordered by mistake")


@dataclass(frozen=True, slots=True)
class ItemComplaints:
    """The error texts in which changing a pending order's items and exchanging delivered ones differ."""

    item_missing: str
    """Text for an item id that the order does not hold often enough; `{id}` is the id."""
    count_differs: str
    """Text for lists of different lengths."""
    balance_short: str
    """Text for a gift card that doesn't cover the difference."""
    same_item: bool
    """Whether an item may not be replaced by itself."""


def cancel_pending_order(retail: Retail, order_id: OrderId, reason: Reason) -> Entity:
    """Cancels the order and refunds what was paid; a gift card is credited at once."""
    order = retail.order(order_id)
    if order["status"] != "pending":
        raise RetailError("Non-pending order cannot be cancelled")
    if reason not in CANCEL_REASONS:
        raise RetailError("Invalid reason")
    order = retail.state.edit(ORDERS, order_id)
    for method_id, amount in _refunds(retail, order["payment_history"]):
        order["payment_history"].append(_entry("refund", amount, method_id))
        _credit(retail, order["user_id"], method_id, amount)
    order["status"] = "cancelled"
    order["cancel_reason"] = reason
    return show_order(retail, order)


def modify_pending_order_address(
    retail: Retail,
    order_id: OrderId,
    address1: Street,
    address2: Suite,
    city: City,
    state: StateCode,
    country: Country,
    zip: Zip,
) -> Entity:
    """Replaces the order's shipping address; the user's own address stays."""
    _check_modifiable(retail, retail.order(order_id))
    order = retail.state.edit(ORDERS, order_id)
    order["address"] = _address(address1, address2, city, state, country, zip)
    return show_order(retail, order)


def modify_pending_order_payment(retail: Retail, order_id: OrderId, payment_method_id: PaymentMethodId) -> Entity:
    """Pays the order with another of its owner's methods and refunds the first one."""
    order = retail.order(order_id)
    _check_modifiable(retail, order)
    method = _method(retail, order["user_id"], payment_method_id)
    history = order["payment_history"]
    if len(history) != 1 or history[0]["transaction_type"] != "payment":
        raise RetailError("There should be exactly one payment for a pending order")
    amount, old_method_id = history[0]["amount"], history[0]["payment_method_id"]
    if old_method_id == payment_method_id:
        raise RetailError("The new payment method should be different from the current one")
    if method["source"] == "gift_card" and method["balance"] < amount:
        raise RetailError("Insufficient gift card balance to pay for the order")
    order = retail.state.edit(ORDERS, order_id)
    order["payment_history"] += [_entry("payment", amount, payment_method_id), _entry("refund", amount, old_method_id)]
    _credit(retail, order["user_id"], payment_method_id, -amount)
    _credit(retail, order["user_id"], old_method_id, amount)
    return show_order(retail, order)


def modify_pending_order_items(
    retail: Retail, order_id: OrderId, item_ids: ItemIds, new_item_ids: NewItemIds, payment_method_id: PaymentMethodId
) -> Entity:
    """Replaces items by other variants of the same products and charges or refunds the difference; once per order."""
    order = retail.order(order_id)
    if order["status"] != "pending":
        raise RetailError("Non-pending order cannot be modified")
    complaints = ItemComplaints(
        "{id} not found",
        "The number of items to be exchanged should match",
        "Insufficient gift card balance to pay for the new item",
        same_item=True,
    )
    variants, difference = _check_swap(retail, order, item_ids, new_item_ids, complaints)
    _check_pays(retail, order, payment_method_id, difference, complaints)
    order = retail.state.edit(ORDERS, order_id)
    if difference or retail.tau2:
        kind = "payment" if difference > 0 else "refund"
        order["payment_history"].append(_entry(kind, abs(difference), payment_method_id))
    _credit(retail, order["user_id"], payment_method_id, -difference)
    _replace_lines(retail, order, item_ids, variants)
    order["status"] = "pending (item modified)"
    return show_order(retail, order)


def exchange_delivered_order_items(
    retail: Retail, order_id: OrderId, item_ids: ItemIds, new_item_ids: NewItemIds, payment_method_id: PaymentMethodId
) -> Entity:
    """Requests an exchange for other variants of the same products; once per order, money moves later."""
    order = retail.order(order_id)
    if order["status"] != "delivered":
        raise RetailError("Non-delivered order cannot be exchanged")
    complaints = ItemComplaints(
        "Number of {id} not found.",
        "The number of items to be exchanged should match.",
        "Insufficient gift card balance to pay for the price difference",
        same_item=not retail.tau2,
    )
    _, difference = _check_swap(retail, order, item_ids, new_item_ids, complaints)
    difference = round(difference, 2)
    _check_pays(retail, order, payment_method_id, difference, complaints)
    pairs = sorted(zip(item_ids, new_item_ids, strict=True))
    order = retail.state.edit(ORDERS, order_id)
    order["status"] = "exchange requested"
    order["exchange_items"] = [old for old, _ in pairs]
    order["exchange_new_items"] = sorted(new_item_ids) if retail.tau2 else [new for _, new in pairs]
    order["exchange_payment_method_id"] = payment_method_id
    order["exchange_price_difference"] = difference
    return show_order(retail, order)


def return_delivered_order_items(
    retail: Retail, order_id: OrderId, item_ids: ItemIds, payment_method_id: PaymentMethodId
) -> Entity:
    """Requests a return, refunded to the original method or a gift card; once per order, money moves later."""
    order = retail.order(order_id)
    if order["status"] != "delivered":
        raise RetailError("Non-delivered order cannot be returned")
    method = _method(retail, order["user_id"], payment_method_id)
    original = order["payment_history"][0]["payment_method_id"]
    if method["source"] != "gift_card" and payment_method_id != original:
        raise RetailError("Payment method should be the original payment method")
    held = Counter(line["item_id"] for line in order["items"])
    if Counter(item_ids) - held or not (item_ids or retail.tau2):
        raise RetailError("Some item not found")
    order = retail.state.edit(ORDERS, order_id)
    order["status"] = "return requested"
    order["return_items"] = sorted(item_ids)
    order["return_payment_method_id"] = payment_method_id
    return show_order(retail, order)


def modify_user_address(
    retail: Retail,
    user_id: UserId,
    address1: Street,
    address2: Suite,
    city: City,
    state: StateCode,
    country: Country,
    zip: Zip,
) -> Entity:
    """Replaces the user's default address; orders keep theirs."""
    retail.user(user_id)
    user = retail.state.edit(USERS, user_id)
    user["address"] = _address(address1, address2, city, state, country, zip)
    return user


def _check_modifiable(retail: Retail, order: Entity) -> None:
    # The policy closes an order after its items changed; the published tools let it be modified further.
    modifiable = "pending" in order["status"] if retail.tau2 else order["status"] == "pending"
    if not modifiable:
        raise RetailError("Non-pending order cannot be modified")


def _check_swap(
    retail: Retail, order: Entity, item_ids: list[str], new_item_ids: list[str], complaints: ItemComplaints
) -> tuple[list[Entity], float]:
    """The new variants, one a pair, and what they cost more than the old ones."""
    held = Counter(line["item_id"] for line in order["items"])
    for item_id in item_ids:
        if item_ids.count(item_id) > held[item_id]:
            raise RetailError(complaints.item_missing.format(id=item_id))
    if len(item_ids) != len(new_item_ids):
        raise RetailError(complaints.count_differs)
    if not (item_ids or retail.tau2):
        raise RetailError("No item given")
    variants: list[Entity] = []
    difference: float = 0
    for old_id, new_id in zip(item_ids, new_item_ids, strict=True):
        if complaints.same_item and old_id == new_id:
            raise RetailError("The new item id should be different from the old item id")
        line = next(line for line in order["items"] if line["item_id"] == old_id)
        variant = (retail.state.get(PRODUCTS, line["product_id"]) or {"variants": {}})["variants"].get(new_id)
        if variant is None:
            raise RetailError("Variant not found")
        if not variant["available"]:
            raise RetailError(f"New item {new_id} not found or available")
        variants.append(variant)
        difference += variant["price"] - line["price"]
    return variants, difference if retail.tau2 else _money(difference)


def _check_pays(
    retail: Retail, order: Entity, payment_method_id: str, difference: float, complaints: ItemComplaints
) -> None:
    method = _method(retail, order["user_id"], payment_method_id)
    if method["source"] == "gift_card" and method["balance"] < difference:
        raise RetailError(complaints.balance_short)


def _replace_lines(retail: Retail, order: Entity, item_ids: list[str], variants: list[Entity]) -> None:
    lines: list[Entity] = order["items"]
    for old_id, variant in zip(item_ids, variants, strict=True):
        line = next(line for line in lines if line["item_id"] == old_id)
        line["item_id"] = variant["item_id"]
        # The published tool writes the last pair's price and options on every line it replaces.
        source = variants[-1] if retail.tau2 else variant
        line["price"] = source["price"]
        line["options"] = dict(source["options"])


def _refunds(retail: Retail, history: list[Entity]) -> list[tuple[str, float]]:
    """(Payment method id, amount) to pay back on cancellation."""
    if retail.tau2:
        return [(entry["payment_method_id"], entry["amount"]) for entry in history]
    paid: dict[str, float] = {}
    for entry in history:
        sign = 1 if entry["transaction_type"] == "payment" else -1
        paid[entry["payment_method_id"]] = paid.get(entry["payment_method_id"], 0) + sign * entry["amount"]
    return [(method_id, _money(amount)) for method_id, amount in paid.items() if amount > 0]


def _credit(retail: Retail, user_id: str, method_id: str, amount: float) -> None:
    """Moves money onto a gift card; other methods keep no balance."""
    if _method(retail, user_id, method_id)["source"] != "gift_card" or not amount:
        return
    card = retail.state.edit(USERS, user_id)["payment_methods"][method_id]
    card["balance"] = round(card["balance"] + amount, 2)


def _method(retail: Retail, user_id: str, method_id: str) -> dict[str, Any]:
    methods = retail.user(user_id)["payment_methods"]
    if method_id not in methods:
        raise RetailError("Payment method not found")
    return methods[method_id]


def _entry(kind: str, amount: float, method_id: str) -> Entity:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": method_id}


def _address(address1: str, address2: str, city: str, state: str, country: str, zip: str) -> Entity:
    return {"address1": address1, "address2": address2, "city": city, "country": country, "state": state, "zip": zip}


def _money(amount: float) -> float:
    """An amount rounded to cents, as an integer where it is one."""
    rounded = round(amount, 2)
    return int(rounded) if float(rounded).is_integer() else rounded
