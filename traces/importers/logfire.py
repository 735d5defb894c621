"""Pydantic Logfire: what its SDK sends (OTLP). Model calls follow the GenAI conventions; tools are spans of functions.

It knows nothing about files. A function span of a name that the model asked for is a tool call.
Can't give: token ids, log-probabilities, policy versions; the id of the model's tool call; results of functions that
were not instrumented with `record_return=True` (they are then read from the next request); scrubbed content.
Source: logfire span attributes, read against logfire 5.2.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from traces import semconv
from traces.importers.calls import tool_call
from traces.span import Span

_KIND = "logfire.span_type"
_SCHEMA = "logfire.json_schema"
_RETURN = "return"


def mark_tools(spans: Iterable[Span]) -> Iterator[Span]:
    """The spans, with functions that the model asked for as tool calls; a span that is not Logfire's stays as it is."""
    held = list(spans)
    asked = {name for span in held for name in _asked(span)}
    for span in held:
        is_function = _KIND in span.attributes and _RETURN in span.attributes
        yield replace(span, attributes=_tool(span)) if is_function and span.name in asked else span


def _asked(span: Span) -> Iterator[str]:
    said: Any = span.attributes.get(semconv.OUTPUT_MESSAGES)
    for message in cast("list[dict[str, Any]]", said) if isinstance(said, list) else []:
        yield from (str(part.get("name")) for part in message.get("parts") or () if part.get("type") == "tool_call")


def _tool(span: Span) -> dict[str, Any]:
    schema: Mapping[str, Any] = json.loads(str(span.attributes.get(_SCHEMA) or "{}"))
    names = [name for name in schema.get("properties") or () if name != _RETURN and name in span.attributes]
    arguments = {name: span.attributes[name] for name in names}
    return tool_call(span.name, arguments, span.attributes[_RETURN])
