"""Session state for task servers: many isolated sessions, each a copy-on-write overlay over one shared base.

Knows nothing about any domain, HTTP or MCP: an entity is a JSON object under a kind ("orders") and an id ("#K482").
Used by each server's `state.py`, and by sessions.py, which keeps a server's live sessions; usable by any server.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from mcp_servers.errors import ServerError

Entity = dict[str, Any]
Key = tuple[str, str]
Derived = TypeVar("Derived")

BASE_SCHEMA = """
CREATE TABLE entities (kind TEXT, id TEXT, position INTEGER, body TEXT, PRIMARY KEY (kind, id)) WITHOUT ROWID;
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
"""


def copy_json(value: Any) -> Any:
    """A deep copy of a JSON value; only dicts and lists are containers, so it beats `copy.deepcopy` several times."""
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
    """The shared starting state of every session of a world.

    It never changes, and its entities must not be edited in place. Made from entities in memory, or opened from the
    SQLite file that `write` left; then entities are read when they are first asked for.
    """

    __slots__ = ("_derived", "_entities", "_file", "_fingerprint", "meta")

    def __init__(
        self,
        entities: Mapping[str, Mapping[str, Entity]],
        meta: Mapping[str, Any] | None = None,
        *,
        file: sqlite3.Connection | None = None,
        fingerprint: str | None = None,
    ) -> None:
        self._entities = {kind: dict(members) for kind, members in entities.items()}
        self.meta = dict(meta or {})
        self._derived: dict[str, Any] = {}
        self._file = file
        self._fingerprint = fingerprint

    @classmethod
    def open(cls, path: Path) -> Base:
        """A base from its SQLite file, opened read-only. ServerError where there is none or it is another kind."""
        if not path.is_file():
            fix = "give the path of a base database, or leave it out to have one generated"
            raise ServerError(f"open the base database {str(path)!r}", "no such file", fix)
        try:
            file = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)
            meta = {name: json.loads(value) for name, value in file.execute("SELECT name, value FROM meta")}
            kinds = {kind: dict[str, Entity]() for (kind,) in file.execute("SELECT DISTINCT kind FROM entities")}
        except (sqlite3.DatabaseError, ValueError) as error:
            fix = "write it anew with --write-db, or give another file"
            raise ServerError(f"open the base database {str(path)!r}", f"not a base database ({error})", fix) from error
        return cls(kinds, meta["meta"], file=file, fingerprint=meta["fingerprint"])

    def write(self, path: Path) -> None:
        """Writes the base as a SQLite file that `open` reads; the file appears whole or not at all."""
        part = path.with_name(f"{path.name}.part")
        part.unlink(missing_ok=True)
        file = sqlite3.connect(part)
        try:
            file.executescript(BASE_SCHEMA)
            for kind in self._entities:
                rows = ((kind, key, n, json.dumps(self.get(kind, key))) for n, key in enumerate(self.ids(kind)))
                file.executemany("INSERT INTO entities VALUES (?, ?, ?, ?)", rows)
            meta = {"meta": self.meta, "fingerprint": self.fingerprint}
            file.executemany(
                "INSERT INTO meta VALUES (?, ?)", [(name, json.dumps(value)) for name, value in meta.items()]
            )
            file.commit()
        finally:
            file.close()
        part.replace(path)

    def get(self, kind: str, entity_id: str) -> Entity | None:
        """The entity, or None where there is none. Read it, don't write to it."""
        members = self._entities.get(kind)
        if members is None:
            return None
        found = members.get(entity_id)
        if found is None and self._file is not None:
            row = self._file.execute(
                "SELECT body FROM entities WHERE kind = ? AND id = ?", (kind, entity_id)
            ).fetchone()
            if row is not None:
                found = members[entity_id] = cast("Entity", json.loads(row[0]))
        return found

    def ids(self, kind: str) -> Iterable[str]:
        """The ids of all entities of a kind, in the order in which the base was made."""
        if self._file is None:
            return self._entities.get(kind, {}).keys()
        rows = self._file.execute("SELECT id FROM entities WHERE kind = ? ORDER BY position", (kind,))
        return [entity_id for (entity_id,) in rows]

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
    """One session's view of a world: the base, and what this session changed. For one thread at a time."""

    __slots__ = ("_changed", "_draft", "base")

    def __init__(self, base: Base, changed: Mapping[Key, Entity] | None = None) -> None:
        self.base = base
        self._changed = dict(changed or {})
        self._draft: dict[Key, Entity] = {}

    def get(self, kind: str, entity_id: str) -> Entity | None:
        """The entity as this session sees it, or None where there is none. Read it, don't write to it."""
        key = (kind, entity_id)
        found = self._draft.get(key)
        if found is None:
            found = self._changed.get(key)
        return found if found is not None else self.base.get(kind, entity_id)

    def edit(self, kind: str, entity_id: str) -> Entity:
        """A private copy of an entity to write to; part of the state with `commit`. KeyError where there is none."""
        key = (kind, entity_id)
        if key not in self._draft:
            found = self.get(kind, entity_id)
            if found is None:
                raise KeyError(f"no {kind} entity {entity_id!r} to edit")
            self._draft[key] = copy_json(found)
        return self._draft[key]

    def add(self, kind: str, entity_id: str, entity: Entity) -> None:
        """A new entity, part of the state with `commit`. The caller gives it away: it must not write to it any more."""
        self._draft[(kind, entity_id)] = entity

    def draft(self) -> Mapping[Key, Entity]:
        """What was edited or added since the last commit."""
        return self._draft

    def changed(self) -> Mapping[Key, Entity]:
        """Every committed entity that this session edited or added, whether or not it now differs from the base."""
        return self._changed

    def commit(self) -> None:
        """Makes the draft part of the state."""
        if self._draft:
            self._changed.update(self._draft)
            self._draft = {}

    def rollback(self) -> None:
        """Forgets the draft."""
        if self._draft:
            self._draft = {}

    def fork(self) -> State:
        """An independent state that starts where this one stands. Costs one dictionary of the changed entities."""
        # A committed entity is never edited again, only replaced, so both may hold the same object.
        return State(self.base, self._changed)

    def changes(self) -> dict[str, dict[str, Entity]]:
        """Every entity that differs from the base, in full as it is now: kind → id → entity."""
        result: dict[str, dict[str, Entity]] = {}
        for (kind, entity_id), entity in sorted(self._changed.items(), key=lambda item: item[0]):
            before = self.base.get(kind, entity_id)
            if before is None or normalise(entity) != normalise(before):
                result.setdefault(kind, {})[entity_id] = entity
        return result

    def diff(self) -> dict[str, dict[str, dict[str, Entity | None]]]:
        """Every entity that differs from the base, before (None where it was added) and after: kind → id → both."""
        return {
            kind: {key: {"before": self.base.get(kind, key), "after": entity} for key, entity in members.items()}
            for kind, members in self.changes().items()
        }

    def hash(self) -> str:
        """SHA-256 (hex) of the state in canonical form: equal for equal states, whatever the way that led there."""
        return hashlib.sha256((self.base.fingerprint + canonical(self.changes())).encode()).hexdigest()
