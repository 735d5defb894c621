"""What OpenAI's two older APIs, chat completions and completions, have in common: choices, errors, chunks of a stream.

It knows nothing about what is said in a choice: that is chat.py's and completions.py's, which call it.
Source: OpenAI API reference, chat/create, completions/create and their streaming.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from harness.gateway.failures import Failure
from harness.gateway.replies import ChatChoice
from harness.gateway.request import BadRequest, ModelAnswer, ModelRequest, Sampled

_MOST_CHOICES = 128


def wanted_choices(n: int | None) -> int:
    """How many answers are asked for; raises BadRequest."""
    if n is not None and not 1 <= n <= _MOST_CHOICES:
        raise BadRequest(f"n is {n}, not between 1 and {_MOST_CHOICES}", "n")
    return n or 1


def write_choice(request: ModelRequest, sampled: Sampled, said: Mapping[str, Any]) -> dict[str, Any]:
    """One whole answer."""
    choice: dict[str, Any] = {
        "index": sampled.index,
        **said,
        "finish_reason": sampled.finish_reason,
        "logprobs": sampled.logprobs if request.wants_logprobs else None,
    }
    if request.wants_ids and sampled.tokens is not None:
        choice["token_ids"] = sampled.tokens.completion_ids_T.tolist()
    return choice


def write_error(failure: Failure) -> bytes:
    """An error in the shape that the official clients turn into exceptions."""
    error = {"message": failure.message, "type": failure.kind, "param": failure.param, "code": failure.code}
    return msgspec.json.encode({"error": error})


class ChunkWriter(ABC):
    """Writes a streamed answer as chunks, the ends of its choices last."""

    def __init__(self, request: ModelRequest, kind: str) -> None:
        self._request = request
        self._head: dict[str, Any] = {"object": kind, "model": request.model}

    @abstractmethod
    def said(self, delta: Mapping[str, Any]) -> dict[str, Any]:
        """The field of a chunk's choice that holds what is new."""
        ...

    def begin(self, answer_id: str, created: int, prompt_tokens: int) -> Iterable[bytes]:
        """Nothing yet: every chunk says what it belongs to."""
        self._head |= {"id": answer_id, "created": created}
        return ()

    def delta(self, choice: ChatChoice) -> Iterable[bytes]:
        """One chunk, unless the choice brings nothing but its end."""
        said = self.said(choice.delta or {})
        if not any(said.values()) and not choice.token_ids:
            return ()
        part: dict[str, Any] = {"index": choice.index, **said, "finish_reason": None, "logprobs": None}
        if self._request.wants_logprobs:
            part["logprobs"] = choice.logprobs
        if self._request.wants_ids:
            part["token_ids"] = choice.token_ids
        return (self._chunk([part]),)

    def finish(self, answer: ModelAnswer) -> Iterable[bytes]:
        """A chunk with the finish reason of each choice, token counts where they are wanted, and the end."""
        for sampled in answer.choices:
            end = {"index": sampled.index, **self.said({}), "finish_reason": sampled.finish_reason, "logprobs": None}
            yield self._chunk([end])
        if self._request.wants_usage:
            yield self._chunk([], usage=answer.usage)
        yield b"data: [DONE]\n\n"

    def fail(self, failure: Failure) -> Iterable[bytes]:
        """The error as an event, which the official clients raise."""
        return (b"data: " + write_error(failure) + b"\n\n",)

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return b"data: " + msgspec.json.encode({**self._head, "choices": choices, **more}) + b"\n\n"
