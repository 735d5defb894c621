"""Spans of model calls: one an answer, with request, answer, ids and what the gateway did; one a failed call.

It knows nothing about HTTP or the engine; the span's form is traces/build.py's. Called by model.py and stream.py.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from harness.gateway.keys import LiveRollout
from harness.gateway.request import Sampled
from harness.gateway.transcript import Reading
from traces import semconv
from traces.build import ModelCall, Outcome, Place, chat_span
from traces.node import Fork
from traces.span import Span, parent_within

_SAMPLING_NAMES = {
    "temperature": semconv.REQUEST_TEMPERATURE,
    "top_p": semconv.REQUEST_TOP_P,
    "top_k": semconv.REQUEST_TOP_K,
    "max_tokens": semconv.REQUEST_MAX_TOKENS,
    "seed": semconv.REQUEST_SEED,
    "stop": semconv.REQUEST_STOP_SEQUENCES,
}


@dataclass(frozen=True, slots=True)
class CallRecord:
    """What is known of a model call when it begins."""

    rollout: LiveRollout
    """Whose call it is."""
    dialect: str
    """What the client speaks."""
    traceparent: str = ""
    """The client's trace context, empty where it is not instrumented."""
    retry_count: int = 0
    """How often the client says it sent the request before."""
    stream: bool = False
    """The client wants events."""
    agent_name: str = ""
    """Which of several agents asks, where the client says so."""
    asked_model: str = ""
    """Model name that the client asks for; the rollout's policy answers whatever it is."""
    start_ns: int = field(default_factory=time.time_ns)
    """Unix time in nanoseconds."""

    def answered(self, reading: Reading, sampled: Sampled, how: str, body: dict[str, Any], fork: Fork | None) -> Span:
        """The span of one answer; `body` is what the engine was asked."""
        attributes = {**self._attributes(reading, body), semconv.CONTINUATION: how}
        if fork is not None:
            attributes[semconv.FORK_CAUSE] = fork.cause.value
            attributes[semconv.FORK_TOKEN_INDEX] = fork.token_index
            attributes[semconv.DRIFT_TOKENS] = fork.drift_tokens
            if fork.message_index is not None:
                attributes[semconv.FORK_MESSAGE_INDEX] = fork.message_index
        call = ModelCall(
            model=self.rollout.model,
            messages=(),
            output=sampled.message,
            finish_reason=sampled.finish_reason,
            tokens=sampled.tokens,
            policy_version=self.rollout.policy_version,
            request=attributes,
        )
        return chat_span(self._place(), Outcome(start_ns=self.start_ns, end_ns=time.time_ns()), call)

    def failed(self, reading: Reading | None, error_type: str, message: str) -> Span:
        """The span of a call that got no answer; `reading` is None where it could not be read."""
        outcome = Outcome(
            start_ns=self.start_ns, end_ns=time.time_ns(), error_type=error_type, error_message=message[:1000]
        )
        # Not on answers: a repeat that finds an answer shares it, so that a sampled answer never supersedes another.
        retries = {semconv.RETRY_COUNT: self.retry_count} if self.retry_count else {}
        call = ModelCall(
            model=self.rollout.model,
            messages=(),
            policy_version=self.rollout.policy_version,
            request={**self._attributes(reading, {}), **retries},
        )
        return chat_span(self._place(), outcome, call)

    def _attributes(self, reading: Reading | None, body: dict[str, Any]) -> dict[str, Any]:
        attributes: dict[str, Any] = {semconv.DIALECT: self.dialect}
        if reading is not None:
            # In the spans' form already, worked out once per message.
            attributes[semconv.INPUT_MESSAGES] = [known.span_form for known in reading.messages]
            if reading.tools.span_form:
                attributes[semconv.TOOL_DEFINITIONS] = reading.tools.span_form
        attributes |= {key: body[name] for name, key in _SAMPLING_NAMES.items() if name in body}
        if body.get("n", 1) > 1:
            attributes[semconv.REQUEST_CHOICE_COUNT] = body["n"]
        if self.stream:
            attributes[semconv.REQUEST_STREAM] = True
        if self.asked_model:
            attributes[semconv.ASKED_MODEL] = self.asked_model
        if self.agent_name:
            attributes[semconv.AGENT_NAME] = self.agent_name
        if self.rollout.limit_hit is not None:
            attributes[semconv.LIMIT_HIT] = self.rollout.limit_hit
        return attributes

    def _place(self) -> Place:
        rollout = self.rollout
        return Place(
            trace_id=rollout.trace_id,
            parent_id=parent_within(rollout.trace_id, self.traceparent) or rollout.parent_span_id,
            rollout_id=rollout.rollout_id,
            group_id=rollout.group_id,
            run_id=rollout.run_id,
        )
