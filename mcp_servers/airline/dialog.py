"""The dialog form of a task: what its user says first, tells when asked who it is, and asks for next.

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
RULES = (
    "You talk with the user. Ask for what you need and don't know. Before you change anything, say what you are going "
    "to do and wait for a yes. When a request is done or refused, say so."
)


def dialog(user: Entity, identity: str, requests: list[Request], consent: str, wording: Wording) -> dict[str, Any]:
    """A task's field `user`, as simulated users read it; `consent` is the phrase with which it says yes."""
    wishes = [_sentence(request.text) for request in requests]
    said = [wishes[0], *(_sentence(f"{wording.say('also')} {wish}") for wish in wishes[1:])]
    name = f"{user['name']['first_name']} {user['name']['last_name']}"
    who = f"You are {name}, who flies with this airline. To say who you are: {_sentence(identity)}"
    return {
        "opening": f"{wording.say('greeting')} {wishes[0]}".strip(),
        "goal": "\n".join([who, *(f"You want: {wish}" for wish in wishes), "You want nothing that was not said."]),
        "facts": [{"name": "identity", "cues": list(IDENTITY_CUES), "say": _sentence(identity)}],
        "requests": [{"wish": wish, "facts": []} for wish in said],
        "consent": wording.say(consent),
        "thanks": wording.say("thanks"),
        "rules": RULES,
    }


def _sentence(text: str) -> str:
    plain = re.sub(r"\s+", " ", text).strip()
    return plain[:1].upper() + plain[1:]
