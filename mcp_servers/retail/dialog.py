"""The dialog form of a task: what its customer says first, tells when asked, and where it changes its mind.

Knows nothing about MCP or grading. Made of what the one-message form was made of, which it leaves as it is: its own
draws come from a generator of its own. Used by tasks.py; whoever simulates the customer reads what it makes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_servers.drafts import Request
from mcp_servers.retail.data import new_address
from mcp_servers.retail.requests import BUILDERS, SOURCE_NAMES, names_of, spoken
from mcp_servers.retail.state import ORDERS
from mcp_servers.retail.wording import wording_of
from mcp_servers.retail.writes import CANCEL_REASONS
from mcp_servers.state import Base, Entity
from mcp_servers.wording import Phrases, Wording, read_phrases

Fact = dict[str, Any]
CHANGES_MIND = 0.25
"""Share of the tasks that can have it in which the customer changes its mind before the last write."""
ORDER_PATTERN = r"#[A-Z]\d+"
RULES = (
    "You talk with the customer. Ask for what you need and don't know. Before you change anything, say what you are "
    "going to do and wait for a yes. What the customer said last counts. When a request is done or refused, say so."
)
CUES = {
    "identity": ("email", "e-mail", "name", "zip", "account", "identif", "verify", "user id", "who you are"),
    "order": ("order", "which one"),
    "reason": ("reason", "why", "mistake", "no longer needed"),
    "items": ("item", "product", "what would you like to return", "what do you want to return"),
    "swap": ("item", "product", "variant", "option", "instead", "replace", "new one", "color", "size"),
    "address": ("address", "where", "street", "deliver", "zip"),
    "method": ("payment", "method", "pay ", "card", "how would you like"),
    "pay": ("payment", "method", "refund", "charge", "difference", "pay ", "card"),
}
"""Fact → beginnings of words by which an agent asks for it."""
FACTS = {
    "cancel": ("order", "reason"),
    "return": ("order", "items", "pay"),
    "exchange": ("order", "swap", "pay"),
    "modify_items": ("order", "swap", "pay"),
    "order_address": ("order", "address"),
    "payment": ("order", "method"),
}
"""Request kind → what has to be told for it."""
PHRASES = Path(__file__).with_name("dialog.toml")


@dataclass(frozen=True, slots=True)
class Told:
    """What the one-message form was made of."""

    split: str
    """Whose phrases are used."""
    user: Entity
    """The customer."""
    identity: str
    """The sentence by which it says who it is."""
    requests: list[tuple[Request, str, Mapping[str, str]]]
    """In order: the request, its kind, and what filled the kind's phrase."""


def dialog_phrases() -> Phrases:
    """Split → phrase name → lines."""
    return read_phrases(PHRASES)


def told_requests(
    requests: list[Request], said: Sequence[tuple[str, Mapping[str, str]]]
) -> list[tuple[Request, str, Any]]:
    """Each request with its kind and its slots, from all phrases of a message; the last request was drawn first."""
    kinds = [(phrase, slots) for phrase, slots in said if phrase in BUILDERS]
    return [(request, *kind) for request, kind in zip(requests, reversed(kinds), strict=True)]


def dialog(base: Base, told: Told, rng: random.Random) -> dict[str, Any]:
    """A task's field `user`, as simulated users read it."""
    speaker = Wording(dialog_phrases()[told.split], rng)
    requests: list[dict[str, Any]] = []
    for place, (request, kind, slots) in enumerate(told.requests):
        facts = [_fact(name, slots, speaker) for name in FACTS[kind]]
        if place == len(told.requests) - 1 and request.writes and rng.random() < CHANGES_MIND:
            _change_mind(base, told, speaker, facts)
        wish = speaker.say(kind)
        requests.append({"wish": _sentence(f"{speaker.say('next')} {wish}" if place else wish), "facts": facts})
    greeting = wording_of(told.split, rng).say("greeting")
    return {
        "opening": f"{greeting} {requests[0]['wish']}".strip(),
        "goal": _goal(told, requests),
        "facts": [{"name": "identity", "cues": CUES["identity"], "say": _sentence(told.identity)}],
        "requests": requests,
        "consent": speaker.say("yes"),
        "thanks": speaker.say("thanks"),
        "rules": RULES,
    }


def _fact(name: str, slots: Mapping[str, str], speaker: Wording) -> Fact:
    if name == "pay":
        words = slots["pay"] or speaker.say("original")
    else:
        words = slots["reason"] if name == "reason" else speaker.say(name, **{name: slots[name]})
    fact: Fact = {"name": name, "cues": CUES[name], "say": _sentence(words)}
    return {**fact, "pattern": ORDER_PATTERN} if name == "order" else fact


def _change_mind(base: Base, told: Told, speaker: Wording, facts: list[Fact]) -> None:
    """Have the customer say something else first of the last fact that can be otherwise, where there is one."""
    request, _, slots = told.requests[-1]
    for fact in reversed(facts):
        other = _other(base, told, speaker, fact["name"], request)
        if other is not None:
            fact["then"] = f"{speaker.say('change')} {fact['say']}"
            fact["say"] = _fact(fact["name"], {**slots, fact["name"]: other}, speaker)["say"]
            return


def _other(base: Base, told: Told, speaker: Wording, name: str, request: Request) -> str | None:
    """Something else that the fact could be, in words; None where there is nothing of that sort."""
    arguments, rng = request.writes[-1][1], speaker.rng
    if name == "reason":
        other = next(reason for reason in CANCEL_REASONS if reason != arguments["reason"])
        return wording_of(told.split, rng).reason(other)
    if name == "address":
        return spoken(new_address(rng))
    if name == "items":
        order = base.get(ORDERS, arguments["order_id"]) or {"items": []}
        wanted = {line["name"] for line in order["items"] if line["item_id"] in arguments["item_ids"]}
        others = [line for line in order["items"] if line["name"] not in wanted]
        return names_of([rng.choice(others)]) if others else None
    if name == "method":
        methods = told.user["payment_methods"].values()
        others = sorted({m["source"] for m in methods if m["id"] != arguments["payment_method_id"]})
        return SOURCE_NAMES[rng.choice(others)] if others else None
    return None


def _goal(told: Told, requests: list[dict[str, Any]]) -> str:
    """All of it in prose, for a model that plays the customer."""
    name = f"{told.user['name']['first_name']} {told.user['name']['last_name']}"
    wishes = [request.text for request, _, _ in told.requests]
    original = "Where it matters and nothing else was said: the original payment method."
    changing = [fact for request in requests for fact in request["facts"] if "then" in fact]
    changes = [
        f'At first you don\'t say that, but: "{fact["say"]}" When the agent asks you to confirm, you change your mind: '
        f'"{fact["then"]}"'
        for fact in changing
    ]
    who = f"You are {name}, a customer of an online shop. To say who you are: {_sentence(told.identity)}"
    return "\n".join([who, *(f"You want: {_sentence(wish)}" for wish in wishes), *changes, original])


def _sentence(text: str) -> str:
    plain = re.sub(r"\s+", " ", text).strip()
    return plain[:1].upper() + plain[1:]
