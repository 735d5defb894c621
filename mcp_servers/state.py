"""Session state for task servers: many isolated sessions, each a copy-on-write overlay over one shared base.

Knows nothing about any domain: an entity is a JSON object under a kind ("orders") and an id ("#K482").
Used by each server's `state.py`; anybody's server can use it the same way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

Entity = dict[str, Any]
Derived = TypeVar("Derived")


def copy_json(value: Any) -> Any:
    """A deep copy of a JSON value; several times faster than `copy.deepcopy` because only dicts and lists are containers."""
    if type(value) is dict:
        return {key: copy_json(item) for key, item in cast("Entity", value).items()}
    if type(value) is list:
        return [copy_json(item) for item in cast("list[Any]", value)]
    return value


def normalise(value: Any) -> Any:
    """The canonical form in which two JSON values are compared: null fields left out, integral floats as integers."""
    if type(value) is dict:
        return {key: normalise(item) for key, item in cast("Entity", value).items() if item is not None}
    if type(value) is list:
        return [normalise(item) for item in cast("list[Any]", value)]
    if type(value) is float and value.is_integer():
        return int(value)
    return value


def canonical(value: Any) -> str:
    """The canonical JSON text of a value: normalised, keys sorted, no spaces. Equal texts mean equal values."""
    return json.dumps(normalise(value), sort_keys=True, separators=(",", ":"))


class Base:
    """The shared starting state of every session of a world. Never changes, and its entities must not be edited in place."""

    __slots__ = ("_derived", "_entities", "_fingerprint", "meta")

    def __init__(self, entities: Mapping[str, Mapping[str, Entity]], meta: Mapping[str, Any] | None = None) -> None:
        self._entities = {kind: dict(members) for kind, members in entities.items()}
        self.meta = dict(meta or {})
        self._derived: dict[str, Any] = {}
        self._fingerprint: str | None = None

    def get(self, kind: str, entity_id: str) -> Entity | None:
        """The entity, or None where there is none. Read it, don't write to it."""
        return self._entities[kind].get(entity_id)

    def ids(self, kind: str) -> Iterable[str]:
        """The ids of all entities of a kind, in the order in which the base was made."""
        return self._entities[kind].keys()

    def derived(self, name: str, build: Callable[[Base], Derived]) -> Derived:
        """A value computed from the base once and kept with it, such as an index from e-mail to user."""
        if name not in self._derived:
            self._derived[name] = build(self)
        return cast("Derived", self._derived[name])

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the whole base in canonical form; computed once."""
        if self._fingerprint is None:
            self._fingerprint = hashlib.sha256(canonical(self._entities).encode()).hexdigest()
        return self._fingerprint


class State:
    """One session's view of a world: the base and what this session changed. Not safe for several threads at once."""

    __slots__ = ("_changed", "_draft", "base")

    def __init__(self, base: Base) -> None:
        self.base = base
        self._changed: dict[tuple[str, str], Entity] = {}
        self._draft: dict[tuple[str, str], Entity] = {}

    def get(self, kind: str, entity_id: str) -> Entity | None:
        """The entity as this session sees it, or None where there is none. Read it, don't write to it."""
        key = (kind, entity_id)
        found = self._draft.get(key) or self._changed.get(key)
        return found if found is not None else self.base.get(kind, entity_id)

    def edit(self, kind: str, entity_id: str) -> Entity:
        """A private copy of an entity to write to; it becomes part of the state with `commit`. KeyError where there is none."""
        key = (kind, entity_id)
        if key not in self._draft:
            found = self.get(kind, entity_id)
            if found is None:
                raise KeyError(f"no {kind} entity {entity_id!r} to edit")
            self._draft[key] = copy_json(found)
        return self._draft[key]

    def commit(self) -> None:
        """Makes everything edited since the last commit part of the state."""
        if self._draft:
            self._changed.update(self._draft)
            self._draft = {}

    def rollback(self) -> None:
        """Forgets everything edited since the last commit."""
        self._draft = {}

    def fork(self) -> State:
        """An independent session that starts where this one stands. Costs one dictionary of the changed entities."""
        twin = State(self.base)
        # A committed entity is never edited again, only replaced, so both sessions may hold the same object.
        twin._changed = dict(self._changed)
        return twin

    def changes(self) -> dict[str, dict[str, Entity]]:
        """Every entity that differs from the base, in full as it is now: kind → id → entity."""
        result: dict[str, dict[str, Entity]] = {}
        for (kind, entity_id), entity in sorted(self._changed.items()):
            if normalise(entity) != normalise(self.base.get(kind, entity_id)):
                result.setdefault(kind, {})[entity_id] = entity
        return result

    def hash(self) -> str:
        """SHA-256 (hex) of the state in canonical form: equal for equal states, whatever the way that led there."""
        return hashlib.sha256((self.base.fingerprint + canonical(self.changes())).encode()).hexdigest()
