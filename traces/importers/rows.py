"""Export files that hold one JSON object a span: all in one list, under a key, or one a line.

It knows nothing about what the objects say. The importers of Phoenix, LangSmith, Weave, Langfuse and Jaeger read by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from traces.span import Span

_WRAPPERS = ("data", "runs", "calls", "observations")


class ExportError(ValueError):
    """A file that is no export of the source it was said to be of."""


def read_rows(path: Path, source: str, make: Callable[[Mapping[str, Any]], Span]) -> Iterator[Span]:
    """`make` of each object of the file; raises ExportError, with the object's number, where one can't be read."""
    for number, row in enumerate(load_rows(path, source), start=1):
        try:
            span = make(row)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            fault = f"object {number} is no {source} span ({type(error).__name__} {error})"
            raise ExportError(f"read {path}: {fault}") from error
        yield span


def load_rows(path: Path, source: str) -> list[Mapping[str, Any]]:
    """The file's objects; raises ExportError where it holds something else."""
    text = path.read_text(encoding="utf-8")
    try:
        whole: Any = json.loads(text)
    except ValueError:
        # More than one object: one a line.
        try:
            whole = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise ExportError(f"read {path}: neither one JSON object nor one a line ({error})") from error
    if isinstance(whole, dict):
        held = cast("dict[str, Any]", whole)
        whole = next((held[key] for key in _WRAPPERS if key in held), [held])
    if not isinstance(whole, list):
        raise ExportError(f"read {path}: found {type(whole).__name__} where a list of {source} spans is expected")
    rows = cast("list[Any]", whole)
    if not all(isinstance(row, dict) for row in rows):
        raise ExportError(f"read {path}: not every {source} span in it is a JSON object")
    return cast("list[Mapping[str, Any]]", rows)


def time_ns(text: str) -> int:
    """An ISO 8601 moment in nanoseconds since 1970; UTC where it names no zone."""
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    # Whole microseconds: a float of seconds since 1970 can't hold them.
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000


def hex_id(text: str, digits: int) -> str:
    """A source's id (such as a UUID) as a W3C one of `digits`: the last ones, where the random part of a UUID lies."""
    plain = text.replace("-", "").lower()
    return plain[-digits:].rjust(digits, "0")
