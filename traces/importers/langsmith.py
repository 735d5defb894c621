"""LangSmith: runs as `client.list_runs` and the bulk export give them, one JSON object a line or all under `runs`.

It knows nothing about chat messages beyond LangChain's wrapping of them; `calls.py` reads those.
Can't give: token ids, log-probabilities, policy versions; a run that was never updated has no outputs; scores
(feedback) are listed apart and not in runs.
Source: https://docs.smith.langchain.com run data format; langchain-core's serialised messages. Read against langsmith
0.15.
"""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from traces.importers.calls import agent_call, as_object, as_text, model_call, tool_call
from traces.importers.rows import hex_id, read_rows, time_ns
from traces.span import Span, SpanStatus

_ROLES: Final = {"SystemMessage": "system", "HumanMessage": "user", "AIMessage": "assistant", "ToolMessage": "tool"}


def read(path: Path) -> Iterator[Span]:
    """The file's spans in our form; raises ExportError where it is something else."""
    yield from read_rows(path, "LangSmith", _span)


def _span(run: Mapping[str, Any]) -> Span:
    parent = run.get("parent_run_id")
    error = run.get("error")
    return Span(
        trace_id=hex_id(str(run.get("trace_id") or run["id"]), 32),
        span_id=hex_id(str(run["id"]), 16),
        parent_id=hex_id(str(parent), 16) if parent else None,
        name=str(run["name"]),
        start_ns=time_ns(str(run["start_time"])),
        end_ns=time_ns(str(run.get("end_time") or run["start_time"])),
        status=SpanStatus.ERROR if error else SpanStatus.UNSET,
        status_message=str(error or ""),
        attributes=_attributes(run),
        source="langsmith",
    )


def _attributes(run: Mapping[str, Any]) -> dict[str, Any]:
    kind, inputs, outputs = run["run_type"], run.get("inputs"), run.get("outputs")
    if kind == "llm":
        return model_call(_request(run), _answer(outputs))
    if kind == "tool":
        return tool_call(str(run["name"]), _tool_input(inputs), _tool_output(outputs))
    return agent_call(str(run["name"])) if not run.get("parent_run_id") else {"langsmith.run_type": kind}


def _request(run: Mapping[str, Any]) -> dict[str, Any]:
    """Messages, tools and parameters; LangChain files all but the messages under `invocation_params`."""
    extra: Mapping[str, Any] = run.get("extra") or {}
    inputs: Mapping[str, Any] = run.get("inputs") or {}
    messages: list[Any] = inputs.get("messages") or []
    if messages and isinstance(messages[0], list):
        messages = cast("list[Any]", messages[0])  # one list a prompt of a batch
    read = [_chat(message) for message in messages]
    return {**(extra.get("invocation_params") or {}), **inputs, "messages": read}


def _answer(outputs: Any) -> Any:
    held = as_object(outputs)
    if held is None or "generations" not in held:
        return outputs
    choices: list[dict[str, Any]] = []
    for generation in cast("list[list[Mapping[str, Any]]]", held["generations"])[0]:
        info: Mapping[str, Any] = generation.get("generation_info") or {}
        choices.append({"message": _chat(generation.get("message")), "finish_reason": info.get("finish_reason")})
    return {"choices": choices}


def _chat(message: Any) -> Any:
    """A message in chat form; one that is no LangChain message stays as it is."""
    held = as_object(message)
    if held is None or "kwargs" not in held:
        return message
    role = _ROLES.get(str((held.get("id") or [""])[-1]).removesuffix("Chunk"))
    given: Mapping[str, Any] = held["kwargs"]
    chat: dict[str, Any] = {"role": role, "content": given.get("content") or None}
    if given.get("tool_call_id"):
        chat["tool_call_id"] = given["tool_call_id"]
    calls: list[Mapping[str, Any]] = given.get("tool_calls") or []
    if calls:
        chat["tool_calls"] = [
            {"id": c.get("id"), "type": "function", "function": {"name": c["name"], "arguments": as_text(c["args"])}}
            for c in calls
        ]
    return chat


def _tool_input(inputs: Any) -> Any:
    """LangChain files a tool's arguments as Python or JSON text under `input`."""
    held = as_object(inputs)
    if held is None or set(held) != {"input"}:
        return inputs
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError):
            return read(str(held["input"]))
    return inputs


def _tool_output(outputs: Any) -> Any:
    """What a function returned, which the SDK files under `output`; of a LangChain tool message its content."""
    held = as_object(outputs)
    if held is None or set(held) != {"output"}:
        return outputs
    message = as_object(held["output"])
    if message is None:
        return held["output"]
    return message["content"] if message.get("type") == "tool" else _chat(message).get("content", message)
