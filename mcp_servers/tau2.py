"""Reads the database of a τ²-bench domain (db.json) as a base of ours, after looking at every entity of it.

Knows nothing about any domain: a server says which kinds there are and what an entity of each looks like. Used by the
tau2.py of servers whose domain τ²-bench has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from mcp_servers.errors import ServerError
from mcp_servers.state import Base, Entity


def read_database(file: Path, shapes: Mapping[str, type], meta: Mapping[str, Any] | None = None) -> Base:
    """The base in a db.json; `shapes` is kind → TypedDict of its entities.

    ServerError where the file is missing, no JSON, of another domain, or where an entity isn't what it should be.
    """
    asked, fix = (
        f"open the tau2 database {str(file)!r}",
        f"give the db.json of a tau2-bench domain with {_list(shapes)}",
    )
    found = read_json(file, asked, fix)
    if not isinstance(found, dict) or not shapes.keys() <= found.keys():
        keys = _list(cast("dict[str, Any]", found)) if isinstance(found, dict) else type(found).__name__
        raise ServerError(asked, f"no {_list(shapes)} in it, but {keys}", fix)
    entities = cast("dict[str, dict[str, Entity]]", found)
    for kind, shape in shapes.items():
        try:
            TypeAdapter(dict[str, shape]).validate_python(entities[kind])  # pyright: ignore[reportInvalidTypeForm]
        except ValidationError as error:
            first = error.errors()[0]
            place = " → ".join(str(part) for part in (kind, *first["loc"]))
            wrong = f"{place}: {first['msg']}, got {first['input']!r}"[:400]
            raise ServerError(asked, f"{wrong} ({error.error_count()} such places)", fix) from error
    return Base({kind: entities[kind] for kind in shapes}, {"source": "tau2", **(meta or {})})


def read_json(file: Path, asked: str, fix: str) -> Any:
    """The JSON in a file. ServerError where there is none."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ServerError(asked, f"{file.name}: {error.strerror or error}", fix) from error
    except ValueError as error:
        raise ServerError(asked, f"{file.name} is no JSON: {error}", fix) from error


def _list(names: Mapping[str, Any]) -> str:
    return ", ".join(list(names)[:8])
