"""Seeded, unlimited airline tasks: a user's message and the state that the right answer leaves.

Knows nothing about MCP or agents. Here is how a task is drawn; what it is checked for and how it is written down are
in mcp_servers/generator.py. Used by server.py and tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_servers.airline.data import generated_base
from mcp_servers.airline.dialog import dialog
from mcp_servers.airline.refusals import REFUSALS
from mcp_servers.airline.requests import bags, cancel, compensation, passengers
from mcp_servers.airline.scene import Scene, entity
from mcp_servers.airline.state import RESERVATIONS, USERS, open_airline
from mcp_servers.airline.tools import TOOLBOX
from mcp_servers.airline.trips import book, change_cabin, change_flights, quote
from mcp_servers.drafts import Action, Draft, Request
from mcp_servers.generator import UNKNOWN_USER, Draw, Task, TaskGenerator
from mcp_servers.state import Base, Entity
from mcp_servers.wording import Phrases, Wording, read_phrases

BUILDERS: dict[str, Callable[[Scene], Request | None]] = {
    "book": book,
    "change_flights": change_flights,
    "cabin": change_cabin,
    "bags": bags,
    "passengers": passengers,
    "cancel": cancel,
    "compensation": compensation,
    "quote": quote,
}
"""Request kind → its builder."""
KINDS = (*BUILDERS, "refuse")
EARLIER = ("bags", "passengers", "cancel")
"""Kinds that come first where a task has two requests."""


@dataclass(slots=True)
class AirlineDraft(Draft):
    """An airline task before it is written down."""

    user: Entity
    """Who asks."""
    identity: str
    """The sentence by which it says who it is."""
    consent: str
    """The name of the phrase with which it says yes."""


def expert_answer(task: Task) -> str:
    """What a careful agent says at the end."""
    return f"Done as far as the rules allow. {' '.join(task['expected']['communicate'])}".strip()


def phrases() -> Phrases:
    """Split → phrase name → lines, and under "reason" reason → lines."""
    return read_phrases(Path(__file__).with_name("phrases.toml"))


def _draw(wanted: Draw) -> AirlineDraft | None:
    base, split, kind, refusal = wanted.base, wanted.split, wanted.kind, wanted.refusal
    difficulty, rng = wanted.difficulty, wanted.rng
    members: list[str] = base.meta["splits"][split]
    user = entity(base, USERS, rng.choice(members))
    owner = entity(base, USERS, rng.choice(members)) if refusal == "not_owner" else user
    if refusal == "not_owner" and owner is user:
        return None
    reservation_id = rng.choice(owner["reservations"])
    wording = Wording(phrases()[split], rng)
    harder = difficulty == 2 or (difficulty == 3 and rng.random() < 0.5)
    scene = Scene(base, user, entity(base, RESERVATIONS, reservation_id), wording, rng, harder)
    request = REFUSALS[refusal][1](scene) if refusal else BUILDERS[kind](scene)
    if request is None:
        return None
    requests = [request]
    if difficulty == 3:
        earlier = _earlier_request(scene, reservation_id)
        if earlier is None:
            return None
        requests.insert(0, earlier)
    identify, identity = _identity(base, user, wording, known=refusal != UNKNOWN_USER)
    actions = [action for r in requests for action in (*r.reads, *r.writes)]
    named = {arguments["reservation_id"] for _, arguments in actions if "reservation_id" in arguments}
    metadata = {
        "refusal": refusal,
        "user_id": user["user_id"],
        "reservation_ids": sorted(named | {reservation_id}),
        "phrases": wording.used,
    }
    go = "only_tell" if kind == "quote" and difficulty < 3 else "consent"
    message = wording.message(identity, [r.text for r in requests], go)
    return AirlineDraft(message, identify, requests, metadata, user, identity, go)


def _earlier_request(scene: Scene, taken: str) -> Request | None:
    """A second, simple request for another reservation of the same user."""
    others = [reservation_id for reservation_id in scene.user["reservations"] if reservation_id != taken]
    reservation = scene.held(scene.rng.choice(others))
    other = Scene(scene.base, scene.user, reservation, scene.wording, scene.rng)
    return BUILDERS[scene.rng.choice(EARLIER)](other)


def _identity(base: Base, user: Entity, wording: Wording, *, known: bool) -> tuple[Action, str]:
    user_id, name = user["user_id"], f"{user['name']['first_name']} {user['name']['last_name']}"
    while not known and base.get(USERS, user_id) is not None:
        user_id = f"{name.replace(' ', '_').lower()}_{wording.rng.randint(100, 999)}"
    return ("get_user_details", {"user_id": user_id}), wording.say("identity", name=name, user=user_id)


def _dialog(_: Base, draft: AirlineDraft, split: str, rng: random.Random) -> dict[str, Any]:
    return dialog(draft.user, draft.identity, draft.requests, draft.consent, Wording(phrases()[split], rng))


GENERATOR = TaskGenerator(
    server="airline",
    default_base=generated_base,
    toolbox=TOOLBOX,
    opened=open_airline,
    policy_file=Path(__file__).with_name("policy.md"),
    kinds=KINDS,
    refusals=REFUSALS,
    draw=_draw,
    dialog=_dialog,
    attempts=20_000,
)
generate_tasks = GENERATOR.tasks
sloppy_actions = GENERATOR.sloppy_actions
policy = GENERATOR.policy
