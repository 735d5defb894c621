"""Spans of the five kinds we make ourselves, by the current conventions, from plain values.

It knows nothing about stores, HTTP or the OTel SDK.
The model gateway calls `chat_span`, the tool gateway `tool_span`, the rollout `agent_span`, `user_span` and
`score_event`; `assemble.py` is the inverse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from traces import semconv
from traces.messages import genai_message, genai_tool
from traces.span import Span, SpanEvent, SpanKind, SpanStatus, Tokens, new_span_id
from traces.trajectory import Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a span belongs."""

    trace_id: str
    """The rollout's trace."""
    parent_id: str | None = None
    """Span it hangs under."""
    rollout_id: str | None = None
    """The rollout."""
    group_id: str | None = None
    """The rollout's group."""
    run_id: str | None = None
    """The rollout's run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """When an operation ran and whether it failed."""

    start_ns: int
    """Unix time in nanoseconds."""
    end_ns: int
    """Unix time in nanoseconds."""
    error_type: str | None = None
    """Low-cardinality name of the failure; None after success."""
    error_message: str = ""
    """The failure in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One chat request and its answer, in OpenAI chat form."""

    model: str
    """Name the engine served."""
    messages: Sequence[Mapping[str, Any]]
    """The request's messages."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The request's tool definitions."""
    output: Mapping[str, Any] | None = None
    """The assistant message; None where the call failed."""
    finish_reason: str = ""
    """Why sampling stopped."""
    tokens: Tokens | None = None
    """Ids and log-probabilities; None where the engine gave none."""
    policy_version: int | None = None
    """Version that sampled."""
    request: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More attributes: sampling parameters and `harness.*`, by their names in `semconv.py`."""
    span_id: str | None = None
    """Id the caller has already given out; None makes one."""


def chat_span(place: Place, outcome: Outcome, call: ModelCall) -> Span:
    """`chat {model}`, kind CLIENT."""
    attributes: dict[str, Any] = {
        semconv.OPERATION_NAME: semconv.OPERATION_CHAT,
        semconv.REQUEST_MODEL: call.model,
        semconv.INPUT_MESSAGES: [genai_message(message) for message in call.messages],
    }
    if call.tools:
        attributes[semconv.TOOL_DEFINITIONS] = [genai_tool(tool) for tool in call.tools]
    if call.output is not None:
        attributes[semconv.OUTPUT_MESSAGES] = [genai_message(call.output, call.finish_reason)]
        attributes[semconv.RESPONSE_FINISH_REASONS] = [call.finish_reason]
    if call.tokens is not None:
        attributes[semconv.USAGE_INPUT_TOKENS] = len(call.tokens.prompt_ids_T)
        attributes[semconv.USAGE_OUTPUT_TOKENS] = len(call.tokens.completion_ids_T)
    return _span(
        place,
        outcome,
        semconv.chat_span_name(call.model),
        attributes | dict(call.request),
        span_id=call.span_id,
        kind=SpanKind.CLIENT,
        policy_version=call.policy_version,
        tokens=call.tokens,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """One MCP tool call and its result."""

    name: str
    """Tool name as the agent used it."""
    arguments: Mapping[str, Any] | str
    """Arguments, or their JSON text."""
    result: str
    """What the agent got back, as text."""
    is_error: bool = False
    """The tool itself reported an error (not: it could not be reached)."""
    call_id: str | None = None
    """Id of the model's tool call where it is known."""
    request: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More attributes: `mcp.*`, `harness.*`."""
    span_id: str | None = None
    """Id the caller has already given out; None makes one."""


def tool_span(place: Place, outcome: Outcome, use: ToolUse) -> Span:
    """`tools/call {name}`, kind CLIENT; a tool's own error is `error.type=tool_error`."""
    arguments = use.arguments if isinstance(use.arguments, str) else json.dumps(use.arguments)
    attributes: dict[str, Any] = {
        semconv.OPERATION_NAME: semconv.OPERATION_EXECUTE_TOOL,
        semconv.MCP_METHOD_NAME: semconv.MCP_METHOD_TOOLS_CALL,
        semconv.TOOL_NAME: use.name,
        semconv.TOOL_CALL_ARGUMENTS: arguments,
        semconv.TOOL_CALL_RESULT: use.result,
    }
    if use.call_id is not None:
        attributes[semconv.TOOL_CALL_ID] = use.call_id
    if use.is_error:
        attributes[semconv.ERROR_TYPE] = semconv.ERROR_TYPE_TOOL
    name = semconv.mcp_span_name(semconv.MCP_METHOD_TOOLS_CALL, use.name)
    return _span(place, outcome, name, attributes | dict(use.request), span_id=use.span_id, kind=SpanKind.CLIENT)


def agent_span(
    place: Place, outcome: Outcome, agent: str, attributes: Mapping[str, Any], span_id: str | None = None
) -> Span:
    """`invoke_agent {agent}`: the root of a rollout; give `span_id` where children were made under it already."""
    named = {semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT, semconv.AGENT_NAME: agent}
    return _span(place, outcome, semconv.agent_span_name(agent), named | dict(attributes), span_id=span_id)


def user_span(place: Place, outcome: Outcome, heard: str, said: str) -> Span:
    """`user`: one message of the agent to its simulated user, and the answer."""
    return _span(place, outcome, "user", {semconv.USER_HEARD: heard, semconv.USER_SAID: said})


def score_event(score: Score, time_ns: int) -> SpanEvent:
    """`gen_ai.evaluation.result` for one score."""
    attributes: dict[str, Any] = {
        semconv.EVALUATION_NAME: score.name,
        semconv.EVALUATION_SCORE: score.value,
        semconv.EVALUATION_EXPLANATION: score.explanation,
        semconv.SCORER_VERSION: score.scorer_version,
    }
    attributes |= {f"{semconv.SCORE_COMPONENTS}.{name}": value for name, value in score.components.items()}
    return SpanEvent(semconv.EVALUATION_EVENT, time_ns, attributes)


def _span(
    place: Place,
    outcome: Outcome,
    name: str,
    attributes: Mapping[str, Any],
    *,
    span_id: str | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    policy_version: int | None = None,
    tokens: Tokens | None = None,
) -> Span:
    if outcome.error_type is not None:
        attributes = {**attributes, semconv.ERROR_TYPE: outcome.error_type}
    return Span(
        trace_id=place.trace_id,
        span_id=span_id or new_span_id(),
        parent_id=place.parent_id,
        name=name,
        kind=kind,
        start_ns=outcome.start_ns,
        end_ns=outcome.end_ns,
        status=SpanStatus.ERROR if outcome.error_type is not None else SpanStatus.UNSET,
        status_message=outcome.error_message,
        attributes=attributes,
        rollout_id=place.rollout_id,
        group_id=place.group_id,
        run_id=place.run_id,
        policy_version=policy_version,
        tokens=tokens,
    )
