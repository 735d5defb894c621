"""The errors of task servers: one for people who run them, one for agents who call their tools.

Knows nothing about any server. Raised by the kit and by each server.
"""

from __future__ import annotations


class ServerError(Exception):
    """Something a person asked of a server that it can't do: what was asked, what was found, what to do about it."""

    def __init__(self, asked: str, found: str, fix: str) -> None:
        self.asked = asked
        self.found = found
        self.fix = fix
        super().__init__(f"asked to {asked}; found: {found}; {fix}")


class SessionUnknown(ServerError):
    """A session id or key that is not, or no longer, known here."""

    def __init__(self, given: str) -> None:
        shown = given if len(given) <= 12 else f"{given[:6]}…"
        fix = "open a session first; sessions end when they are dropped or stay unused too long"
        super().__init__(f"use the session {shown!r}", "no such session here, or it has expired", fix)


class CallKeyReused(ServerError):
    """An idempotency key that stands for another call already."""

    def __init__(self, key: str, name: str, before: str) -> None:
        super().__init__(
            f"call {name} under the key {key[:80]!r}", f"it was used for {before}", "use a new key for each call"
        )


class ToolFault(Exception):
    """What a tool tells the agent when it can't do what was asked; the text is the agent's to read."""
