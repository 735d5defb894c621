"""Our spans in OpenInference's words, so that viewers that read those (Arize Phoenix) show messages and tools.

It knows nothing about OTLP or the store. `tracer.py` adds these attributes on export.
Source: Arize-ai/openinference, spec/semantic_conventions.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from traces import semconv
from traces.assemble import input_messages, structured
from traces.contents import dump_json
from traces.messages import chat_messages, chat_tool
from traces.span import Span

_KINDS = {
    semconv.OPERATION_CHAT: "LLM",
    semconv.OPERATION_TEXT_COMPLETION: "LLM",
    semconv.OPERATION_GENERATE_CONTENT: "LLM",
    semconv.OPERATION_EXECUTE_TOOL: "TOOL",
    semconv.OPERATION_INVOKE_AGENT: "AGENT",
}
_PARAMETERS = (semconv.REQUEST_TEMPERATURE, semconv.REQUEST_TOP_P, semconv.REQUEST_MAX_TOKENS, semconv.REQUEST_SEED)


def openinference_attributes(span: Span) -> dict[str, Any]:
    """`openinference.span.kind` and, by kind, the flattened `llm.*` and `tool.*` attributes."""
    attributes = span.attributes
    kind = _KINDS.get(str(attributes.get(semconv.OPERATION_NAME)), "CHAIN")
    made: dict[str, Any] = {"openinference.span.kind": kind}
    if span.rollout_id is not None:
        made["session.id"] = span.rollout_id
    if kind == "LLM":
        made |= dict(_llm(span))
    if kind == "TOOL":
        made["tool.name"] = attributes.get(semconv.TOOL_NAME, "")
        made["tool.parameters"] = made["input.value"] = str(attributes.get(semconv.TOOL_CALL_ARGUMENTS, ""))
        made["input.mime_type"] = "application/json"
        made["output.value"] = str(attributes.get(semconv.TOOL_CALL_RESULT, ""))
    if kind == "AGENT":
        made["agent.name"] = attributes.get(semconv.AGENT_NAME, "")
    return made


def _llm(span: Span) -> Iterator[tuple[str, Any]]:
    attributes = span.attributes
    asked = [chat for message in input_messages(attributes) for chat in chat_messages(message)]
    answers = structured(attributes.get(semconv.OUTPUT_MESSAGES) or [])
    said = [chat for message in answers for chat in chat_messages(message)]
    yield "llm.model_name", attributes.get(semconv.REQUEST_MODEL, "")
    yield "input.value", dump_json({"messages": asked})
    yield "input.mime_type", "application/json"
    yield "output.value", dump_json({"messages": said})
    yield "output.mime_type", "application/json"
    parameters = {name.rpartition(".")[2]: attributes[name] for name in _PARAMETERS if name in attributes}
    yield "llm.invocation_parameters", dump_json(parameters)
    for index, message in enumerate(asked):
        yield from _message(f"llm.input_messages.{index}.message", message)
    for index, message in enumerate(said):
        yield from _message(f"llm.output_messages.{index}.message", message)
    for index, tool in enumerate(structured(attributes.get(semconv.TOOL_DEFINITIONS) or [])):
        yield f"llm.tools.{index}.tool.json_schema", dump_json(chat_tool(tool))
    if span.tokens is not None:
        prompt, completion = len(span.tokens.prompt_ids_T), len(span.tokens.completion_ids_T)
        yield "llm.token_count.prompt", prompt
        yield "llm.token_count.completion", completion
        yield "llm.token_count.total", prompt + completion


def _message(prefix: str, message: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield f"{prefix}.role", str(message.get("role", ""))
    content = message.get("content")
    if content is not None:
        yield f"{prefix}.content", content if isinstance(content, str) else dump_json(content)
    if message.get("tool_call_id"):
        yield f"{prefix}.tool_call_id", str(message["tool_call_id"])
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield f"{prefix}.tool_calls.{index}.tool_call.id", str(call.get("id") or "")
        yield f"{prefix}.tool_calls.{index}.tool_call.function.name", str(call["function"].get("name") or "")
        yield f"{prefix}.tool_calls.{index}.tool_call.function.arguments", str(call["function"].get("arguments") or "")
