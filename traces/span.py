"""The span record that gateways make on the hot path: OpenTelemetry's fields, plus where it belongs and its tokens.

It knows nothing about the OTel SDK, SQLite or what the attributes mean.
The gateways and importers make spans, `store.py` keeps them, `assemble.py` reads them, `tracer.py` exports them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from traces.trajectory import Ids, Logprobs

# SystemRandom reads the kernel for every id; a generator seeded from it once gives unique ids far cheaper.
_RANDOM = random.Random(random.SystemRandom().getrandbits(256))

_TRACEPARENT = re.compile("[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


def new_trace_id() -> str:
    """A W3C trace id: 32 lowercase hex digits, not all zero."""
    return f"{_RANDOM.getrandbits(128) or 1:032x}"


def new_span_id() -> str:
    """A W3C parent id: 16 lowercase hex digits, not all zero."""
    return f"{_RANDOM.getrandbits(64) or 1:016x}"


def parent_within(trace_id: str, traceparent: object) -> str | None:
    """The span that a W3C `traceparent` names, where it is one and of this trace; anything else says nothing."""
    found = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    return found[2] if found is not None and found[1] == trace_id and int(found[2], 16) else None


class SpanKind(StrEnum):
    """OpenTelemetry's span kinds."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"
    PRODUCER = "producer"
    CONSUMER = "consumer"


class SpanStatus(StrEnum):
    """OpenTelemetry's status codes."""

    UNSET = "unset"
    OK = "ok"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened at one moment of a span."""

    name: str
    """Event name, such as `gen_ai.evaluation.result`."""
    time_ns: int
    """Unix time in nanoseconds."""
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON-able values."""


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """What the engine read and sampled in one model call."""

    prompt_ids_T: Ids
    """Whole prompt, int32."""
    completion_ids_T: Ids
    """Sampled ids, int32."""
    logprobs_T: Logprobs
    """float32, parallel to the completion ids; empty where the engine gave none."""

    def __eq__(self, other: object) -> bool:
        """Arrays by content."""
        if not isinstance(other, Tokens):
            return NotImplemented
        return (
            np.array_equal(self.prompt_ids_T, other.prompt_ids_T)
            and np.array_equal(self.completion_ids_T, other.completion_ids_T)
            and np.array_equal(self.logprobs_T, other.logprobs_T)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One finished span."""

    trace_id: str
    """32 hex digits; one trace a rollout, from agent to judge."""
    span_id: str
    """16 hex digits."""
    parent_id: str | None = None
    """Span id of the parent; None at the root."""
    name: str
    """Span name by the conventions in `semconv.py`."""
    kind: SpanKind = SpanKind.INTERNAL
    """OpenTelemetry span kind."""
    start_ns: int
    """Unix time in nanoseconds."""
    end_ns: int
    """Unix time in nanoseconds."""
    status: SpanStatus = SpanStatus.UNSET
    """`error` where the operation failed."""
    status_message: str = ""
    """Why it failed."""
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON-able values by the names in `semconv.py`; structured values (messages, tools) as lists and dicts."""
    events: tuple[SpanEvent, ...] = ()
    """In time order."""
    rollout_id: str | None = None
    """The rollout it belongs to; None for spans that belong to none (yet)."""
    group_id: str | None = None
    """The rollout's group."""
    run_id: str | None = None
    """The rollout's run."""
    policy_version: int | None = None
    """Version of the policy that answered, on model spans."""
    tokens: Tokens | None = None
    """Ids and log-probabilities, on model spans whose engine gave them."""
    source: str = "harness"
    """Who wrote it: `harness`, or the instrumentation scope it was imported from."""
