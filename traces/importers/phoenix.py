"""Arize Phoenix: spans as its REST API and its UI export them, one JSON object a line or all under `data`.

It knows nothing about OpenInference beyond where Phoenix keeps it; `openinference.py` reads that.
Can't give: what OpenInference can't; nanoseconds (times come with microseconds); the instrumentation scope.
Source: GET /v1/projects/{project}/spans, read against arize-phoenix 20.26.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from traces.importers import genai, openinference
from traces.importers.rows import read_rows, time_ns
from traces.span import Span, SpanEvent, SpanStatus


def read(path: Path) -> Iterator[Span]:
    """The file's spans in our form; raises ExportError where it is something else."""
    for span in read_rows(path, "Phoenix", _span):
        yield genai.normalise(span) if genai.is_genai(span) else openinference.normalise(span)


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
        start_ns=time_ns(row["start_time"]),
        end_ns=time_ns(row.get("end_time") or row["start_time"]),
        status=SpanStatus.ERROR if failed else SpanStatus.UNSET,
        status_message=str(row.get("status_message") or ""),
        attributes=flat,
        events=tuple(_event(event) for event in row.get("events") or ()),
        source="phoenix",
    )


def _event(event: Mapping[str, Any]) -> SpanEvent:
    return SpanEvent(str(event.get("name") or ""), time_ns(event["timestamp"]), dict(event.get("attributes") or {}))
