"""Seeded, unlimited airline tasks: a user's message and the state that the right answer leaves.

Knows nothing about MCP or agents. Expected states come from executing the right actions; each is checked when made:
the right actions solve it, doing nothing and careless variants don't. Used by server.py and tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mcp_servers.airline.data import generated_base
from mcp_servers.airline.dialog import dialog
from mcp_servers.airline.refusals import REFUSALS
from mcp_servers.airline.requests import bags, cancel, compensation, passengers
from mcp_servers.airline.scene import Scene, entity
from mcp_servers.airline.state import RESERVATIONS, USERS, open_airline
from mcp_servers.airline.tools import call_tool
from mcp_servers.airline.trips import book, change_cabin, change_flights, quote
from mcp_servers.drafts import DIFFICULTY_WEIGHTS, Action, Draft, Request, check_request
from mcp_servers.state import Base, Entity, canonical
from mcp_servers.wording import Phrases, Wording, read_phrases

Task = dict[str, Any]
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
ATTEMPTS = 20_000


@dataclass(slots=True)
class AirlineDraft(Draft):
    """An airline task before it is written down."""

    user: Entity
    """Who asks."""
    identity: str
    """The sentence by which it says who it is."""
    consent: str
    """The name of the phrase with which it says yes."""


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


def expert_answer(task: Task) -> str:
    """What a careful agent says at the end."""
    return f"Done as far as the rules allow. {' '.join(task['expected']['communicate'])}".strip()


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


def phrases() -> Phrases:
    """Split → phrase name → lines, and under "reason" reason → lines."""
    return read_phrases(Path(__file__).with_name("phrases.toml"))


def _task(base: Base, split: str, seed: int, index: int, kinds: Sequence[str], difficulty: int | None) -> Task:
    rng = random.Random(f"{split}-{seed}-{index}")
    kind = rng.choice(kinds)
    level = difficulty or rng.choices(list(DIFFICULTY_WEIGHTS), list(DIFFICULTY_WEIGHTS.values()))[0]
    draft = _draft(base, split, seed, index, kind, level)
    speaker = Wording(phrases()[split], random.Random(f"{split}-{seed}-{index}-dialog"))
    return {
        "id": f"airline-{split}-{seed}-{index}",
        "server": "airline",
        "split": split,
        "kind": kind,
        "difficulty": level,
        "user_message": draft.message,
        "system_prompt": policy(),
        "allowed_tools": None,
        "expected": {
            "changes": _outcome(base, draft.right()),
            "actions": [{"name": name, "arguments": arguments} for name, arguments in draft.right()],
            "communicate": draft.communicate(),
        },
        "is_refusal": kind == "refuse",
        "user": dialog(draft.user, draft.identity, draft.requests, draft.consent, speaker),
        "metadata": {**draft.metadata, "seed": seed, "index": index, "base_seed": base.meta.get("seed", 0)},
    }


@lru_cache(maxsize=256)
def _draft(base: Base, split: str, seed: int, index: int, kind: str, difficulty: int) -> AirlineDraft:
    rng = random.Random(f"{split}-{seed}-{index}-{kind}-{difficulty}")
    refusal = _refusal(difficulty, rng) if kind == "refuse" else None
    for _ in range(ATTEMPTS):
        draft = _draw(base, split, kind, refusal, difficulty, rng)
        if draft is not None and _holds(base, draft, kind):
            return draft
    raise RuntimeError(
        f"no {kind} task of difficulty {difficulty} found for {split} seed {seed} index {index} in {ATTEMPTS} draws; "
        "the base has too few fitting reservations: use a larger base"
    )


def _refusal(difficulty: int, rng: random.Random) -> str:
    # A user who isn't there can't have an earlier request carried out, so that reason has no level 3.
    weights = {name: weight for name, (weight, _) in REFUSALS.items() if difficulty < 3 or name != "unknown_user"}
    return rng.choices(list(weights), list(weights.values()))[0]


def _draw(
    base: Base, split: str, kind: str, refusal: str | None, difficulty: int, rng: random.Random
) -> AirlineDraft | None:
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
    identify, identity = _identity(base, user, wording, known=refusal != "unknown_user")
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


def _holds(base: Base, draft: Draft, kind: str) -> bool:
    """Whether the right actions work, do or say something (unless they refuse), and careless ones end elsewhere."""
    airline = open_airline(base)
    for name, arguments in draft.right():
        result = call_tool(airline, name, arguments)
        if result.is_error and draft.metadata["refusal"] != "unknown_user":
            return False
    right = airline.state.changes()
    if kind != "refuse" and not (right or draft.communicate()):
        return False
    return all(canonical(_outcome(base, actions)) != canonical(right) for actions in draft.careless()[:1])


def _outcome(base: Base, actions: list[Action]) -> dict[str, dict[str, Entity]]:
    """What differs from the base after the actions; a failing one changes nothing."""
    airline = open_airline(base)
    for name, arguments in actions:
        call_tool(airline, name, arguments)
    return airline.state.changes()
