"""Jaeger: traces as `GET /api/traces` and the UI's "Trace JSON" give them; tags are read by the convention they follow.

It knows nothing about those conventions: `otlp.py` does. (`GET /api/v3/traces` answers OTLP JSON: source `otlp`.)
Can't give: what the instrumentation behind it can't; nanoseconds (times are microseconds); text beyond the exporter's
tag limit; whether a list of one kind was a list (Jaeger's tags are text and numbers).
Source: jaegertracing/jaeger, internal/uimodel/model.go.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from traces import semconv
from traces.importers import otlp
from traces.importers.rows import ExportError, load_rows
from traces.span import Span, SpanEvent, SpanKind, SpanStatus

_KINDS = {kind.value: kind for kind in SpanKind}


def read(path: Path) -> Iterator[Span]:
    """The file's spans in our form; raises ExportError where it is something else."""
    for trace in load_rows(path, "Jaeger"):
        for number, span in enumerate(_spans(path, trace), start=1):
            try:
                made = _span(span, trace.get("processes") or {})
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                fault = f"span {number} of trace {trace.get('traceID')} is no Jaeger span"
                raise ExportError(f"read {path}: {fault} ({type(error).__name__} {error})") from error
            yield otlp.normalise(made)


def _spans(path: Path, trace: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    spans: Any = trace.get("spans")
    if not isinstance(spans, list):
        raise ExportError(f"read {path}: found no list of spans in a trace; it is no Jaeger export")
    return cast("list[Mapping[str, Any]]", spans)


def _span(span: Mapping[str, Any], processes: Mapping[str, Any]) -> Span:
    tags = _tags(span.get("tags") or ())
    start_ns = int(span["startTime"]) * 1000
    parents = [r for r in span.get("references") or () if r["refType"] == "CHILD_OF"]
    failed = tags.get("error") is True or str(tags.get("otel.status_code")) == "ERROR"
    process: Mapping[str, Any] = processes.get(str(span.get("processID"))) or {}
    return Span(
        trace_id=str(span["traceID"]).rjust(32, "0"),
        span_id=str(span["spanID"]).rjust(16, "0"),
        parent_id=str(parents[0]["spanID"]).rjust(16, "0") if parents else None,
        name=str(span["operationName"]),
        kind=_KINDS.get(str(tags.get("span.kind")), SpanKind.INTERNAL),
        start_ns=start_ns,
        end_ns=start_ns + int(span["duration"]) * 1000,
        status=SpanStatus.ERROR if failed else SpanStatus.UNSET,
        status_message=str(tags.get("otel.status_description") or ""),
        attributes=tags,
        events=tuple(_event(log) for log in span.get("logs") or ()),
        source=str(tags.get("otel.scope.name") or process.get("serviceName") or "jaeger"),
    )


def _tags(tags: Any) -> dict[str, Any]:
    return {str(tag["key"]): _value(tag) for tag in cast("list[Mapping[str, Any]]", tags)}


def _value(tag: Mapping[str, Any]) -> Any:
    value = tag["value"]
    if tag["key"] == semconv.RESPONSE_FINISH_REASONS and str(value).startswith("("):
        # Lists are JSON text, which is parsed where a list is expected; the Python exporter writes its own form.
        return list(ast.literal_eval(value))
    return int(value) if tag.get("type") == "int64" and isinstance(value, str) else value


def _event(log: Mapping[str, Any]) -> SpanEvent:
    fields = _tags(log.get("fields") or ())
    name = fields.pop("event", fields.pop("name", ""))
    return SpanEvent(str(name), int(log["timestamp"]) * 1000, fields)
