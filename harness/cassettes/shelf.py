"""Cassettes as tasks: which split each belongs to, in which order they are drawn, how a task is stated.

It knows nothing about HTTP, MCP or playing. Pure. Called by the server's control API.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

from traces.cassette import Cassette

SPLITS = ("train", "validation", "held_out")
SERVER = "cassettes"
UNKNOWN_KIND = "recorded"


class Shelf:
    """All cassettes of a server."""

    def __init__(self, cassettes: Sequence[Cassette]) -> None:
        self._by_id = {cassette.task_id: cassette for cassette in cassettes}

    def __len__(self) -> int:
        return len(self._by_id)

    def cassette(self, task_id: str) -> Cassette:
        """The cassette of a task; raises ValueError where there is none."""
        if task_id not in self._by_id:
            raise ValueError(f"no cassette of task {task_id!r}; the tasks are listed at /control/tasks")
        return self._by_id[task_id]

    def tasks(self, split: str, *, seed: int, offset: int, count: int, kinds: Sequence[str]) -> list[dict[str, Any]]:
        """Tasks `offset` to `offset + count` of a split in the order of the seed.

        Training tasks start over when all were drawn; other splits end, so that nothing is measured twice. Raises
        ValueError for an unknown split, and for a training split without tasks.
        """
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        drawn = [one for one in self._by_id.values() if split_of(one) == split and _is_of_kinds(one, kinds)]
        drawn.sort(key=lambda cassette: cassette.task_id)
        random.Random(seed).shuffle(drawn)
        if not drawn:
            have = {name: sum(split_of(one) == name for one in self._by_id.values()) for name in SPLITS}
            raise ValueError(f"no cassette for split {split!r} and kinds {list(kinds)}; there are {have}")
        last = offset + count if split == "train" else min(offset + count, len(drawn))
        return [_task(drawn[place % len(drawn)], split) for place in range(offset, last)]


def split_of(cassette: Cassette) -> str:
    """The recorded split, or by the task's id: eight of ten train, one validation, one held out."""
    if cassette.split in SPLITS:
        return cassette.split
    place = hashlib.blake2b(cassette.task_id.encode(), digest_size=4).digest()[0] % 10
    return {0: "held_out", 1: "validation"}.get(place, "train")


def _is_of_kinds(cassette: Cassette, kinds: Sequence[str]) -> bool:
    return not kinds or (cassette.kind or UNKNOWN_KIND) in kinds


def _task(cassette: Cassette, split: str) -> dict[str, Any]:
    """As the control API lists it. What is expected stays on the server."""
    return {
        "id": cassette.task_id,
        "server": SERVER,
        "split": split,
        "kind": cassette.kind or UNKNOWN_KIND,
        "user_message": cassette.user_message,
        "system_prompt": cassette.system_prompt,
        "difficulty": cassette.task.get("difficulty", 0),
    }
