"""OpenLLMetry (Traceloop): GenAI spans by its instrumentations, and spans of its decorators → the GenAI form we store.

It knows nothing about files. Newer versions write GenAI's message lists; older ones (before 0.50) flattened
`gen_ai.prompt.N.*` and `gen_ai.completion.N.*`, which are read too.
Can't give: token ids, log-probabilities, policy versions; the id of the model's tool call; content where
TRACELOOP_TRACE_CONTENT is false.
Source: traceloop/openllmetry, opentelemetry-semantic-conventions-ai.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from traces import semconv
from traces.importers.calls import agent_call, as_object, model_call, tool_call
from traces.span import Span

_KIND = "traceloop.span.kind"
_NAME = "traceloop.entity.name"
_INPUT = "traceloop.entity.input"
_OUTPUT = "traceloop.entity.output"
_FLAT = re.compile(r"(gen_ai\.prompt|gen_ai\.completion|llm\.request\.functions)\.(\d+)\.(.+)")
_CALL = re.compile(r"tool_calls\.(\d+)\.(id|name|arguments)")


def is_openllmetry(span: Span) -> bool:
    """Whether the span is of a decorator, or in the older flattened form."""
    return _KIND in span.attributes or any(_FLAT.fullmatch(key) for key in span.attributes)


def normalise(span: Span) -> Span:
    """The span in GenAI words; workflows and tasks keep their attributes."""
    attributes = span.attributes
    kind = str(attributes.get(_KIND) or "")
    name = str(attributes.get(_NAME) or span.name)
    if kind == "tool":
        made = tool_call(name, _arguments(attributes.get(_INPUT)), _parsed(attributes.get(_OUTPUT)))
    elif kind == "agent":
        made = agent_call(name)
    elif not kind and semconv.INPUT_MESSAGES not in attributes:
        made = _flattened(attributes)
    else:
        return span
    return replace(span, attributes=made)


def _flattened(attributes: Mapping[str, Any]) -> dict[str, Any]:
    parts: dict[str, dict[int, dict[str, Any]]] = {}
    for key, value in attributes.items():
        if match := _FLAT.fullmatch(key):
            parts.setdefault(match[1], {}).setdefault(int(match[2]), {})[match[3]] = value
    asked, said, tools = (
        [held[index] for index in sorted(held)]
        for held in (parts.get(name, {}) for name in ("gen_ai.prompt", "gen_ai.completion", "llm.request.functions"))
    )
    request = {
        "messages": [_message(part) for part in asked],
        "tools": [{"type": "function", "function": {**t, "parameters": _parsed(t.get("parameters"))}} for t in tools],
    }
    choices = [{"message": _message(part), "finish_reason": part.get("finish_reason")} for part in said]
    model = str(attributes.get(semconv.REQUEST_MODEL) or attributes.get(semconv.RESPONSE_MODEL) or "")
    return model_call(request, {"choices": choices} if choices else None, model)


def _message(part: Mapping[str, Any]) -> dict[str, Any]:
    calls: dict[int, dict[str, Any]] = {}
    for key, value in part.items():
        if match := _CALL.fullmatch(key):
            calls.setdefault(int(match[1]), {})[match[2]] = value
    message = {"role": part.get("role") or "assistant", "content": part.get("content")}
    if "tool_call_id" in part:
        message["tool_call_id"] = part["tool_call_id"]
    if calls:
        message["tool_calls"] = [
            {"id": call.get("id"), "type": "function", "function": {k: call.get(k) for k in ("name", "arguments")}}
            for _, call in sorted(calls.items())
        ]
    return message


def _arguments(value: Any) -> Any:
    """What the decorator was given: `{"args": [...], "kwargs": {...}}` as JSON."""
    given: Any = _parsed(value)
    held = as_object(given)
    if held is not None and "kwargs" in held:
        return held["kwargs"] if not held.get("args") else held
    return given


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
