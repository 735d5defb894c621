"""The ways in which clients speak to a model: one file a dialect, each with the same functions.

They turn a client's bytes into the internal request and the internal answer into bytes; they know no engine.
Called by model.py and stream.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from harness.gateway.failures import Failure
from harness.gateway.request import ModelAnswer, ModelRequest
from harness.gateway.upstream import ChatChoice


class StreamWriter(Protocol):
    """Writes one streamed answer, as whole server-sent events."""

    def begin(self, answer_id: str, created: int) -> Iterable[bytes]:
        """What comes before the first delta."""
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

    def parse(self, content: bytes) -> ModelRequest:
        """A request; raises BadRequest."""
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
