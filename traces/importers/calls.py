"""Recorded calls of chat clients and tools, as sources keep them (request and answer as JSON), in GenAI attributes.

It knows nothing about files or sources. LangSmith, Langfuse and Weave keep what OpenAI's client was given and gave.
Can't read: messages in other clients' forms; they leave `unread_content` as a gap.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from traces import semconv
from traces.importers.genai import NO_CONTENT
from traces.messages import genai_message, genai_tool

UNREAD = "unread_content"
_PARAMETERS = {
    "temperature": semconv.REQUEST_TEMPERATURE,
    "top_p": semconv.REQUEST_TOP_P,
    "max_tokens": semconv.REQUEST_MAX_TOKENS,
    "max_completion_tokens": semconv.REQUEST_MAX_TOKENS,
    "seed": semconv.REQUEST_SEED,
}


def model_call(request: Any, answer: Any, model: str = "") -> dict[str, Any]:
    """GenAI attributes of one model call; `request` holds messages, tools and parameters, or is the messages."""
    given = as_object(request) or {"messages": request}
    asked, asked_whole = _messages(given.get("messages"))
    said, reasons, said_whole = _answers(answer)
    made: dict[str, Any] = {
        semconv.OPERATION_NAME: semconv.OPERATION_CHAT,
        semconv.REQUEST_MODEL: model or given.get("model") or "",
        semconv.INPUT_MESSAGES: [genai_message(message) for message in asked],
        semconv.OUTPUT_MESSAGES: [genai_message(m, r or None) for m, r in zip(said, reasons, strict=True)],
        semconv.TOOL_DEFINITIONS: [genai_tool(tool) for tool in given.get("tools") or ()] or None,
        semconv.RESPONSE_FINISH_REASONS: [reason for reason in reasons if reason] or None,
    }
    made |= {ours: given[theirs] for theirs, ours in _PARAMETERS.items() if isinstance(given.get(theirs), int | float)}
    gaps = ([] if said else [NO_CONTENT]) + ([] if asked_whole and said_whole else [UNREAD])
    made[semconv.EVIDENCE_GAPS] = gaps or None
    return {key: value for key, value in made.items() if value is not None}


def tool_call(name: str, arguments: Any, result: Any) -> dict[str, Any]:
    """GenAI attributes of one tool call."""
    return {
        semconv.OPERATION_NAME: semconv.OPERATION_EXECUTE_TOOL,
        semconv.TOOL_NAME: name,
        semconv.TOOL_CALL_ARGUMENTS: as_text(arguments if arguments is not None else {}),
        semconv.TOOL_CALL_RESULT: as_text(result),
    }


def agent_call(name: str) -> dict[str, Any]:
    """GenAI attributes of the span around all of it."""
    return {semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT, semconv.AGENT_NAME: name}


def asked_tools(answers: Iterable[Any]) -> set[str]:
    """Names of the tools that these model answers call: a source that doesn't mark tools shows them by name."""
    names: set[str] = set()
    for message in (message for answer in answers for message in _answers(answer)[0]):
        calls: list[Mapping[str, Any]] = message.get("tool_calls") or []
        functions: list[dict[str, Any]] = [call.get("function") or {} for call in calls]
        names |= {str(function.get("name")) for function in functions}
    return names


def as_object(value: Any) -> Mapping[str, Any] | None:
    """A JSON object as such; None for anything else."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


def as_text(value: Any) -> str:
    """Text as it is, nothing as nothing, everything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _messages(value: Any) -> tuple[list[dict[str, Any]], bool]:
    """Messages in chat form, and whether all could be read."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}], True
    items = cast("list[Any]", value) if isinstance(value, list) else []
    read = [item for item in items if _is_message(item)]
    return read, bool(read) and len(read) == len(items)


def _answers(value: Any) -> tuple[list[dict[str, Any]], list[str], bool]:
    """Assistant messages with their finish reasons, and whether all could be read."""
    if value is None:
        return [], [], True
    if isinstance(value, str):
        return [{"role": "assistant", "content": value}], [""], True
    if isinstance(value, Mapping):
        held = cast("Mapping[str, Any]", value)
        if isinstance(held.get("choices"), list):
            choices = [choice for choice in held["choices"] if _is_message(choice.get("message"))]
            read = [dict(choice["message"]) for choice in choices]
            return read, [str(choice.get("finish_reason") or "") for choice in choices], bool(read)
        value = [held]
    read, whole = _messages(value)
    return read, [""] * len(read), whole


def _is_message(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    message = cast("Mapping[str, Any]", value)
    content = message.get("content")
    said = content is None or isinstance(content, str)
    parts = isinstance(content, list) and all(isinstance(part, Mapping) for part in cast("list[Any]", content))
    return isinstance(message.get("role"), str) and (said or parts)
