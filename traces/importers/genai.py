"""Spans that follow the GenAI conventions, in the forms their emitters really write → the one form we store.

It knows nothing about files. Seen: content as JSON text or as structured values; content in an event instead of the
span (Strands); tool results in user messages (pydantic-ai, ADK); Bedrock-shaped tool definitions (Strands).
Can't give: token ids, log-probabilities, policy versions; content at all where capture was off; whole content where an
exporter cut it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from traces import semconv
from traces.span import Span

TRUNCATED = "truncated_content"
NO_CONTENT = "no_content"
_DETAILS_EVENT = "gen_ai.client.inference.operation.details"
_CONTENT = (semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES, semconv.SYSTEM_INSTRUCTIONS, semconv.TOOL_DEFINITIONS)
_MODEL = frozenset({semconv.OPERATION_CHAT, semconv.OPERATION_GENERATE_CONTENT, semconv.OPERATION_TEXT_COMPLETION})


def is_genai(span: Span) -> bool:
    """Whether the span follows these conventions."""
    return semconv.OPERATION_NAME in span.attributes


def normalise(span: Span) -> Span:
    """The span with content as lists of dicts, and what is missing in `harness.evidence.gaps`."""
    attributes = dict(span.attributes)
    for event in span.events:
        if event.name == _DETAILS_EVENT:
            attributes = dict(event.attributes) | attributes
    gaps: list[str] = list(attributes.get(semconv.EVIDENCE_GAPS) or ())
    for key in _CONTENT:
        if key in attributes:
            attributes[key], whole = _read(attributes[key])
            if not whole:
                gaps.append(TRUNCATED)
    if semconv.TOOL_DEFINITIONS in attributes:
        attributes[semconv.TOOL_DEFINITIONS] = [_tool(tool) for tool in attributes[semconv.TOOL_DEFINITIONS]]
    if attributes.get(semconv.OPERATION_NAME) in _MODEL and not attributes.get(semconv.OUTPUT_MESSAGES):
        gaps.append(NO_CONTENT)
    if gaps:
        attributes[semconv.EVIDENCE_GAPS] = list(dict.fromkeys(gaps))
    return replace(span, attributes=attributes)


def _read(value: Any) -> tuple[list[Any], bool]:
    """The list, and whether it came whole."""
    if not isinstance(value, str):
        return (cast("list[Any]", value) if isinstance(value, list) else [value]), True
    try:
        parsed: Any = json.loads(value)
    except ValueError:
        return [], False
    return (cast("list[Any]", parsed) if isinstance(parsed, list) else [parsed]), True


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    schema: Any = tool.get("inputSchema")
    if not isinstance(schema, Mapping):
        return dict(tool)
    parameters: Any = cast("Mapping[str, Any]", schema).get("json", schema)
    rest = {key: value for key, value in tool.items() if key != "inputSchema"}
    return {"type": "function", **rest, "parameters": parameters}
