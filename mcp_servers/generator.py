"""Drafts become tasks: seeded draws, the checks that each has to pass, and how a task is written down.

Knows nothing about any domain. A server's tasks.py says how a draft is drawn, carried out and told; what it gets are
the same tasks for the same arguments. Used by the servers' tasks.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from mcp_servers.drafts import DIFFICULTY_WEIGHTS, Action, Draft, Request, check_request
from mcp_servers.state import Base, Entity, canonical
from mcp_servers.toolbox import Toolbox, ToolResult, View

D = TypeVar("D", bound=Draft)
Task = dict[str, Any]
Changes = dict[str, dict[str, Entity]]
UNKNOWN_USER = "unknown_user"
"""The refusal of who can't be identified."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What is to be drawn, and from what."""

    base: Base
    """Whose users and things it is about."""
    split: str
    """Whose users and phrases are taken."""
    kind: str
    """What is asked for."""
    refusal: str | None
    """Why it has to be refused; None where it has not."""
    difficulty: int
    """1 to 3."""
    rng: random.Random
    """Where all draws come from."""


@dataclass(frozen=True, eq=False)
class TaskGenerator(Generic[D]):
    """Draws the tasks of one server."""

    server: str
    """Its name, in the tasks' ids and their field `server`."""
    default_base: Callable[..., Base]
    """Seed (0 if not given) → the generated base."""
    toolbox: Toolbox
    """Its tools, with which actions are carried out."""
    opened: Callable[[Base], View]
    """A fresh session over a base, as the tools see it."""
    policy_file: Path
    """The policy text, which is also the system prompt."""
    kinds: Sequence[str]
    """What can be asked for, `refuse` included."""
    refusals: Mapping[str, tuple[int, Callable[..., Request | None]]]
    """Reason to refuse → its weight, and its builder."""
    draw: Callable[[Draw], D | None]
    """A draft, or None where the draw didn't fit."""
    dialog: Callable[[Base, D, str, random.Random], dict[str, Any]]
    """A draft and its split → the task's field `user`."""
    attempts: int
    """Draws before the base counts as too small."""

    def tasks(
        self,
        split: str,
        seed: int = 0,
        offset: int = 0,
        count: int = 1,
        *,
        base: Base | None = None,
        kinds: Sequence[str] | None = None,
        difficulty: int | None = None,
    ) -> list[Task]:
        """Tasks number `offset` to `offset + count - 1` of a split and seed; the same arguments give the same tasks.

        ValueError for an unknown split, kind or difficulty, or a base that has no split of its users.
        """
        base = base or self.default_base()
        kinds = self.kinds if kinds is None else kinds
        check_request(base, split, kinds, difficulty, self.kinds)
        return [self._task(base, split, seed, index, kinds, difficulty) for index in range(offset, offset + count)]

    def sloppy_actions(self, task: Task, base: Base | None = None) -> list[Action] | None:
        """What a careless agent does for a task; None where no typical mistake exists. Always ends in a wrong state."""
        meta = task["metadata"]
        base = base or self.default_base(meta["base_seed"])
        draft = _draft(self, base, task["split"], meta["seed"], meta["index"], task["kind"], task["difficulty"])
        wanted = canonical(task["expected"]["changes"])
        return next(
            (actions for actions in draft.careless() if canonical(self._outcome(base, actions)) != wanted), None
        )

    def policy(self) -> str:
        """The policy text, which is also the system prompt."""
        return _text(self.policy_file)

    def holds(self, base: Base, draft: D, kind: str) -> bool:
        """Whether the right actions work, do or say something (unless they refuse), and careless ones end elsewhere."""
        results, right = self._act(base, draft.right())
        if draft.metadata["refusal"] != UNKNOWN_USER and any(result.is_error for result in results):
            return False
        if kind != "refuse" and not (right or draft.communicate()):
            return False
        return all(canonical(self._outcome(base, actions)) != canonical(right) for actions in draft.careless()[:1])

    def _outcome(self, base: Base, actions: Sequence[Action]) -> Changes:
        """What differs from the base after the actions; a failing one changes nothing."""
        return self._act(base, actions)[1]

    def _act(self, base: Base, actions: Sequence[Action]) -> tuple[list[ToolResult], Changes]:
        world = self.opened(base)
        return [self.toolbox.call(world, name, arguments) for name, arguments in actions], world.state.changes()

    def _task(
        self, base: Base, split: str, seed: int, index: int, kinds: Sequence[str], difficulty: int | None
    ) -> Task:
        rng = random.Random(f"{split}-{seed}-{index}")
        kind = rng.choice(kinds)
        level = difficulty or rng.choices(list(DIFFICULTY_WEIGHTS), list(DIFFICULTY_WEIGHTS.values()))[0]
        draft = _draft(self, base, split, seed, index, kind, level)
        right = draft.right()
        return {
            "id": f"{self.server}-{split}-{seed}-{index}",
            "server": self.server,
            "split": split,
            "kind": kind,
            "difficulty": level,
            "user_message": draft.message,
            "system_prompt": self.policy(),
            "allowed_tools": None,
            "expected": {
                "changes": self._outcome(base, right),
                "actions": [{"name": name, "arguments": arguments} for name, arguments in right],
                "communicate": draft.communicate(),
            },
            "is_refusal": kind == "refuse",
            "user": self.dialog(base, draft, split, random.Random(f"{split}-{seed}-{index}-dialog")),
            "metadata": {**draft.metadata, "seed": seed, "index": index, "base_seed": base.meta.get("seed", 0)},
        }


def expert_actions(task: Task) -> list[Action]:
    """What a careful agent does for a task: identify, look, write (or not)."""
    return [(action["name"], action["arguments"]) for action in task["expected"]["actions"]]


@lru_cache(maxsize=256)
def _draft(generator: TaskGenerator[D], base: Base, split: str, seed: int, index: int, kind: str, difficulty: int) -> D:
    rng = random.Random(f"{split}-{seed}-{index}-{kind}-{difficulty}")
    refusal = _refusal(generator, difficulty, rng) if kind == "refuse" else None
    wanted = Draw(base, split, kind, refusal, difficulty, rng)
    for _ in range(generator.attempts):
        draft = generator.draw(wanted)
        if draft is not None and generator.holds(base, draft, kind):
            return draft
    raise RuntimeError(
        f"no {kind} task of difficulty {difficulty} found for {split} seed {seed} index {index} in "
        f"{generator.attempts} draws; the {generator.server} base has too little that fits: use a larger base"
    )


def _refusal(generator: TaskGenerator[Any], difficulty: int, rng: random.Random) -> str:
    # Who can't be identified can't have an earlier request carried out, so that reason has no level 3.
    weights = {name: w for name, (w, _) in generator.refusals.items() if difficulty < 3 or name != UNKNOWN_USER}
    return rng.choices(list(weights), list(weights.values()))[0]


@lru_cache(maxsize=16)
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()
