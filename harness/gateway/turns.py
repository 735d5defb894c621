"""The model side of one live rollout: its token forest, what continuing a turn takes, its counts and its limits.

It knows nothing about HTTP or the engine. Synchronous throughout, so that parallel branches need no locks.
Called by model.py and stream.py; the seal reads its summary.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from harness.gateway.continuation import SampledTurn
from harness.gateway.keys import AskedCall, LiveRollout
from harness.gateway.record import AnswerRecord
from harness.gateway.request import ModelAnswer, Sampled
from harness.gateway.transcript import Transcript
from traces.conversation import Conversation
from traces.node import Node
from traces.tokens import TokenForest

_NAMES = {"turns": "model calls", "tokens": "sampled tokens", "wall_s": "seconds"}


class LimitHit(Exception):
    """The rollout may not go on: it used up what its limits allow."""

    def __init__(self, limit: str, allowed: float) -> None:
        super().__init__(f"this rollout has used up its {allowed:g} {_NAMES[limit]}; no further answer is given")
        self.limit = limit
        """`turns`, `tokens` or `wall_s`."""


@dataclass(frozen=True, slots=True)
class Continued:
    """The sampled turn that a request continues."""

    sequence: list[int]
    """Its prompt and completion, as they were."""
    turn: SampledTurn
    """How it was rendered and how it ended."""
    messages: int
    """How many of the request's messages it covers, its own answer included."""


@dataclass(slots=True)
class RolloutTurns:
    """What the model gateway holds for one live rollout."""

    rollout: LiveRollout
    """Whose turns these are."""
    forest: TokenForest = field(default_factory=TokenForest)
    """Its answered turns."""
    transcript: Transcript = field(default_factory=Transcript)
    """Its messages."""
    record: AnswerRecord = field(default_factory=AnswerRecord)
    """What its clients may refer back to."""
    started: int = 0
    """Calls that are answered or may yet be; failed ones are taken back."""
    answered: int = 0
    """Answered calls."""
    sampled_tokens: int = 0
    """Tokens of all its answers."""
    waited_s: float = 0.0
    """Time its calls have waited for a publish; not charged to its wall limit."""
    _kept: dict[int, SampledTurn] = field(default_factory=dict[int, SampledTurn])

    def admit(self) -> None:
        """Count a call in, or raise LimitHit."""
        limits = self.rollout.limits
        self._refuse_over("turns", self.started)
        self._refuse_over("tokens", self.sampled_tokens)
        if "wall_s" in limits:
            self._refuse_over("wall_s", limits["wall_s"] - self.seconds_left())
        self.started += 1

    def _refuse_over(self, limit: str, used: float) -> None:
        allowed = self.rollout.limits.get(limit)
        if allowed is not None and used >= allowed:
            raise self.hit(limit)

    def hit(self, limit: str) -> LimitHit:
        """Note that a limit ended the rollout's answers; the first one counts."""
        self.rollout.limit_hit = self.rollout.limit_hit or limit
        return LimitHit(limit, self.rollout.limits.get(limit, 0))

    def seconds_left(self) -> float:
        """What is left of the wall limit; infinite without one."""
        allowed = self.rollout.limits.get("wall_s", float("inf"))
        return allowed - (time.monotonic() - self.rollout.opened_s - self.waited_s)

    def tokens_left(self) -> int | None:
        """What is left of the token limit; None without one."""
        allowed = self.rollout.limits.get("tokens")
        return None if allowed is None else max(1, int(allowed) - self.sampled_tokens)

    def continued(self, conversation: Conversation) -> Continued | None:
        """The deepest answered turn whose request and answer the messages begin with."""
        node = self.forest.continued(conversation)
        said = node.conversation() if node is not None else None
        if node is None or said is None or node.index not in self._kept:
            return None
        return Continued(node.sequence().tolist(), self._kept[node.index], len(said.messages) + 1)

    def count_tokens(self, answer: ModelAnswer) -> None:
        """Charge an answer to the token limit."""
        for sampled in answer.choices:
            if sampled.tokens is not None:
                self.sampled_tokens += len(sampled.tokens.completion_ids_T)

    def attach(self, conversation: Conversation, sampled: Sampled, rendered: list[int] | None) -> Node | None:
        """Add an answer to the forest and to the calls that tools may expect; None where it has no ids.

        `rendered` is the template's rendering of its prompt; None where that is what was sampled from.
        """
        self.answered += 1
        for call in sampled.message.get("tool_calls") or ():
            function: dict[str, Any] = call.get("function") or {}
            asked = AskedCall(str(call.get("id")), str(function.get("name")), str(function.get("arguments")))
            self.rollout.asked_calls.append(asked)
        if sampled.tokens is None:
            return None
        said = conversation.answered(sampled.message)
        node = self.forest.attach(sampled.tokens, self.rollout.policy_version, said)
        rendering = sampled.tokens.prompt_ids_T.tolist() if rendered is None else rendered
        self._kept[node.index] = SampledTurn(rendering, sampled.closed)
        return node

    def summary(self) -> dict[str, Any]:
        """What the seal reports of the model side."""
        forks: Counter[str] = Counter(fork.cause.value for fork in self.forest.forks)
        return {
            "turns": self.answered,
            "tokens": self.sampled_tokens,
            "forks": dict(forks),
            "drift_tokens": self.forest.drift_tokens,
        }
