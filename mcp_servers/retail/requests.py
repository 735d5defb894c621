"""One customer request each: who asks, what is said, what a careful agent does, and what a careless one would do.

Knows nothing about MCP or grading. Each builder takes a Scene and answers a Request, or None where the scene doesn't
fit (the caller draws another). Used by refusals.py and tasks.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from mcp_servers.drafts import Action, Request
from mcp_servers.retail.data import new_address
from mcp_servers.retail.state import PRODUCTS
from mcp_servers.retail.writes import CANCEL_REASONS
from mcp_servers.state import Base, Entity
from mcp_servers.wording import Wording

SOURCE_NAMES = {"credit_card": "my credit card", "paypal": "my paypal", "gift_card": "my gift card"}
ORIGINAL = "the original payment method"


@dataclass(slots=True)
class Scene:
    """What a builder draws from."""

    base: Base
    """The world."""
    user: Entity
    """The customer."""
    order: Entity
    """The order that the request is about."""
    wording: Wording
    """Phrases of the task's split."""
    rng: random.Random
    """Where the draws come from."""
    two_items: bool = False
    """Whether the request is to name two items."""
    other_method: bool = False
    """Whether the customer is to name a payment method of their own choice."""


def cancel(scene: Scene) -> Request | None:
    """Cancel a pending order for one of the two reasons."""
    if scene.order["status"] != "pending":
        return None
    order_id = scene.order["order_id"]
    right, wrong = scene.rng.sample(CANCEL_REASONS, 2)
    text = scene.wording.say("cancel", order=order_id, reason=scene.wording.reason(right))
    writes = [_cancel(order_id, right)]
    return Request(text, [_look(scene)], writes, [[_cancel(order_id, wrong)]])


def return_items(scene: Scene) -> Request | None:
    """Return one or two items of a delivered order to the original method or a gift card."""
    order, rng = scene.order, scene.rng
    count = 2 if scene.two_items else 1
    if order["status"] != "delivered" or len(order["items"]) < count:
        return None
    original = original_method(order)
    method_id, pay = original, _pay(scene, "refund", ORIGINAL, optional=True)
    reads = [_look(scene)]
    if scene.other_method:
        cards = [m["id"] for m in methods_of(scene) if m["source"] == "gift_card" and m["id"] != original]
        if not cards:
            return None
        method_id, pay = cards[0], scene.wording.say("refund", method=SOURCE_NAMES["gift_card"])
        reads.append(_profile(scene))
    lines = rng.sample(order["items"], count)
    text = scene.wording.say("return", order=order["order_id"], items=names_of(lines), pay=pay)
    item_ids = [line["item_id"] for line in lines]
    every_id = [line["item_id"] for line in order["items"]]
    careless = [[_return(order, item_ids[:1], method_id)]] if count == 2 else []
    careless += [[_return(order, item_ids, original)]] if method_id != original else []
    careless += [[_return(order, [other], method_id)] for other in every_id if [other] != item_ids]
    careless += [[_return(order, every_id, method_id)]] if len(every_id) > count else []
    careless += [[_return(order, item_ids, m["id"])] for m in methods_of(scene) if m["id"] != method_id]
    return Request(text, reads, [_return(order, item_ids, method_id)], careless)


def exchange(scene: Scene) -> Request | None:
    """Exchange one or two items of a delivered order."""
    return _swap(scene, "exchange") if scene.order["status"] == "delivered" else None


def modify_items(scene: Scene) -> Request | None:
    """Change one or two items of a pending order."""
    return _swap(scene, "modify_items") if scene.order["status"] == "pending" else None


def order_address(scene: Scene) -> Request | None:
    """Change where a pending order goes."""
    if scene.order["status"] != "pending":
        return None
    order_id, user = scene.order["order_id"], scene.user
    address = new_address(scene.rng)
    text = scene.wording.say("order_address", order=order_id, address=spoken(address))
    old_zip = {**address, "zip": scene.order["address"]["zip"]}
    careless: list[list[Action]] = [[("modify_user_address", {"user_id": user["user_id"], **address})]]
    careless.append([_readdress(order_id, old_zip)])
    if address["address2"]:
        careless.insert(0, [_readdress(order_id, {**address, "address2": ""})])
    return Request(text, [_look(scene)], [_readdress(order_id, address)], careless)


def payment(scene: Scene) -> Request | None:
    """Pay a pending order with another method of the customer."""
    order = scene.order
    original = original_method(order)
    if order["status"] != "pending" or len(order["payment_history"]) != 1:
        return None
    amount = order["payment_history"][0]["amount"]
    others = [m for m in methods_of(scene) if m["id"] != original]
    able = [m for m in others if m.get("balance", amount) >= amount]
    if not able:
        return None
    method = scene.rng.choice(able)
    text = scene.wording.say("payment", order=order["order_id"], method=SOURCE_NAMES[method["source"]])
    careless = [[_repay(order, m["id"])] for m in (*others, {"id": original}) if m is not method]
    return Request(text, [_look(scene), _profile(scene)], [_repay(order, method["id"])], careless)


BUILDERS: dict[str, Callable[[Scene], Request | None]] = {
    "cancel": cancel,
    "return": return_items,
    "exchange": exchange,
    "modify_items": modify_items,
    "order_address": order_address,
    "payment": payment,
}
"""Request kind → its builder."""


def variants_of(scene: Scene, line: Entity) -> list[Entity]:
    """The variants of an order line's product, without the line's own."""
    product = scene.base.get(PRODUCTS, line["product_id"]) or {"variants": {}}
    return [variant for item_id, variant in product["variants"].items() if item_id != line["item_id"]]


def original_method(order: Entity) -> str:
    """The id of the method that paid the order first."""
    return order["payment_history"][0]["payment_method_id"]


def methods_of(scene: Scene) -> list[Entity]:
    """The customer's payment methods."""
    return list(scene.user["payment_methods"].values())


def names_of(lines: list[Entity]) -> str:
    """Order lines as a customer names them."""
    return " and ".join(f"the {line['name']}" for line in lines)


def spoken(address: Entity) -> str:
    """An address as a customer writes it."""
    parts = (address["address1"], address["address2"], address["city"], address["state"], address["zip"])
    return ", ".join(part for part in parts if part)


def wanted(line: Entity, variant: Entity) -> str:
    """What the customer says of a variant: the option values that differ from the line they have."""
    return " and ".join(value for name, value in variant["options"].items() if line["options"].get(name) != value)


def swap_writes(kind: str, order: Entity, pairs: list[tuple[str, str]], method_id: str) -> Action:
    """The write of an exchange or a change of items: (old id, new id) pairs."""
    name = "exchange_delivered_order_items" if kind == "exchange" else "modify_pending_order_items"
    olds, news = [old for old, _ in pairs], [new for _, new in pairs]
    arguments = {"order_id": order["order_id"], "item_ids": olds, "new_item_ids": news, "payment_method_id": method_id}
    return name, arguments


def _swap(scene: Scene, kind: str) -> Request | None:
    order, count = scene.order, 2 if scene.two_items else 1
    if len(order["items"]) < count:
        return None
    lines = scene.rng.sample(order["items"], count)
    choices = [[v for v in variants_of(scene, line) if v["available"]] for line in lines]
    if not all(choices):
        return None
    chosen = [scene.rng.choice(options) for options in choices]
    original, reads = original_method(order), [_look(scene)]
    method_id, pay = original, _pay(scene, "charge", ORIGINAL, optional=True)
    if scene.other_method:
        others = [m for m in methods_of(scene) if m["id"] != original]
        if not others:
            return None
        method = scene.rng.choice(others)
        method_id, pay = method["id"], scene.wording.say("charge", method=SOURCE_NAMES[method["source"]])
        reads.append(_profile(scene))
    pairs = [(line["item_id"], variant["item_id"]) for line, variant in zip(lines, chosen, strict=True)]
    said = [
        scene.wording.say("swap", item=line["name"], want=wanted(line, variant))
        for line, variant in zip(lines, chosen, strict=True)
    ]
    text = scene.wording.say(kind, order=order["order_id"], swap=" and ".join(said), pay=pay)
    reads += [("get_product_details", {"product_id": line["product_id"]}) for line in lines]
    careless = [[swap_writes(kind, order, pairs[:1], method_id)]] if count == 2 else []
    others = [v["item_id"] for v in choices[-1] if v is not chosen[-1]]
    careless += [[swap_writes(kind, order, [*pairs[:-1], (pairs[-1][0], other)], method_id)] for other in others]
    careless += [[swap_writes(kind, order, pairs, m["id"])] for m in methods_of(scene) if m["id"] != method_id]
    return Request(text, reads, [swap_writes(kind, order, pairs, method_id)], careless)


def _pay(scene: Scene, phrase: str, method: str, *, optional: bool) -> str:
    if optional and scene.rng.random() < 0.6:
        return ""
    return scene.wording.say(phrase, method=method)


def _look(scene: Scene) -> Action:
    return "get_order_details", {"order_id": scene.order["order_id"]}


def _profile(scene: Scene) -> Action:
    return "get_user_details", {"user_id": scene.user["user_id"]}


def _cancel(order_id: str, reason: str) -> Action:
    return "cancel_pending_order", {"order_id": order_id, "reason": reason}


def _return(order: Entity, item_ids: list[str], method_id: str) -> Action:
    arguments = {"order_id": order["order_id"], "item_ids": item_ids, "payment_method_id": method_id}
    return "return_delivered_order_items", arguments


def _readdress(order_id: str, address: Entity) -> Action:
    return "modify_pending_order_address", {"order_id": order_id, **address}


def _repay(order: Entity, method_id: str) -> Action:
    return "modify_pending_order_payment", {"order_id": order["order_id"], "payment_method_id": method_id}
