"""The ways in which clients speak to a model: one file a dialect, each with the same functions.

They turn a client's bytes into the internal request and the internal answer into bytes; they know no engine.
Called by model.py and stream.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from harness.gateway.failures import Failure
from harness.gateway.record import AnswerRecord
from harness.gateway.replies import ChatChoice
from harness.gateway.request import ModelAnswer, ModelRequest


class StreamWriter(Protocol):
    """Writes one streamed answer, as whole server-sent events."""

    def begin(self, answer_id: str, created: int, prompt_tokens: int) -> Iterable[bytes]:
        """What comes before the first delta; `prompt_tokens` is 0 where the engine doesn't say."""
        ...

    def delta(self, choice: ChatChoice) -> Iterable[bytes]:
        """What is new in one choice; its end is `finish`'s to tell."""
        ...

    def finish(self, answer: ModelAnswer) -> Iterable[bytes]:
        """The end, once the answer is on disk."""
        ...

    def fail(self, failure: Failure) -> Iterable[bytes]:
        """The end of a stream that broke."""
        ...


class Dialect(Protocol):
    """A module of this package."""

    NAME: str
    """What spans call it."""

    def parse(self, content: bytes, record: AnswerRecord) -> ModelRequest:
        """A request, completed from the rollout's own record where it refers to it; raises BadRequest."""
        ...

    def remember(self, record: AnswerRecord, request: ModelRequest, answer: ModelAnswer) -> None:
        """Keep what later requests may refer to; the answer is on disk."""
        ...

    def write_answer(self, request: ModelRequest, answer: ModelAnswer) -> bytes:
        """The whole answer as JSON."""
        ...

    def write_error(self, failure: Failure) -> bytes:
        """An error as JSON."""
        ...

    def stream_writer(self, request: ModelRequest) -> StreamWriter:
        """For one streamed answer."""
        ...


class CountingDialect(Dialect, Protocol):
    """A dialect whose clients may ask how long a prompt is."""

    def parse_count(self, content: bytes, record: AnswerRecord) -> ModelRequest:
        """A request whose prompt is to be counted; raises BadRequest."""
        ...

    def write_count(self, tokens: int) -> bytes:
        """The length as JSON."""
        ...
