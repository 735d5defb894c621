"""One rollout's session: its tool calls answered from the cassette, what is not on record by the chosen rule, a grade.

It knows nothing about HTTP or MCP. Calls of one session are answered one after the other, once per idempotency key.
Called by app.py.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from traces.cassette import Cassette, Player, RecordedCall, is_same_call

REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Answered:
    """One call of this session and what it got."""

    call: RecordedCall
    """Name, arguments as the agent wrote them, result, error flag."""
    by: str
    """`exact` or `normalised` (on record), or how a miss was answered: `refused`, `simulated`, `live`."""


class Misses(Protocol):
    """What is done about a call that is not on record."""

    knows_changes: bool
    """True where a recorded answer that would be given again after a change of state is better asked for anew."""

    async def answer(self, deck: Deck, name: str, arguments: str) -> Answered:
        """An answer; raises HarnessError where there is none to be had: a failure of infrastructure."""
        ...

    def has_taken_over(self, deck: Deck) -> bool:
        """True where this session is not to be answered from the record any more."""
        ...

    async def grade(self, deck: Deck, answer: str) -> dict[str, Any] | None:
        """The grade of somebody who knows better than the record; None where nobody does."""
        ...

    async def close(self, deck: Deck) -> None:
        """Let go of what is held for a session."""
        ...


class Refuse:
    """A tool error says that the call is not on record; nothing is made up."""

    knows_changes = False

    async def answer(self, deck: Deck, name: str, arguments: str) -> Answered:
        """An error that the agent reads."""
        known = {call.name for call in deck.cassette.calls}
        why = "with these arguments" if name in known else "of this tool"
        text = f"Error: there is no recording of a call {why}."
        return Answered(RecordedCall(name=name, arguments=arguments, result=text, is_error=True), REFUSED)

    def has_taken_over(self, deck: Deck) -> bool:
        """Never."""
        del deck
        return False

    async def grade(self, deck: Deck, answer: str) -> dict[str, Any] | None:
        """The record's own grade stands."""
        del deck, answer

    async def close(self, deck: Deck) -> None:
        """Nothing is held."""
        del deck


class Deck:
    """A cassette in play."""

    def __init__(self, session_id: str, cassette: Cassette, misses: Misses) -> None:
        self.id = session_id
        """Names the session to the control API."""
        self.cassette = cassette
        """What is on record."""
        self.answered: list[Answered] = []
        """Every call so far, in order."""
        self._player = Player(cassette)
        self._misses = misses
        self._by_key: dict[str, RecordedCall] = {}
        self._lock = asyncio.Lock()

    async def call(self, name: str, arguments: Mapping[str, Any], key: str | None) -> RecordedCall:
        """Answer one call, once per idempotency key; raises HarnessError where the miss rule fails."""
        text = json.dumps(arguments)
        async with self._lock:
            if key is not None and key in self._by_key:
                return self._by_key[key]
            answered = await self._answer(name, text)
            self.answered.append(answered)
            if key is not None:
                self._by_key[key] = answered.call
            return answered.call

    async def _answer(self, name: str, text: str) -> Answered:
        played = None if self._misses.has_taken_over(self) else self._player.play(name, text)
        if played is None or (played.repeated and self._misses.knows_changes and self._has_changed()):
            return await self._misses.answer(self, name, text)
        call = RecordedCall(name=name, arguments=text, result=played.call.result, is_error=played.call.is_error)
        return Answered(call, played.match.value)

    def _has_changed(self) -> bool:
        return any(one.call.name in self.cassette.writes and not one.call.is_error for one in self.answered)

    async def grade(self, answer: str) -> dict[str, Any]:
        """`{passed, value, components, reason}`: the live server's where there is one, else by what was recorded."""
        async with self._lock:
            known = await self._misses.grade(self, answer)
        return known if known is not None else grade_by_record(self.cassette, self.answered)

    async def close(self) -> None:
        """Let go of what is held for it."""
        await self._misses.close(self)


def grade_by_record(cassette: Cassette, answered: list[Answered]) -> dict[str, Any]:
    """Passed where the state-changing calls are those of the best recording, in any order: none missing, none more.

    Calls that were answered by a recorded error changed nothing and don't count; a refused one does: on the real server
    it might have had an effect. Where no recording was good, nothing passes: such tasks need a judge.
    """
    ways = Counter(one.by for one in answered)
    components = {f"calls_{way}": float(count) for way, count in sorted(ways.items())}
    if cassette.expected is None:
        reason = "no recording of this task was good; score it with --reward ruler"
        return {"passed": False, "value": 0, "components": components, "reason": reason}
    missing, more = list(cassette.expected), list[RecordedCall]()
    for one in answered:
        if one.call.name not in cassette.writes or (one.call.is_error and one.by != REFUSED):
            continue
        made = next((call for call in missing if is_same_call(one.call.name, one.call.arguments, call)), None)
        if made is None:
            more.append(one.call)
        else:
            missing.remove(made)
    done = len(cassette.expected) - len(missing)
    components["expected_calls_made"] = done / len(cassette.expected) if cassette.expected else 1.0
    components["unexpected_calls"] = float(len(more))
    passed = not missing and not more
    faults = [f"missing {call.name}({call.arguments})" for call in missing]
    faults += [f"unexpected {call.name}({call.arguments})" for call in more]
    reason = "; ".join(faults) or f"made the {done} state-changing calls of the recording and no other"
    return {"passed": passed, "value": int(passed), "components": components, "reason": reason}
