"""The dialog form of a task: what its user says first, tells when asked, asks for next, and takes back.

Knows nothing about MCP or grading. Made of what the one-message form was made of, with draws of its own. Used by
tasks.py; whoever simulates the user reads what it makes.
"""

from __future__ import annotations

import re
from typing import Any

from mcp_servers.drafts import Request
from mcp_servers.state import Entity
from mcp_servers.wording import Wording

IDENTITY_CUES = ("user id", "userid", "account", "identif", "verify", "who you are", "who i am", "your name", "log in")
"""Beginnings of words by which an agent asks who the user is."""
CHANGES_MIND = 0.25
"""Share of the tasks that can have it in which the user changes its mind before the last write."""
RULES = (
    "You talk with the user. Ask for what you need and don't know. Before you change anything, say what you are going "
    "to do and wait for a yes. What the user said last counts. When a request is done or refused, say so."
)


def dialog(user: Entity, identity: str, requests: list[Request], consent: str, wording: Wording) -> dict[str, Any]:
    """A task's field `user`, as simulated users read it; `consent` is the phrase with which it says yes."""
    wishes = [_sentence(request.text) for request in requests]
    facts: list[list[dict[str, Any]]] = [[] for _ in requests]
    first, changes = list(wishes), list[str]()
    if requests[-1].other is not None and wording.rng.random() < CHANGES_MIND:
        right, wrong = requests[-1].other
        first[-1] = wishes[-1].replace(right, wrong)
        then = f"{wording.say('mind')} {wishes[-1]}"
        facts[-1].append({"name": "wish", "cues": [], "say": first[-1], "then": then})
        changes.append(f'At first you say: "{first[-1]}" When asked to confirm, you change your mind: "{then}"')
    said = [first[0], *(_sentence(f"{wording.say('also')} {wish}") for wish in first[1:])]
    name = f"{user['name']['first_name']} {user['name']['last_name']}"
    who = f"You are {name}, who flies with this airline. To say who you are: {_sentence(identity)}"
    return {
        "opening": f"{wording.say('greeting')} {first[0]}".strip(),
        "goal": "\n".join([who, *(f"You want: {wish}" for wish in wishes), *changes, "You want nothing else."]),
        "facts": [{"name": "identity", "cues": list(IDENTITY_CUES), "say": _sentence(identity)}],
        "requests": [{"wish": wish, "facts": told} for wish, told in zip(said, facts, strict=True)],
        "consent": wording.say(consent),
        "thanks": wording.say("thanks"),
        "rules": RULES,
    }


def _sentence(text: str) -> str:
    plain = re.sub(r"\s+", " ", text).strip()
    return plain[:1].upper() + plain[1:]
