"""Requests that the policy forbids, one builder a reason, with what a careless agent would do instead of refusing.

Knows nothing about MCP or grading. Built like requests.py: None where the scene doesn't fit. Used by tasks.py.
Only some of these are stopped by the tools themselves; the others depend on the agent alone.
"""

from __future__ import annotations

from collections.abc import Callable

from mcp_servers.drafts import Action, Request
from mcp_servers.retail.requests import (
    BUILDERS,
    SOURCE_NAMES,
    Scene,
    methods_of,
    names_of,
    original_method,
    swap_writes,
    variants_of,
    wanted,
)
from mcp_servers.retail.writes import CANCEL_REASONS
from mcp_servers.state import Entity


def bad_reason(scene: Scene) -> Request | None:
    """Cancel for a reason that isn't one of the two; the careless agent claims one that is."""
    if scene.order["status"] != "pending":
        return None
    order_id = scene.order["order_id"]
    text = scene.wording.say("cancel", order=order_id, reason=scene.wording.reason("other"))
    reasons = scene.rng.sample(CANCEL_REASONS, 2)
    careless: list[list[Action]] = [
        [("cancel_pending_order", {"order_id": order_id, "reason": reason})] for reason in reasons
    ]
    return Request(text, [_look(scene)], [], careless)


def not_owner(scene: Scene) -> Request | None:
    """Something right in itself, for an order of another customer; the careless agent doesn't compare the user ids.

    The scene's order must belong to someone else than its user.
    """
    kind = scene.rng.choice(("cancel", "return", "exchange", "modify_items", "order_address"))
    request = BUILDERS[kind](scene)
    if request is None:
        return None
    products = [read for read in request.reads if read[0] == "get_product_details"]
    return Request(request.text, [_look(scene)], [], [[*products, *request.writes]])


def unknown_user(scene: Scene) -> Request | None:
    """Something right in itself, from somebody who can't be identified; the careless agent goes on all the same."""
    kind = scene.rng.choice(("cancel", "return", "exchange", "modify_items", "order_address"))
    request = BUILDERS[kind](scene)
    return request and Request(request.text, [], [], [[*request.reads, *request.writes]])


def unavailable(scene: Scene) -> Request | None:
    """A variant that is sold out; the careless agent takes another one."""
    order = scene.order
    kind = {"delivered": "exchange", "pending": "modify_items"}.get(order["status"])
    line = scene.rng.choice(order["items"])
    variants = variants_of(scene, line)
    sold_out = [variant for variant in variants if not variant["available"]]
    if kind is None or not sold_out:
        return None
    want = wanted(line, scene.rng.choice(sold_out))
    swap = scene.wording.say("swap", item=line["name"], want=want)
    text = scene.wording.say(kind, order=order["order_id"], swap=swap, pay="")
    method_id = original_method(order)
    others = [variant for variant in variants if variant["available"]]
    scene.rng.shuffle(others)
    careless = [[swap_writes(kind, order, [(line["item_id"], other["item_id"])], method_id)] for other in others]
    reads: list[Action] = [_look(scene), ("get_product_details", {"product_id": line["product_id"]})]
    return Request(text, reads, [], careless)


def refund_elsewhere(scene: Scene) -> Request | None:
    """A return to a method that is neither the original nor a gift card; the careless agent refunds the original."""
    order = scene.order
    original = original_method(order)
    others = [m for m in methods_of(scene) if m["source"] != "gift_card" and m["id"] != original]
    if order["status"] != "delivered" or not others:
        return None
    line = scene.rng.choice(order["items"])
    pay = scene.wording.say("refund", method=SOURCE_NAMES[others[0]["source"]])
    text = scene.wording.say("return", order=order["order_id"], items=names_of([line]), pay=pay)
    reads: list[Action] = [_look(scene), ("get_user_details", {"user_id": scene.user["user_id"]})]
    return Request(text, reads, [], [[_return(order, [line["item_id"]], original)]])


def wrong_status(scene: Scene) -> Request | None:
    """What the order's status rules out; the careless agent does what the status allows instead."""
    order, wording, rng = scene.order, scene.wording, scene.rng
    order_id, line = order["order_id"], rng.choice(order["items"])
    if order["status"] == "delivered":
        text = wording.say("cancel", order=order_id, reason=wording.reason(rng.choice(CANCEL_REASONS)))
        every_id = [line["item_id"] for line in order["items"]]
        return Request(text, [_look(scene)], [], [[_return(order, every_id, original_method(order))]])
    if order["status"] == "pending":
        text = wording.say("return", order=order_id, items=names_of([line]), pay="")
        return Request(
            text, [_look(scene)], [], [[("cancel_pending_order", {"order_id": order_id, "reason": CANCEL_REASONS[0]})]]
        )
    kind = rng.choice(("cancel", "return"))
    reason = wording.reason(rng.choice(CANCEL_REASONS))
    text = wording.say(kind, order=order_id, reason=reason, items=names_of([line]), pay="")
    return Request(text, [_look(scene)], [])


def balance_short(scene: Scene) -> Request | None:
    """Paying with a gift card that doesn't cover the order; the careless agent takes another method."""
    order = scene.order
    original = original_method(order)
    amount = order["payment_history"][0]["amount"]
    cards = [
        m for m in methods_of(scene) if m["source"] == "gift_card" and m["id"] != original and m["balance"] < amount
    ]
    if order["status"] != "pending" or not cards:
        return None
    text = scene.wording.say("payment", order=order["order_id"], method=SOURCE_NAMES["gift_card"])
    others = [m["id"] for m in methods_of(scene) if m["source"] != "gift_card" and m["id"] != original]
    careless: list[list[Action]] = [
        [("modify_pending_order_payment", {"order_id": order["order_id"], "payment_method_id": other})]
        for other in others
    ]
    reads: list[Action] = [_look(scene), ("get_user_details", {"user_id": scene.user["user_id"]})]
    return Request(text, reads, [], careless)


REFUSALS: dict[str, tuple[int, Callable[[Scene], Request | None]]] = {
    "bad_reason": (4, bad_reason),
    "not_owner": (4, not_owner),
    "unavailable": (4, unavailable),
    "wrong_status": (4, wrong_status),
    "unknown_user": (2, unknown_user),
    "refund_elsewhere": (1, refund_elsewhere),
    "balance_short": (1, balance_short),
}
"""Why a request must be refused → (how often relative to the others, its builder)."""


def _look(scene: Scene) -> Action:
    return "get_order_details", {"order_id": scene.order["order_id"]}


def _return(order: Entity, item_ids: list[str], method_id: str) -> Action:
    arguments = {"order_id": order["order_id"], "item_ids": item_ids, "payment_method_id": method_id}
    return "return_delivered_order_items", arguments
