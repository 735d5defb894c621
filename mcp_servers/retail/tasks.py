"""Seeded, unlimited retail tasks: a customer's message and the state that the right answer leaves.

Knows nothing about MCP or agents. Expected states come from executing the right actions; each is checked when made:
the right actions solve it, doing nothing and careless variants don't. Used by server.py, demonstrations.py and tests.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mcp_servers.drafts import DIFFICULTY_WEIGHTS, Action, Draft, Request, check_request
from mcp_servers.retail.data import generated_base
from mcp_servers.retail.dialog import Told, dialog, told_requests
from mcp_servers.retail.refusals import REFUSALS
from mcp_servers.retail.requests import BUILDERS, Scene
from mcp_servers.retail.state import ORDERS, USERS, open_retail, users_by_email
from mcp_servers.retail.tools import call_tool
from mcp_servers.retail.wording import wording_of
from mcp_servers.state import Base, Entity, canonical
from mcp_servers.wording import Wording

Task = dict[str, Any]
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
ATTEMPTS = 5000


@dataclass(slots=True)
class RetailDraft(Draft):
    """A retail task before it is written down."""

    told: Told
    """What the message was made of."""


def generate_tasks(
    split: str,
    seed: int = 0,
    offset: int = 0,
    count: int = 1,
    *,
    base: Base | None = None,
    kinds: Sequence[str] = KINDS,
    difficulty: int | None = None,
) -> list[Task]:
    """Tasks number `offset` to `offset + count - 1` of a split and seed; the same arguments give the same tasks.

    ValueError for an unknown split, kind or difficulty, or a base that has no split of its users.
    """
    base = base or generated_base()
    check_request(base, split, kinds, difficulty, KINDS)
    return [_task(base, split, seed, index, kinds, difficulty) for index in range(offset, offset + count)]


def expert_actions(task: Task) -> list[Action]:
    """What a careful agent does for a task: identify, look, write (or not)."""
    return [(action["name"], action["arguments"]) for action in task["expected"]["actions"]]


def sloppy_actions(task: Task, base: Base | None = None) -> list[Action] | None:
    """What a careless agent does for a task, or None where no typical mistake exists. Always ends in a wrong state."""
    meta = task["metadata"]
    base = base or generated_base(meta["base_seed"])
    draft = _draft(base, task["split"], meta["seed"], meta["index"], task["kind"], task["difficulty"])
    wanted = canonical(task["expected"]["changes"])
    return next((actions for actions in draft.careless() if canonical(_outcome(base, actions)) != wanted), None)


@lru_cache(maxsize=1)
def policy() -> str:
    """The policy text, which is also the system prompt."""
    return Path(__file__).with_name("policy.md").read_text(encoding="utf-8").strip()


def _task(base: Base, split: str, seed: int, index: int, kinds: Sequence[str], difficulty: int | None) -> Task:
    rng = random.Random(f"{split}-{seed}-{index}")
    kind = rng.choice(kinds)
    level = difficulty or rng.choices(list(DIFFICULTY_WEIGHTS), list(DIFFICULTY_WEIGHTS.values()))[0]
    draft = _draft(base, split, seed, index, kind, level)
    changes = _outcome(base, draft.right())
    return {
        "id": f"retail-{split}-{seed}-{index}",
        "server": "retail",
        "split": split,
        "kind": kind,
        "difficulty": level,
        "user_message": draft.message,
        "system_prompt": policy(),
        "allowed_tools": None,
        "expected": {
            "changes": changes,
            "actions": [{"name": name, "arguments": arguments} for name, arguments in draft.right()],
            "communicate": [],
        },
        "is_refusal": kind == "refuse",
        "user": dialog(base, draft.told, random.Random(f"{split}-{seed}-{index}-dialog")),
        "metadata": {**draft.metadata, "seed": seed, "index": index, "base_seed": base.meta.get("seed", 0)},
    }


@lru_cache(maxsize=256)
def _draft(base: Base, split: str, seed: int, index: int, kind: str, difficulty: int) -> RetailDraft:
    rng = random.Random(f"{split}-{seed}-{index}-{kind}-{difficulty}")
    refusal = _refusal(difficulty, rng) if kind == "refuse" else None
    for _ in range(ATTEMPTS):
        draft = _draw(base, split, kind, refusal, difficulty, rng)
        if draft is not None and _holds(base, draft, kind):
            return draft
    raise RuntimeError(
        f"no {kind} task of difficulty {difficulty} found for {split} seed {seed} index {index} in {ATTEMPTS} draws; "
        "the base has too few fitting orders: use a larger base"
    )


def _refusal(difficulty: int, rng: random.Random) -> str:
    # A customer who can't be identified can't have an earlier request carried out, so that reason has no level 3.
    weights = {name: weight for name, (weight, _) in REFUSALS.items() if difficulty < 3 or name != "unknown_user"}
    return rng.choices(list(weights), list(weights.values()))[0]


def _draw(
    base: Base, split: str, kind: str, refusal: str | None, difficulty: int, rng: random.Random
) -> RetailDraft | None:
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
        base, user, wording, by_name=difficulty > 1 and rng.random() < 0.5, known=refusal != "unknown_user"
    )
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


def _holds(base: Base, draft: Draft, kind: str) -> bool:
    """Whether the right actions work, do something (unless they refuse), and end elsewhere than careless ones."""
    retail = open_retail(base)
    for name, arguments in draft.right():
        result = call_tool(retail, name, arguments)
        if result.is_error and draft.metadata["refusal"] != "unknown_user":
            return False
        if name == draft.identify[0] and not result.is_error and result.text != draft.metadata["user_id"]:
            return False
    right = retail.state.changes()
    if not right and kind != "refuse":
        return False
    return all(canonical(_outcome(base, actions)) != canonical(right) for actions in draft.careless()[:1])


def _outcome(base: Base, actions: list[Action]) -> dict[str, dict[str, Entity]]:
    """What differs from the base after the actions; a failing one changes nothing."""
    retail = open_retail(base)
    for name, arguments in actions:
        call_tool(retail, name, arguments)
    return retail.state.changes()


def _entity(base: Base, kind: str, entity_id: str) -> Entity:
    entity = base.get(kind, entity_id)
    if entity is None:
        raise KeyError(f"the base lists {kind} {entity_id!r} but does not hold it")
    return entity
