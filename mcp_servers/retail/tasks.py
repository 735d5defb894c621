"""Seeded, unlimited retail tasks: a customer's message and the state that the right answer leaves.

Knows nothing about MCP or agents. Here is how a task is drawn; what it is checked for and how it is written down are
in mcp_servers/generator.py. Used by server.py, demonstrations.py and tests.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_servers.drafts import Action, Draft, Request
from mcp_servers.generator import UNKNOWN_USER, Draw, TaskGenerator
from mcp_servers.retail.data import generated_base
from mcp_servers.retail.dialog import Told, dialog, told_requests
from mcp_servers.retail.refusals import REFUSALS
from mcp_servers.retail.requests import BUILDERS, Scene
from mcp_servers.retail.state import ORDERS, USERS, open_retail, users_by_email
from mcp_servers.retail.tools import TOOLBOX, call_tool
from mcp_servers.retail.wording import wording_of
from mcp_servers.state import Base, Entity
from mcp_servers.wording import Wording

KINDS = (*BUILDERS, "refuse")
STATUSES_BY_KIND = {
    "cancel": ("pending",),
    "return": ("delivered",),
    "exchange": ("delivered",),
    "modify_items": ("pending",),
    "order_address": ("pending",),
    "payment": ("pending",),
    "bad_reason": ("pending",),
    "refund_elsewhere": ("delivered",),
    "balance_short": ("pending",),
}
"""Request kind or refusal → the order statuses it can be about, so that few draws are thrown away."""


@dataclass(slots=True)
class RetailDraft(Draft):
    """A retail task before it is written down."""

    told: Told
    """What the message was made of."""


def _draw(wanted: Draw) -> RetailDraft | None:
    base, split, kind, refusal = wanted.base, wanted.split, wanted.kind, wanted.refusal
    difficulty, rng = wanted.difficulty, wanted.rng
    members: list[str] = base.meta["splits"][split]
    user = _entity(base, USERS, rng.choice(members))
    wording = wording_of(split, rng)
    owner = _entity(base, USERS, rng.choice(members)) if refusal == "not_owner" else user
    if refusal == "not_owner" and owner is user:
        return None
    fitting = STATUSES_BY_KIND.get(refusal or kind, ("pending", "delivered", "processed"))
    order_ids = [order_id for order_id in owner["orders"] if _entity(base, ORDERS, order_id)["status"] in fitting]
    if not order_ids:
        return None
    rng.shuffle(order_ids)
    scene = Scene(base, user, _entity(base, ORDERS, order_ids[0]), wording, rng)
    if difficulty > 1:
        scene.two_items, scene.other_method = rng.choice(
            ((True, False), (False, True), (difficulty == 3, difficulty == 3))
        )
    request = REFUSALS[refusal][1](scene) if refusal else BUILDERS[kind](scene)
    if request is None:
        return None
    requests = [request]
    if difficulty == 3:
        earlier = _earlier_request(scene, user, order_ids[0])
        if earlier is None:
            return None
        requests.insert(0, earlier)
    identify, identity = _identity(
        base, user, wording, by_name=difficulty > 1 and rng.random() < 0.5, known=refusal != UNKNOWN_USER
    )
    found = call_tool(open_retail(base), *identify)
    if not found.is_error and found.text != user["user_id"]:
        return None
    metadata = {
        "refusal": refusal,
        "user_id": user["user_id"],
        "order_ids": sorted(
            {action[1]["order_id"] for r in requests for action in (*r.reads, *r.writes) if "order_id" in action[1]}
            | {order_ids[0]}
        ),
        "phrases": wording.used,
    }
    message = wording.message(identity, [r.text for r in requests])
    told = Told(split, user, identity, told_requests(requests, wording.said))
    return RetailDraft(message, identify, requests, metadata, told)


def _earlier_request(scene: Scene, user: Entity, taken: str) -> Request | None:
    """A second, simple request for another order of the same customer."""
    others = [order_id for order_id in user["orders"] if order_id != taken]
    order = _entity(scene.base, ORDERS, scene.rng.choice(others)) if others else None
    if order is None:
        return None
    kind = {"pending": scene.rng.choice(("cancel", "order_address")), "delivered": "return"}.get(order["status"])
    return BUILDERS[kind](Scene(scene.base, user, order, scene.wording, scene.rng)) if kind else None


def _identity(base: Base, user: Entity, wording: Wording, *, by_name: bool, known: bool) -> tuple[Action, str]:
    name = f"{user['name']['first_name']} {user['name']['last_name']}"
    if by_name and known:
        zip_code = user["address"]["zip"]
        arguments = {"first_name": user["name"]["first_name"], "last_name": user["name"]["last_name"], "zip": zip_code}
        return ("find_user_id_by_name_zip", arguments), wording.say("name_zip", name=name, zip=zip_code)
    email = user["email"]
    while not known and email in users_by_email(base):
        email = f"{name.replace(' ', '.').lower()}{wording.rng.randint(100, 999)}@example.com"
    return ("find_user_id_by_email", {"email": email}), wording.say("email", name=name, email=email)


def _entity(base: Base, kind: str, entity_id: str) -> Entity:
    entity = base.get(kind, entity_id)
    if entity is None:
        raise KeyError(f"the base lists {kind} {entity_id!r} but does not hold it")
    return entity


def _dialog(base: Base, draft: RetailDraft, _: str, rng: random.Random) -> dict[str, Any]:
    return dialog(base, draft.told, rng)


GENERATOR = TaskGenerator(
    server="retail",
    default_base=generated_base,
    toolbox=TOOLBOX,
    opened=open_retail,
    policy_file=Path(__file__).with_name("policy.md"),
    kinds=KINDS,
    refusals=REFUSALS,
    draw=_draw,
    dialog=_dialog,
    attempts=5000,
)
generate_tasks = GENERATOR.tasks
sloppy_actions = GENERATOR.sloppy_actions
policy = GENERATOR.policy
