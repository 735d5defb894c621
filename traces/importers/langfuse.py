"""Langfuse: what its SDK sends (OTLP), and observations as `GET /api/public/observations` lists them.

It knows nothing about chat messages; `calls.py` reads those.
Can't give: token ids, log-probabilities, policy versions; the id of the model's tool call; arguments that were given
by position have no names; what a masking function took out. Scores are listed apart and not in observations.
Source: langfuse.observation.* attributes and the Observation schema, read against langfuse 5.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from traces.importers.calls import agent_call, model_call, tool_call
from traces.importers.rows import hex_id, read_rows, time_ns
from traces.span import Span, SpanStatus

TYPE = "langfuse.observation.type"
_INPUT = "langfuse.observation.input"
_OUTPUT = "langfuse.observation.output"
_MODEL = "langfuse.observation.model.name"


def is_langfuse(span: Span) -> bool:
    """Whether the span is of Langfuse's SDK."""
    return TYPE in span.attributes


def normalise(span: Span) -> Span:
    """The span in GenAI words; observations of other types keep their attributes."""
    attributes = span.attributes
    made = _attributes(
        str(attributes[TYPE]).lower(),
        span.name,
        _parsed(attributes.get(_INPUT)),
        _parsed(attributes.get(_OUTPUT)),
        str(attributes.get(_MODEL) or ""),
    )
    return replace(span, attributes=made) if made else span


def read_observations(path: Path) -> Iterator[Span]:
    """The observations of an API answer in our form; raises ExportError where it is something else."""
    yield from read_rows(path, "Langfuse", _span)


def _span(row: Mapping[str, Any]) -> Span:
    parent = row.get("parentObservationId")
    failed = row.get("level") == "ERROR"
    made = _attributes(
        str(row["type"]).lower(),
        str(row.get("name") or ""),
        _parsed(row.get("input")),
        _parsed(row.get("output")),
        str(row.get("model") or ""),
    )
    return Span(
        trace_id=hex_id(str(row["traceId"]), 32),
        span_id=hex_id(str(row["id"]), 16),
        parent_id=hex_id(str(parent), 16) if parent else None,
        name=str(row.get("name") or ""),
        start_ns=time_ns(str(row["startTime"])),
        end_ns=time_ns(str(row.get("endTime") or row["startTime"])),
        status=SpanStatus.ERROR if failed else SpanStatus.UNSET,
        status_message=str(row.get("statusMessage") or "") if failed else "",
        attributes=made or {TYPE: row["type"]},
        source="langfuse",
    )


def _attributes(kind: str, name: str, given: Any, result: Any, model: str) -> dict[str, Any]:
    if kind == "generation":
        return model_call(given, result, model)
    if kind == "tool":
        return tool_call(name, _arguments(given), result)
    return agent_call(name) if kind == "agent" else {}


def _arguments(given: Any) -> Any:
    """Named arguments where the SDK's decorator recorded a call by name; else what was recorded."""
    if isinstance(given, Mapping) and set(cast("Mapping[str, Any]", given)) == {"args", "kwargs"}:
        call = cast("Mapping[str, Any]", given)
        return call["kwargs"] if not call["args"] else call
    return cast("Any", given)


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
