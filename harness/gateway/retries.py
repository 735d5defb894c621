"""Model requests that repeat one whose answer was lost on the way: they share its answer instead of sampling anew.

A repeat is a request with the body of an earlier one that either says so (`x-stainless-retry-count` of the official
clients) or follows one whose connection broke before its answer was sent. Equal bodies alone are no repeat: an agent
may sample one prompt several times.
It knows nothing about models or HTTP. Called by model.py.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Attempt(Generic[T]):
    """One request that is being answered, or was."""

    answer: asyncio.Task[T]
    """Runs to its end whoever waits for it."""
    lost: bool = False
    """True where the client went away before the answer was sent."""


class RetryLedger(Generic[T]):
    """All requests of one rollout, by body."""

    def __init__(self) -> None:
        self._attempts: dict[bytes, list[Attempt[T]]] = {}

    def claim(self, body: bytes, retried: bool, start: Callable[[], Coroutine[Any, Any, T]]) -> tuple[Attempt[T], bool]:
        """The attempt this request is about, and whether it repeats an earlier one; `start` is called for a new one."""
        attempts = self._attempts.setdefault(hashlib.blake2b(body, digest_size=16).digest(), [])
        earlier = _repeated(attempts, retried)
        if earlier is not None:
            earlier.lost = False
            return earlier, True
        attempt = Attempt(asyncio.create_task(start()))
        attempt.answer.add_done_callback(_see)
        attempts.append(attempt)
        return attempt, False

    def forget(self, attempt: Attempt[T]) -> None:
        """Drop an attempt that failed, so that a repeat starts anew."""
        for attempts in self._attempts.values():
            if attempt in attempts:
                attempts.remove(attempt)

    def attempts(self) -> list[Attempt[T]]:
        """All that are held."""
        return [attempt for same_body in self._attempts.values() for attempt in same_body]

    async def close(self) -> list[Attempt[T]]:
        """End what still runs; the attempts that were answered. Part of the seal."""
        attempts = self.attempts()
        running = [attempt.answer for attempt in attempts if not attempt.answer.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        return [attempt for attempt in attempts if not attempt.answer.cancelled() and not attempt.answer.exception()]


def _see(task: asyncio.Task[Any]) -> None:
    """Mark a failure as seen, for an attempt that nobody waits for any more."""
    if not task.cancelled():
        task.exception()


def _repeated(attempts: list[Attempt[T]], retried: bool) -> Attempt[T] | None:
    """The attempt a request repeats: one whose client left; for an avowed retry else the oldest that still runs."""
    lost = next((attempt for attempt in attempts if attempt.lost), None)
    if lost is not None or not retried:
        return lost
    running = next((attempt for attempt in attempts if not attempt.answer.done()), None)
    return running or (attempts[-1] if attempts else None)
