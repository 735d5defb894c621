"""Walk over scenarios in batches and epochs, try again what failed in passing, bound what runs at once.

Small tools that rollout functions and training loops are written with; they know nothing about models or runs.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, ParamSpec, TypeVar

from harness.errors import ConfigError

Item = TypeVar("Item")
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Batch(Generic[Item]):
    """The scenarios of one step."""

    items: list[Item]
    """Scenarios; fewer in the last batch of an epoch."""
    step: int
    """Steps before this one, over all epochs: the step that a model of the same count is at."""
    epoch: int
    """Epochs before this one."""
    epoch_step: int
    """Steps before this one in its epoch."""


def iterate_dataset(
    dataset: Sequence[Item], *, groups_per_step: int = 1, num_epochs: int = 1, initial_step: int = 0, seed: int = 0
) -> Iterator[Batch[Item]]:
    """Batches of `groups_per_step` scenarios, shuffled anew each epoch; the same seed gives the same order.

    `initial_step` skips what a run that goes on has done: give it `await model.get_step()`. Raises ConfigError for an
    empty dataset or a batch below 1.
    """
    if not dataset or groups_per_step < 1:
        found = f"{len(dataset)} scenarios in batches of {groups_per_step}"
        raise ConfigError("iterate over a dataset", found, "give at least one scenario and batches of at least one")
    step = 0
    for epoch in range(num_epochs):
        order = list(dataset)
        random.Random(f"{seed}/{epoch}").shuffle(order)
        for epoch_step, start in enumerate(range(0, len(order), groups_per_step)):
            if step >= initial_step:
                yield Batch(order[start : start + groups_per_step], step, epoch, epoch_step)
            step += 1


def retry(
    max_attempts: int = 3,
    *,
    delay_s: float = 1.0,
    backoff: float = 2.0,
    exceptions: tuple[type[Exception], ...] = (Exception,),
    on_retry: Callable[[Exception, int], None] | None = None,
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    """Try an async function again when it raises one of `exceptions`; the last error is raised.

    Not for a whole rollout function: a second attempt at one trajectory would continue the first one's rollout.
    `on_retry(error, attempt)` is told before each wait.
    """

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        @functools.wraps(function)
        async def attempted(*args: P.args, **kwargs: P.kwargs) -> R:
            for attempt in range(1, max_attempts):
                try:
                    return await function(*args, **kwargs)
                except exceptions as error:
                    if on_retry is not None:
                        on_retry(error, attempt)
                    await asyncio.sleep(delay_s * backoff ** (attempt - 1))
            return await function(*args, **kwargs)

        return attempted

    return decorate


def limit_concurrency(
    limit: int, derive_key: Callable[..., object] | None = None
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    """Let an async function run at most `limit` times at once; for each `derive_key(*args)` apart, where given."""

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        gates: defaultdict[object, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(limit))

        @functools.wraps(function)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
            async with gates[None if derive_key is None else derive_key(*args, **kwargs)]:
                return await function(*args, **kwargs)

        return limited

    return decorate
