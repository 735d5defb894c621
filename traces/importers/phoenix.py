"""Arize Phoenix: spans as its REST API and its UI export them, one JSON object a line or all under `data`.

It knows nothing about OpenInference beyond where Phoenix keeps it; `openinference.py` reads that.
Can't give: what OpenInference can't; nanoseconds (times come with microseconds); the instrumentation scope.
Source: GET /v1/projects/{project}/spans, read against arize-phoenix 20.26.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from traces.importers import genai, openinference
from traces.span import Span, SpanEvent, SpanStatus


class PhoenixError(ValueError):
    """A file that is no Phoenix export."""


def read(path: Path) -> Iterator[Span]:
    """The file's spans in our form; raises PhoenixError where it is something else."""
    for number, row in enumerate(_rows(path), start=1):
        try:
            span = _span(row)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            fault = f"span {number} is no Phoenix span ({type(error).__name__} {error})"
            raise PhoenixError(f"read {path}: {fault}") from error
        yield genai.normalise(span) if genai.is_genai(span) else openinference.normalise(span)


def _rows(path: Path) -> list[Mapping[str, Any]]:
    text = path.read_text(encoding="utf-8")
    try:
        whole: Any = json.loads(text)
        rows: Any = cast("dict[str, Any]", whole).get("data", [whole]) if isinstance(whole, dict) else whole
    except ValueError:
        # More than one object: one a line.
        try:
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise PhoenixError(f"read {path}: neither one JSON object nor one a line ({error})") from error
    if not isinstance(rows, list):
        raise PhoenixError(f"read {path}: found {type(rows).__name__} where a list of spans is expected")
    return cast("list[Mapping[str, Any]]", rows)


def _span(row: Mapping[str, Any]) -> Span:
    attributes: Any = row.get("attributes") or {}
    if isinstance(attributes, str):
        attributes = json.loads(attributes)
    flat = openinference.flatten(cast("dict[str, Any]", attributes))
    flat.setdefault(openinference.KIND, row.get("span_kind", ""))
    failed = str(row.get("status_code", "")).upper() == "ERROR"
    return Span(
        trace_id=str(row["context"]["trace_id"]),
        span_id=str(row["context"]["span_id"]),
        parent_id=row.get("parent_id") or None,
        name=str(row.get("name") or ""),
        start_ns=_time_ns(row["start_time"]),
        end_ns=_time_ns(row.get("end_time") or row["start_time"]),
        status=SpanStatus.ERROR if failed else SpanStatus.UNSET,
        status_message=str(row.get("status_message") or ""),
        attributes=flat,
        events=tuple(_event(event) for event in row.get("events") or ()),
        source="phoenix",
    )


def _event(event: Mapping[str, Any]) -> SpanEvent:
    return SpanEvent(str(event.get("name") or ""), _time_ns(event["timestamp"]), dict(event.get("attributes") or {}))


def _time_ns(text: str) -> int:
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    # Whole microseconds: a float of seconds since 1970 can't hold them.
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000
