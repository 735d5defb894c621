"""Judges how an episode ended: the final state against the expected one, by entity, and what had to be said.

Knows nothing about any domain, MCP or how the task was made. Numbers are compared exactly, once 5 and 5.0 count as
equal, and a missing field as null. Partial credit is reported as components of its own and never enters `passed`.
The grade.py of a server that is judged by its entities takes it from here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from mcp_servers.state import Entity, State, normalise
from mcp_servers.world import Grade, Task

Changes = Mapping[str, Mapping[str, Entity]]
SHOWN_DIFFERENCES = 3
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def grade(state: State, task: Task, answer: str) -> Grade:
    """Passed: every expected change is there, nothing else changed, and everything that had to be said was said.

    ValueError where the task has nothing expected in it.
    """
    expected: Any = task.get("expected")
    if not isinstance(expected, dict) or not isinstance(expected.get("changes"), dict):
        raise ValueError(f"task {task.get('id')!r} has no expected changes; give it as the server listed it")
    wanted, found = cast("Changes", expected["changes"]), state.changes()
    differences = list(_differences(state, wanted, found))
    infos = cast("list[str]", expected.get("communicate") or [])
    said = {info: _says(answer, info) for info in infos}
    unsaid = [info for info, was_said in said.items() if not was_said]
    passed = not differences and not unsaid
    components = {
        **_entity_shares(wanted, found),
        "fields_right": _field_share(state, wanted, found),
        "communicated": sum(said.values()) / len(said) if said else 1.0,
    }
    return Grade(passed, _reason(differences, unsaid, wanted), components)


def _entity_shares(wanted: Changes, found: Changes) -> dict[str, float]:
    """Share of the expected entities that are exactly right, and whether all others were left alone."""
    expected = list(_entities(wanted))
    right = sum(_same(entity, found.get(kind, {}).get(key)) for kind, key, entity in expected)
    extra = [key for kind, key, _ in _entities(found) if key not in wanted.get(kind, {})]
    return {
        "entities_right": right / len(expected) if expected else 1.0,
        "nothing_else_changed": 0.0 if extra else 1.0,
    }


def _field_share(state: State, wanted: Changes, found: Changes) -> float:
    """Share of the fields that had to change that have their expected value."""
    right: list[bool] = []
    for kind, key, entity in _entities(wanted):
        before = state.base.get(kind, key) or {}
        now = found.get(kind, {}).get(key, before)
        fields = [field for field in entity if not _same(entity[field], before.get(field))]
        right += [_same(entity[field], now.get(field)) for field in fields]
    return sum(right) / len(right) if right else 1.0


def _differences(state: State, wanted: Changes, found: Changes) -> Iterator[str]:
    """What a person would point at, one line each."""
    for kind, key, entity in _entities(wanted):
        now = found.get(kind, {}).get(key)
        if now is None:
            yield f"{kind} {key} was not changed, but should have been"
        elif not _same(entity, now):
            yield from _field_differences(f"{kind} {key}", entity, now)
    for kind, key, entity in _entities(found):
        if key not in wanted.get(kind, {}):
            before = state.base.get(kind, key) or {}
            fields = [field for field in {**before, **entity} if not _same(before.get(field), entity.get(field))]
            yield f"{kind} {key} was changed ({', '.join(fields)}), but should not have been"


def _field_differences(name: str, wanted: Entity, now: Entity) -> Iterator[str]:
    for field in {**wanted, **now}:
        if not _same(wanted.get(field), now.get(field)):
            yield f"{name} {field}: expected {wanted.get(field)!r}, found {now.get(field)!r}"


def _reason(differences: list[str], unsaid: list[str], wanted: Changes) -> str:
    if not differences and not unsaid:
        return "the state is as expected" if wanted else "nothing was changed, as it should be"
    told = differences[:SHOWN_DIFFERENCES] + [f"the answer does not say {info!r}" for info in unsaid]
    more = len(differences) - SHOWN_DIFFERENCES
    return "; ".join(told) + (f"; and {more} more differences" if more > 0 else "")


def _says(answer: str, info: str) -> bool:
    """Whether the answer says it: a number by its value where it stands alone, other text without regard to case."""
    plain, wanted = answer.replace(",", ""), info.replace(",", "").strip()
    if _NUMBER.fullmatch(wanted):
        return any(float(number) == float(wanted) for number in _NUMBER.findall(plain))
    return wanted.lower() in plain.lower()


def _entities(changes: Changes) -> Iterator[tuple[str, str, Entity]]:
    for kind, members in changes.items():
        for key, entity in members.items():
            yield kind, key, entity


def _same(one: Any, other: Any) -> bool:
    return normalise(one) == normalise(other)
