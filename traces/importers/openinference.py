"""Spans in OpenInference's words, flattened or nested → the GenAI form we store.

It knows nothing about files. Source: Arize-ai/openinference, spec/semantic_conventions.md.
Can't give: token ids, log-probabilities, policy versions; which model call asked for a tool call, unless ids or
arguments say so; content that an instrumentation hid or cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from traces import semconv
from traces.importers.genai import NO_CONTENT
from traces.messages import genai_message, genai_tool
from traces.span import Span

KIND = "openinference.span.kind"
_OPERATIONS = {
    "LLM": semconv.OPERATION_CHAT,
    "TOOL": semconv.OPERATION_EXECUTE_TOOL,
    "AGENT": semconv.OPERATION_INVOKE_AGENT,
}
_PARAMETERS = {
    "temperature": semconv.REQUEST_TEMPERATURE,
    "top_p": semconv.REQUEST_TOP_P,
    "max_tokens": semconv.REQUEST_MAX_TOKENS,
    "max_completion_tokens": semconv.REQUEST_MAX_TOKENS,
    "seed": semconv.REQUEST_SEED,
}
_REDACTED = "__REDACTED__"


def is_openinference(span: Span) -> bool:
    """Whether the span follows these conventions."""
    return KIND in span.attributes


def normalise(span: Span) -> Span:
    """The span in GenAI words; spans of other kinds keep their attributes."""
    flat = flatten(span.attributes)
    operation = _OPERATIONS.get(str(flat.get(KIND, "")).upper())
    if operation is None:
        return span
    made: dict[str, Any] = {semconv.OPERATION_NAME: operation}
    if operation == semconv.OPERATION_CHAT:
        made |= _model_call(flat)
    elif operation == semconv.OPERATION_EXECUTE_TOOL:
        made |= _tool_call(flat, span.name)
    else:
        made[semconv.AGENT_NAME] = flat.get("agent.name") or span.name
    if flat.get("session.id"):
        made[semconv.CONVERSATION_ID] = flat["session.id"]
    return replace(span, attributes=made)


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dicts and lists of dicts as dotted keys; lists of scalars stay lists."""
    if isinstance(value, Mapping):
        pairs = [(str(key), item) for key, item in cast("Mapping[Any, Any]", value).items()]
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in cast("list[Any]", value)):
        pairs = [(str(index), item) for index, item in enumerate(cast("list[Any]", value))]
    else:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in pairs:
        flat |= flatten(item, f"{prefix}.{key}" if prefix else key)
    return flat


def _model_call(flat: Mapping[str, Any]) -> dict[str, Any]:
    reason = flat.get("llm.finish_reason")
    asked = [genai_message(message) for message in _messages(flat, "llm.input_messages.")]
    said = [genai_message(message, reason) for message in _messages(flat, "llm.output_messages.")]
    made: dict[str, Any] = {
        semconv.REQUEST_MODEL: flat.get("llm.model_name", ""),
        semconv.INPUT_MESSAGES: asked,
        semconv.OUTPUT_MESSAGES: said,
        semconv.USAGE_INPUT_TOKENS: flat.get("llm.token_count.prompt"),
        semconv.USAGE_OUTPUT_TOKENS: flat.get("llm.token_count.completion"),
        semconv.RESPONSE_FINISH_REASONS: [reason] if reason else None,
    }
    schemas = [part["tool.json_schema"] for part in _indexed(flat, "llm.tools.") if "tool.json_schema" in part]
    made[semconv.TOOL_DEFINITIONS] = [genai_tool(_parsed(schema)) for schema in schemas] or None
    given = _parsed(flat.get("llm.invocation_parameters") or "{}")
    made |= {ours: given[theirs] for theirs, ours in _PARAMETERS.items() if theirs in given}
    if not said or any(_REDACTED in json.dumps(message) for message in (*asked, *said)):
        made[semconv.EVIDENCE_GAPS] = [NO_CONTENT]
    return {key: value for key, value in made.items() if value is not None}


def _tool_call(flat: Mapping[str, Any], span_name: str) -> dict[str, Any]:
    made = {
        semconv.TOOL_NAME: flat.get("tool.name") or span_name,
        semconv.TOOL_CALL_ID: flat.get("tool_call.id") or flat.get("tool.id"),
        semconv.TOOL_CALL_ARGUMENTS: flat.get("input.value") or flat.get("tool.parameters"),
        semconv.TOOL_CALL_RESULT: flat.get("output.value"),
    }
    return {key: value for key, value in made.items() if value is not None}


def _indexed(flat: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """The attributes under `prefix` by their index, in order."""
    found: dict[int, dict[str, Any]] = {}
    pattern = re.compile(rf"{re.escape(prefix)}(\d+)\.(.+)")
    for key, value in flat.items():
        if match := pattern.fullmatch(key):
            found.setdefault(int(match[1]), {})[match[2]] = value
    return [found[index] for index in sorted(found)]


def _messages(flat: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    return [_chat_message(part) for part in _indexed(flat, prefix)]


def _chat_message(part: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": part.get("message.role", ""), "content": part.get("message.content")}
    texts = [
        item["message_content.text"] for item in _indexed(part, "message.contents.") if "message_content.text" in item
    ]
    if texts and message["content"] is None:
        message["content"] = "".join(texts)
    calls = [
        {
            "id": item.get("tool_call.id"),
            "function": {
                "name": item.get("tool_call.function.name"),
                "arguments": item.get("tool_call.function.arguments", "{}"),
            },
        }
        for item in _indexed(part, "message.tool_calls.")
    ]
    if calls:
        message["tool_calls"] = calls
    if "message.tool_call_id" in part:
        message["tool_call_id"] = part["message.tool_call_id"]
    return message


def _parsed(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    try:
        parsed: Any = json.loads(value)
    except ValueError:
        # A schema or parameter list that was cut off says nothing any more.
        return {}
    return cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}
