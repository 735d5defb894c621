"""Spans of one rollout → its trajectory. Pure, and loud about what is missing.

It knows nothing about SQLite, scoring or training; it reads names from `semconv.py` and messages from `messages.py`.
`Store.trajectory` and the importers call it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from traces import semconv
from traces.messages import chat_message, chat_messages, chat_tool
from traces.records import RolloutRecord
from traces.span import Span, SpanStatus
from traces.trajectory import Ending, Score, ToolCall, Trajectory, Turn

_MODEL_OPERATIONS = frozenset(
    {semconv.OPERATION_CHAT, semconv.OPERATION_GENERATE_CONTENT, semconv.OPERATION_TEXT_COMPLETION}
)
_AFTER_SERVER_NAMES = ("__", ".", "/", ":")
_NO_IDS = np.zeros(0, np.int32)
_NO_LOGPROBS = np.zeros(0, np.float32)
_NO_IDS.setflags(write=False)
_NO_LOGPROBS.setflags(write=False)


class AssemblyError(Exception):
    """The spans contradict the record they are assembled for."""


def assemble_trajectory(spans: Iterable[Span], record: RolloutRecord, scores: Sequence[Score]) -> Trajectory:
    """The trajectory of an ended rollout; answered model calls become turns, failed ones do not.

    What is missing is not padded: a turn without ids or log-probabilities stays without, and the trajectory's
    `evidence_gaps` say so. Raises AssemblyError where the rollout has not ended or a span belongs to another rollout.
    """
    if record.ending is None:
        raise AssemblyError(f"rollout {record.rollout_id!r} has not ended; append its ending first")
    # Stable: spans that start in one nanosecond keep the order in which they were appended.
    ordered = sorted(spans, key=lambda span: span.start_ns)
    for span in ordered:
        if span.rollout_id not in (None, record.rollout_id):
            raise AssemblyError(
                f"span {span.span_id} belongs to rollout {span.rollout_id!r}, not to {record.rollout_id!r}"
            )
    by_id = {span.span_id: span for span in ordered}
    answered = _seen_once(span for span in ordered if _is_answered_call(span))
    read = _MessageReader()
    turns = [_turn(index, span, _agent_name(span, by_id), read) for index, span in enumerate(answered)]
    used = _seen_once(span for span in ordered if _is_tool_call(span))
    calls = _join_calls([_tool_call(span) for span in used], turns)
    return Trajectory(
        rollout_id=record.rollout_id,
        group_id=record.group_id,
        run_id=record.run_id,
        task_id=record.task_id,
        kind=record.kind,
        split=record.split,
        policy_version=record.policy_version,
        turns=turns,
        tool_calls=calls,
        ending=Ending(record.ending),
        ending_detail=record.ending_detail,
        answer=record.answer,
        scores=list(scores),
        start_ns=record.start_ns,
        end_ns=record.end_ns,
        metrics=record.metrics,
        evidence_gaps=_evidence_gaps(record, turns),
    )


def _is_answered_call(span: Span) -> bool:
    operation = span.attributes.get(semconv.OPERATION_NAME)
    return operation in _MODEL_OPERATIONS and bool(span.attributes.get(semconv.OUTPUT_MESSAGES))


def _is_tool_call(span: Span) -> bool:
    return span.attributes.get(semconv.OPERATION_NAME) == semconv.OPERATION_EXECUTE_TOOL


def _seen_once(found: Iterable[Span]) -> list[Span]:
    """Each call once: where our gateway saw the calls, the agent's own spans of the same calls add nothing."""
    spans = list(found)
    own = [span for span in spans if span.source == "harness"]
    return own or spans


def _agent_name(span: Span, by_id: Mapping[str, Span]) -> str | None:
    """The name on the span or on the nearest span above it."""
    above: Span | None = span
    # A source may write a ring of parents: no path is longer than there are spans.
    for _ in range(len(by_id) + 1):
        if above is None:
            return None
        if name := above.attributes.get(semconv.AGENT_NAME):
            return str(name)
        above = by_id.get(above.parent_id or "")
    return None


class _MessageReader:
    """GenAI messages and tools in OpenAI chat form; those that several turns share are converted once."""

    def __init__(self) -> None:
        # The object is kept beside its conversion, so that its id is not given to another one.
        self._messages: dict[int, tuple[Any, list[dict[str, Any]]]] = {}
        self._tools: dict[int, tuple[Any, list[dict[str, Any]]]] = {}

    def messages(self, attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
        chat: list[dict[str, Any]] = []
        for message in input_messages(attributes):
            if id(message) not in self._messages:
                self._messages[id(message)] = (message, chat_messages(message))
            chat.extend(self._messages[id(message)][1])
        return chat

    def tools(self, attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
        value: Any = attributes.get(semconv.TOOL_DEFINITIONS, ())
        if id(value) not in self._tools:
            self._tools[id(value)] = (value, [chat_tool(tool) for tool in structured(value)])
        return self._tools[id(value)][1]


def _turn(index: int, span: Span, agent_name: str | None, read: _MessageReader) -> Turn:
    attributes = span.attributes
    tokens = span.tokens
    output = structured(attributes[semconv.OUTPUT_MESSAGES])[0]
    return Turn(
        index=index,
        prompt_ids_T=tokens.prompt_ids_T if tokens is not None else _NO_IDS,
        completion_ids_T=tokens.completion_ids_T if tokens is not None else _NO_IDS,
        logprobs_T=tokens.logprobs_T if tokens is not None else _NO_LOGPROBS,
        policy_version=span.policy_version if span.policy_version is not None else -1,
        model=str(attributes.get(semconv.REQUEST_MODEL) or attributes.get(semconv.RESPONSE_MODEL) or ""),
        finish_reason=_finish_reason(attributes, output),
        input_messages=read.messages(attributes),
        tools=read.tools(attributes),
        output_message=chat_message(output),
        span_id=span.span_id,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        agent_name=agent_name,
        asked_model=str(attributes.get(semconv.ASKED_MODEL) or ""),
        retry_count=int(attributes.get(semconv.RETRY_COUNT) or 0),
    )


def structured(value: Any) -> list[dict[str, Any]]:
    """A structured attribute as lists and dicts, whether it came so or as JSON text."""
    return json.loads(value) if isinstance(value, str) else list(value)


def input_messages(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The request's GenAI messages, system instructions first where the source keeps them apart."""
    messages = structured(attributes.get(semconv.INPUT_MESSAGES) or [])
    instructions = structured(attributes.get(semconv.SYSTEM_INSTRUCTIONS) or [])
    return [{"role": "system", "parts": instructions}, *messages] if instructions else messages


def _finish_reason(attributes: Mapping[str, Any], output: Mapping[str, Any]) -> str:
    reasons = attributes.get(semconv.RESPONSE_FINISH_REASONS)
    if isinstance(reasons, str):
        # agent-framework writes the list as JSON text.
        reasons = json.loads(reasons) if reasons.startswith("[") else [reasons]
    return str(reasons[0]) if reasons else str(output.get("finish_reason") or "")


def _tool_call(span: Span) -> ToolCall:
    attributes = span.attributes
    failed = span.status is SpanStatus.ERROR or semconv.ERROR_TYPE in attributes
    return ToolCall(
        call_id=str(attributes.get(semconv.TOOL_CALL_ID) or span.span_id),
        name=str(attributes.get(semconv.TOOL_NAME) or ""),
        arguments=_text(attributes.get(semconv.TOOL_CALL_ARGUMENTS)),
        result=_text(attributes.get(semconv.TOOL_CALL_RESULT)),
        is_error=failed,
        span_id=span.span_id,
        turn_index=None,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _join_calls(calls: list[ToolCall], turns: Sequence[Turn]) -> list[ToolCall]:
    """Give each tool call the turn that asked for it: by call id, else by name and arguments, newest turn first."""
    asked = [(turn, call) for turn in turns for call in turn.output_message.get("tool_calls") or ()]
    taken: set[tuple[int, str]] = set()
    joined: list[ToolCall] = []
    for call in calls:
        match = next(
            (
                (turn, request)
                for turn, request in reversed(asked)
                if turn.end_ns <= call.end_ns
                and (turn.index, str(request.get("id"))) not in taken
                and _is_same_call(call, request)
            ),
            None,
        )
        if match is None:
            joined.append(call)
            continue
        turn, request = match
        taken.add((turn.index, str(request.get("id"))))
        joined.append(replace(call, turn_index=turn.index, call_id=str(request.get("id") or call.call_id)))
    return joined


def _is_same_call(call: ToolCall, request: Mapping[str, Any]) -> bool:
    if call.call_id != call.span_id:
        return call.call_id == request.get("id")
    function: Mapping[str, Any] = request.get("function") or {}
    asked = str(function.get("name"))
    # Some SDKs write the server's name before a tool's, as in mcp__server__tool.
    named = asked == call.name or asked.endswith(tuple(f"{sign}{call.name}" for sign in _AFTER_SERVER_NAMES))
    return named and _parsed(call.arguments) == _parsed(function.get("arguments") or "{}")


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _evidence_gaps(record: RolloutRecord, turns: Sequence[Turn]) -> tuple[str, ...]:
    gaps = list(record.evidence_gaps)
    if any(not len(turn.prompt_ids_T) or not len(turn.completion_ids_T) for turn in turns):
        gaps.append("no_token_ids")
    if any(len(turn.logprobs_T) != len(turn.completion_ids_T) or not len(turn.logprobs_T) for turn in turns):
        gaps.append("no_logprobs")
    return tuple(dict.fromkeys(gaps))
