"""Brings the tasks of a τ²-bench domain folder (tasks.json, split_tasks.json, policy.md) to a world over its db.json.

Knows nothing about any domain. What is expected is computed by executing the folder's own actions on the world's tools;
what only a judge can tell (nl_assertions) is kept beside the task and not graded. Used by each such server's server.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from mcp_servers.errors import ServerError
from mcp_servers.state import State
from mcp_servers.tau2 import read_json
from mcp_servers.world import Task, World

SPLITS = {"train": "train", "test": "held_out", "validation": "validation", "held_out": "held_out"}
"""What a folder calls a split → what we call it. `base`, which is all of them, is nobody's."""
UNSPLIT = "held_out"
"""Where tasks go that the folder assigns to no split: nothing is trained on by accident that others are judged by."""
KIND = "tau2"


class Tau2Action(BaseModel):
    """A call that solves a part of a task."""

    name: str
    arguments: dict[str, Any]
    requestor: str = "assistant"


class Tau2Criteria(BaseModel):
    """What a task is judged by."""

    actions: list[Tau2Action] | None = None
    communicate_info: list[str] | None = None
    nl_assertions: list[str] | None = None
    reward_basis: list[str] = Field(default_factory=lambda: ["DB", "COMMUNICATE"])


class Tau2Instructions(BaseModel):
    """What the simulated user is told; the order of the fields is the order of telling."""

    reason_for_call: str
    known_info: str | None = None
    unknown_info: str | None = None
    task_instructions: str = ""


class Tau2Scenario(BaseModel):
    """The simulated user."""

    persona: str | None = None
    instructions: Tau2Instructions | str


class Tau2Task(BaseModel):
    """A task as the folder has it; fields that make no difference here are left out."""

    id: str
    user_scenario: Tau2Scenario
    initial_state: dict[str, Any] | None = None
    evaluation_criteria: Tau2Criteria

    def told(self) -> str:
        """What the user is told, in one text."""
        given = self.user_scenario.instructions
        parts = [given] if isinstance(given, str) else [str(part) for part in given.model_dump().values() if part]
        return "\n\n".join(part.strip() for part in (self.user_scenario.persona or "", *parts) if part.strip())


@dataclass(frozen=True, slots=True)
class Tau2Folder:
    """The tasks of a domain folder."""

    path: Path
    """The folder."""
    splits: dict[str, list[Tau2Task]]
    """Our name of a split → its tasks in the folder's order."""
    policy: str | None
    """Its policy.md; None where it has none."""


def with_folder_tasks(world: World, path: Path) -> World:
    """The world with the folder's tasks and policy in place of its own.

    ServerError where the folder's files are missing, unreadable, or ask for something that the world doesn't have.
    """
    folder = read_folder(path)
    known = world.toolbox.tools
    for task in (task for tasks in folder.splits.values() for task in tasks):
        strange = [action.name for action in task.evaluation_criteria.actions or () if action.name not in known]
        wrong = f"actions of tools that {world.name} doesn't have: {', '.join(strange)}" if strange else ""
        if task.initial_state:
            wrong = f"an initial_state ({', '.join(task.initial_state)}), which starts the world in another state"
        if wrong:
            fix = f"give a folder of the {world.name} domain, without initialisation"
            raise ServerError(f"read the tau2 tasks in {str(path)!r}", f"task {task.id!r} has {wrong}", fix)
    given = replace(world, policy=folder.policy or world.policy)
    return replace(given, tasks=partial(list_tasks, given, folder))


def read_folder(path: Path) -> Tau2Folder:
    """The tasks in a folder: tasks.json with split_tasks.json, or tasks.<split>.json. ServerError where it has none."""
    asked, fix = f"read the tau2 tasks in {str(path)!r}", "give a tau2-bench domain folder with db.json and tasks.json"
    if not path.is_dir():
        raise ServerError(asked, "no such folder", fix)
    split_files = {file.name.split(".")[1]: file for file in sorted(path.glob("tasks.*.json"))}
    whole = path / "tasks.json"
    if not whole.is_file() and not split_files:
        found = ", ".join(sorted(file.name for file in path.iterdir())[:8]) or "nothing"
        raise ServerError(asked, f"no tasks.json in it, but {found}", fix)
    splits: dict[str, list[Tau2Task]] = {}
    for name, file in split_files.items() if not whole.is_file() else ():
        splits.setdefault(SPLITS.get(name, UNSPLIT), []).extend(_read_tasks(file, asked, fix))
    if whole.is_file():
        tasks, places = _read_tasks(whole, asked, fix), _split_of(path / "split_tasks.json", asked, fix)
        for task in tasks:
            splits.setdefault(places.get(task.id, UNSPLIT), []).append(task)
    policy = path / "policy.md"
    return Tau2Folder(path, splits, policy.read_text(encoding="utf-8").strip() if policy.is_file() else None)


def list_tasks(
    world: World,
    folder: Tau2Folder,
    split: str,
    seed: int = 0,
    offset: int = 0,
    count: int = 1,
    *,
    kinds: Sequence[str] = (KIND,),
    difficulty: int | None = None,
) -> list[Task]:
    """Tasks `offset` to `offset + count - 1` of a split in the folder's order; the seed makes no difference.

    ValueError for a split, kind or difficulty (writes of the right way) without tasks, and for more than there are.
    """
    there = {name: len(tasks) for name, tasks in folder.splits.items()}
    if split not in there:
        fix = "split_tasks.json of the folder says which task is in `train` and which in `test` (held_out here)"
        raise ValueError(f"no tasks of the split {split!r} in {str(folder.path)!r}; it has {there}; {fix}")
    if any(kind != KIND for kind in kinds):
        raise ValueError(f"unknown kinds {list(kinds)}; tasks of a tau2 folder are all of the kind {KIND!r}")
    tasks = [task for task in folder.splits[split] if difficulty in (None, _writes(world, task))]
    if offset + count > len(tasks):
        wanted = f"{split} tasks {offset} to {offset + count - 1}" + (
            f" of difficulty {difficulty}" if difficulty else ""
        )
        fix = "ask for no more: tasks.train, evaluation.tasks or --tasks"
        raise ValueError(f"no {wanted}: {str(folder.path)!r} has {len(tasks)} such; {fix}")
    return [_task(world, split, task) for task in tasks[offset : offset + count]]


def _task(world: World, split: str, task: Tau2Task) -> Task:
    criteria, state, failed = task.evaluation_criteria, State(world.base), 0
    for action in criteria.actions or ():
        failed += world.run(state, action.name, action.arguments).is_error
        state.commit()
    changes = state.changes()
    communicate = (criteria.communicate_info or []) if "COMMUNICATE" in criteria.reward_basis else []
    return {
        "id": f"{world.name}-tau2-{task.id}",
        "server": world.name,
        "split": split,
        "kind": KIND,
        "difficulty": _writes(world, task),
        "user_message": task.told(),
        "system_prompt": world.policy,
        "allowed_tools": None,
        "expected": {
            "changes": changes,
            "actions": [{"name": action.name, "arguments": action.arguments} for action in criteria.actions or ()],
            "communicate": communicate,
        },
        "is_refusal": not changes and not communicate,
        "user": {"goal": task.told()},
        "metadata": {
            "tau2_id": task.id,
            "reward_basis": criteria.reward_basis,
            "nl_assertions": criteria.nl_assertions or [],
            "failing_actions": failed,
        },
    }


def _writes(world: World, task: Tau2Task) -> int:
    """Writes of the right way: the task's difficulty."""
    return sum(action.name in world.toolbox.writes for action in task.evaluation_criteria.actions or ())


def _read_tasks(file: Path, asked: str, fix: str) -> list[Tau2Task]:
    tasks = _shaped(file, list[Tau2Task], asked, fix)
    ids = [task.id for task in tasks]
    twice = sorted({task_id for task_id in ids if ids.count(task_id) > 1})
    if twice:
        raise ServerError(asked, f"{file.name} has the ids {', '.join(twice)} more than once", fix)
    return tasks


def _split_of(file: Path, asked: str, fix: str) -> dict[str, str]:
    """Task id → our name of its split; empty without the file."""
    if not file.is_file():
        return {}
    listed = _shaped(file, dict[str, list[str]], asked, fix)
    return {task_id: SPLITS[name] for name, ids in listed.items() if name in SPLITS for task_id in ids}


def _shaped(file: Path, shape: Any, asked: str, fix: str) -> Any:
    """The JSON in a file as that shape; ServerError names the first place that isn't."""
    try:
        return TypeAdapter(shape).validate_python(read_json(file, asked, fix))
    except ValidationError as error:
        first = error.errors()[0]
        place = " → ".join(str(part) for part in (file.name, *first["loc"]))
        found = f"{place}: {first['msg']}, got {first['input']!r}"[:400]
        raise ServerError(asked, f"{found} ({error.error_count()} such places)", fix) from error
