"""What a client asks of the model and what it gets, in the one internal form that all dialects share.

It knows nothing about HTTP, the engine or rollouts. Dialects make requests and write answers; model.py and stream.py
are in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from traces.span import Tokens


class BadRequest(Exception):
    """The client's request can't be understood or can't be served faithfully."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        """Field of the request that is at fault."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request for an answer."""

    messages: list[msgspec.Raw]
    """OpenAI chat messages as JSON, not yet looked into."""
    tools: msgspec.Raw
    """List of OpenAI chat tool definitions as JSON, or `null`."""
    model: str
    """What the client calls the model; the rollout decides which one answers."""
    n: int = 1
    """Answers wanted."""
    stream: bool = False
    """Answer in events."""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Sampling parameters that the client asks for; the rollout's own come first."""
    constraints: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What shapes the answer otherwise: stop strings, tool choice, response format, template arguments."""
    max_tokens: int | None = None
    """Longest answer the client wants."""
    wants_logprobs: bool = False
    """The client wants log-probabilities too."""
    top_logprobs: int = 0
    """Alternatives per token in them."""
    wants_ids: bool = False
    """The client wants token ids too."""
    wants_usage: bool = False
    """The client wants token counts at the end of a stream."""
    is_text: bool = False
    """A text to complete: no chat template, no tools; the messages are its parts."""
    own: Any = None
    """What the dialect itself keeps of the request for its answer."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One answer."""

    index: int
    """Which of the n."""
    message: dict[str, Any]
    """OpenAI chat message."""
    finish_reason: str
    """`stop`, `length`, `tool_calls` or `content_filter`."""
    tokens: Tokens | None
    """Ids and log-probabilities; None where the engine gave none."""
    closed: bool
    """True where sampling ended with the turn's end."""
    logprobs: msgspec.Raw
    """Log-probabilities as the engine wrote them."""
    stop_text: str | None = None
    """The stop string that ended it."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The answers to one request."""

    id: str
    """Unique id."""
    created: int
    """Unix seconds."""
    choices: list[Sampled]
    """n of them."""
    usage: Mapping[str, Any]
    """Token counts by OpenAI's names."""
