"""What was said in a live rollout, as far as its clients refer back to it: by response id, by tool call id, by text.

OpenAI's Responses let a client send only what is new, completions send one text, and Anthropic's clients send parsed
arguments. What the dialects need to find the sampled turns behind them is kept here, in memory, until the seal.
It knows nothing about HTTP, tokens or the engine. Dialects read it when they parse and write it once an answer is on
disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from harness.gateway.request import ModelAnswer, ModelRequest


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """An answer that may be referred to by its id."""

    request: ModelRequest
    """What was asked."""
    answer: ModelAnswer
    """What was answered."""
    messages: list[msgspec.Raw]
    """The conversation up to and including the answer, instructions left out: they aren't inherited."""


@dataclass(frozen=True, slots=True)
class WrittenText:
    """A text that was completed."""

    text: str
    """Prompt and completion."""
    messages: list[msgspec.Raw]
    """The same as messages: texts of the client and texts of the model in turn."""


@dataclass(slots=True)
class AnswerRecord:
    """What one rollout's answers left behind."""

    responses: dict[str, StoredResponse] = field(default_factory=dict[str, StoredResponse])
    """Answers by response id."""
    items: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Their output items by item id."""
    arguments: dict[str, str] = field(default_factory=dict[str, str])
    """Arguments as they were sampled, by tool call id."""
    texts: list[WrittenText] = field(default_factory=list[WrittenText])
    """Completed texts, oldest first."""

    def note_arguments(self, answer: ModelAnswer) -> None:
        """Keep the arguments of an answer's tool calls: clients that parse them send back other text."""
        for sampled in answer.choices:
            for call in sampled.message.get("tool_calls") or ():
                function: dict[str, Any] = call.get("function") or {}
                self.arguments[str(call.get("id"))] = str(function.get("arguments"))
