"""Simulated users: what a task's user knows and wants, and a scripted one who answers the agent message by message.

The script tells a fact when asked for it, says yes before a write, changes its mind where the task says so, and leaves
when all is done or nothing moves. It knows nothing about agents, sessions, HTTP or models (user_llm.py has one played
by a model). Called by user_door.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from harness.errors import SimulatorError
from harness.task import AgentTask, Task

_OFFERS_MORE = re.compile(
    r"\b(any|some)thing (else|more)\b|\bfurther (help|assistance|questions?)\b|\bother requests?\b"
)
_SEEKS_CONSENT = re.compile(
    r"\b(confirm|proceed|go[- ]ahead|shall i|should i|ok to|yes/no|(do|would) you (want|like) me to"
    r"|is (this|that|it) (all )?(right|correct|ok|okay|fine))\b|\(yes\b"
)
_ASKS = re.compile(r"\?|\b(provide|tell me|let me know|give me|share|i need|i'll need|please (state|specify|enter))\b")

PATIENCE = 4
"""Answers in a row that move nothing before a scripted user leaves."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Something the user tells when asked for it."""

    name: str
    """What it is, such as `order`."""
    cues: tuple[str, ...]
    """Beginnings of words by which an agent asks for it, in lower case."""
    say: str
    """The sentence that tells it."""
    then: str | None = None
    """What the user says instead, once, when first asked to confirm: a change of mind. None: stays with `say`."""
    pattern: str | None = None
    """Regular expression of values such as this one; an agent that asks to go ahead with others is corrected."""


@dataclass(frozen=True, slots=True)
class Request:
    """One thing the user wants."""

    wish: str
    """How it is brought up, without its facts."""
    facts: tuple[Fact, ...]
    """What has to be told for it."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a task says of its user: the field `user` of a task."""

    goal: str
    """All the user knows and wants, in prose, for a model that plays it."""
    requests: tuple[Request, ...] = ()
    """What the user wants, in order; a scripted user needs at least one."""
    facts: tuple[Fact, ...] = ()
    """What belongs to no single request: who the user is."""
    opening: str | None = None
    """The first message; None has it made of the first wish, or by the model that plays the user."""
    consent: str = "Yes, please go ahead."
    """What the user says to go ahead."""
    thanks: str = "That is all, thank you."
    """The last message."""
    rules: str = ""
    """What the agent is told beyond its policy: that it talks with somebody."""


@dataclass(frozen=True, slots=True)
class Said:
    """A user's answer."""

    text: str
    """What was said; may be empty at the end."""
    done: bool = False
    """True where the user has left: nothing that follows is read."""


class User(Protocol):
    """Somebody for an agent to talk with, for one rollout."""

    async def open(self) -> str:
        """The first message; raises SimulatorError."""
        ...

    async def answer(self, message: str) -> Said:
        """The answer to what the agent said; raises SimulatorError where the simulation itself fails."""
        ...

    def metrics(self) -> dict[str, float]:
        """What playing the user took."""
        ...


def scenario_of(task: Task) -> Scenario:
    """Read what the task says of its user; raises SimulatorError where it says nothing, or nothing readable."""
    asked = f"a simulated user for the task {task.id!r} of the tool server {task.server!r}"
    fix = "give the server's tasks a field `user` (docs/users.md), or set user.kind = 'none'"
    if not task.user:
        raise SimulatorError(asked, "the task says nothing of a user", fix)
    try:
        return TypeAdapter(Scenario).validate_python(task.user)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise SimulatorError(asked, f"user.{place}: {first['msg']}, got {first['input']!r}"[:500], fix) from error


def dialog_task(task: Task, scenario: Scenario, opening: str) -> AgentTask:
    """What an agent is told of a task whose user it has to talk with: the opening, and the rules for talking."""
    prompt = "\n\n".join(part for part in (task.system_prompt, scenario.rules) if part)
    return AgentTask(task.id, task.server, prompt, opening, task.allowed_tools)


def offers_more(message: str) -> bool:
    """Whether the agent asks for another request: it is through with this one."""
    return _OFFERS_MORE.search(message.lower()) is not None


def awaits_answer(message: str) -> bool:
    """Whether the agent waits for something that only the user can say."""
    return _ASKS.search(message.lower()) is not None and not offers_more(message)


@dataclass(slots=True)
class ScriptedUser:
    """Answers by rule, the same way each time."""

    scenario: Scenario
    """What it knows and wants."""
    _place: int = 0
    _told: set[str] = field(default_factory=set[str])
    _changed: set[str] = field(default_factory=set[str])
    _told_rest: bool = False
    _agreed: bool = False
    _stalls: int = 0

    async def open(self) -> str:
        """The scenario's opening, or its first wish; raises SimulatorError where there is none."""
        if not self.scenario.requests:
            found, fix = "its user has no requests", "give user.requests, or have a model play it: user.kind = 'llm'"
            raise SimulatorError("a scripted user", found, fix)
        return self.scenario.opening or self.scenario.requests[0].wish

    async def answer(self, message: str) -> Said:
        """One message back. The user leaves after its last request, or after PATIENCE answers that moved nothing."""
        before = (self._place, len(self._told), len(self._changed), self._agreed, self._told_rest)
        said = self._respond(message.lower())
        after = (self._place, len(self._told), len(self._changed), self._agreed, self._told_rest)
        self._stalls = 0 if before != after else self._stalls + 1
        return Said("Never mind, I will try another time.", done=True) if self._stalls >= PATIENCE else said

    def metrics(self) -> dict[str, float]:
        """Nothing: a script costs nothing."""
        return {}

    def _respond(self, message: str) -> Said:
        if not message.strip():
            return Said("Sorry, I did not get that.")
        if not _ASKS.search(message) and not _SEEKS_CONSENT.search(message):
            return self._hear_outcome()
        wanted = [fact for fact in self._facts() if _asks_for(message, fact)]
        fresh = [fact for fact in wanted if fact.name not in self._told]
        if fresh:
            return self._tell(fresh)
        if _SEEKS_CONSENT.search(message) and not offers_more(message):
            return self._consent(message)
        if offers_more(message):
            return self._hear_outcome()
        if wanted:
            return self._tell(wanted)
        untold = self._untold()
        return self._tell(untold[:1]) if untold else self._consent(message)

    def _consent(self, message: str) -> Said:
        """Agree, unless what is asked about is wrong or the user has changed its mind."""
        wrong = [fact for fact in self._facts() if _contradicts(message, fact)]
        if wrong:
            return Said(" ".join(["No, that is wrong.", *(self._words(fact) for fact in wrong)]))
        change = self._change_mind()
        if change is not None:
            return change
        self._agreed = True
        return Said(self.scenario.consent)

    def _hear_outcome(self) -> Said:
        """The agent says how it went: complete what it may not have known, else go on to the next wish, or leave."""
        change = self._change_mind()
        if change is not None:
            return change
        if not self._told_rest and not self._agreed and self._untold():
            self._told_rest = True
            return self._tell(self._untold())
        self._place, self._told_rest, self._agreed = self._place + 1, False, False
        if self._place >= len(self.scenario.requests):
            return Said(self.scenario.thanks, done=True)
        self._told -= {fact.name for fact in self.scenario.requests[self._place].facts}
        return Said(self.scenario.requests[self._place].wish)

    def _change_mind(self) -> Said | None:
        changing = [fact for fact in self._facts() if fact.then is not None and self._key(fact) not in self._changed]
        if not changing:
            return None
        self._changed |= {self._key(fact) for fact in changing}
        return self._tell(changing)

    def _tell(self, facts: list[Fact]) -> Said:
        self._told |= {fact.name for fact in facts}
        return Said(" ".join(self._words(fact) for fact in facts))

    def _words(self, fact: Fact) -> str:
        return fact.then if fact.then is not None and self._key(fact) in self._changed else fact.say

    def _facts(self) -> list[Fact]:
        requests = self.scenario.requests
        here = requests[self._place].facts if self._place < len(requests) else ()
        return [*self.scenario.facts, *here]

    def _untold(self) -> list[Fact]:
        return [fact for fact in self._facts() if fact.name not in self._told]

    def _key(self, fact: Fact) -> str:
        return f"{self._place}/{fact.name}"


def _asks_for(message: str, fact: Fact) -> bool:
    return any(re.search(rf"\b{re.escape(cue)}", message) for cue in fact.cues)


def _contradicts(message: str, fact: Fact) -> bool:
    """Whether the message names values such as this fact's, and not this fact's."""
    if fact.pattern is None:
        return False
    named, own = _values(fact.pattern, message), _values(fact.pattern, f"{fact.say} {fact.then or ''}")
    return bool(named) and named.isdisjoint(own)


def _values(pattern: str, text: str) -> set[Any]:
    return set(re.findall(pattern, text.lower(), re.IGNORECASE))
