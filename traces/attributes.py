"""A span's place and tokens as attributes: the form they have outside the store, in OTLP and in files.

It knows nothing about the OTel SDK, protobuf or SQLite.
`tracer.py` exports with it; `otlp.py` and the tracer's exporter read what comes in with it.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from traces import semconv
from traces.build import Place
from traces.contents import dump_json
from traces.span import Span, Tokens

_OURS = "harness."
_IDS = np.dtype("<i4")
_LOGPROBS = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class Belonging:
    """What the store keeps in columns, read out of attributes."""

    attributes: dict[str, Any]
    """The attributes that are left."""
    rollout_id: str | None
    """`harness.rollout.id`."""
    group_id: str | None
    """`harness.group.id`."""
    run_id: str | None
    """`harness.run.id`."""
    policy_version: int | None
    """`harness.policy.version`."""
    tokens: Tokens | None
    """`harness.tokens.*`; None where any of them is absent or doesn't decode."""


def outside_attributes(span: Span) -> dict[str, Any]:
    """The span's attributes with its place and tokens, structured values as JSON text, as OTLP backends expect."""
    named: dict[str, Any] = {
        semconv.ROLLOUT_ID: span.rollout_id,
        semconv.CONVERSATION_ID: span.rollout_id,
        semconv.GROUP_ID: span.group_id,
        semconv.RUN_ID: span.run_id,
        semconv.POLICY_VERSION: span.policy_version,
    }
    if span.tokens is not None:
        named[semconv.PROMPT_IDS] = _to_text(span.tokens.prompt_ids_T, _IDS)
        named[semconv.COMPLETION_IDS] = _to_text(span.tokens.completion_ids_T, _IDS)
        named[semconv.LOGPROBS] = _to_text(span.tokens.logprobs_T, _LOGPROBS)
    given = {key: _flat(value) for key, value in span.attributes.items()}
    return {key: value for key, value in {**named, **given}.items() if value is not None}


def _flat(value: Any) -> Any:
    """Scalars and lists of one kind of scalar as they are; everything else as JSON text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        items = list(cast("list[Any]", value))
        if any(all(type(item) is kind for item in items) for kind in (str, bool, int, float)):
            return items
    return dump_json(value)


def read_belonging(attributes: Mapping[str, Any]) -> Belonging:
    """Take place and tokens out of attributes that came from outside; content lists that came as JSON are parsed."""
    left = dict(attributes)
    rollout_id = left.pop(semconv.ROLLOUT_ID, None)
    if rollout_id is not None and left.get(semconv.CONVERSATION_ID) == rollout_id:
        del left[semconv.CONVERSATION_ID]
    texts = [left.pop(name, None) for name in (semconv.PROMPT_IDS, semconv.COMPLETION_IDS, semconv.LOGPROBS)]
    for name in (semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES, semconv.TOOL_DEFINITIONS):
        if isinstance(left.get(name), str):
            left[name] = _parsed(left[name])
    version = left.pop(semconv.POLICY_VERSION, None)
    return Belonging(
        left,
        rollout_id,
        left.pop(semconv.GROUP_ID, None),
        left.pop(semconv.RUN_ID, None),
        version if isinstance(version, int) else None,
        _read_tokens(texts),
    )


def as_foreign(span: Span, place: Place) -> Span:
    """A span that an agent sent, as part of the rollout whose key it used.

    What it claims in `harness.*` is dropped: only the engine gives tokens, and only the key says which rollout (law 1).
    """
    claimed = [key for key in span.attributes if key.startswith(_OURS)]
    return replace(
        span,
        attributes={key: value for key, value in span.attributes.items() if key not in claimed},
        rollout_id=place.rollout_id,
        group_id=place.group_id,
        run_id=place.run_id,
        policy_version=None,
        tokens=None,
        source=f"otlp {span.source}",
    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        # Truncated by an exporter's length limit: kept as it came, for the importer to name as a gap.
        return text


def _to_text(array: NDArray[Any], dtype: np.dtype[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype=dtype).tobytes()).decode("ascii")


def _read_tokens(texts: list[Any]) -> Tokens | None:
    if not all(isinstance(text, str) for text in texts):
        return None
    try:
        prompt, completion, logprobs = (base64.b64decode(text, validate=True) for text in texts)
        return Tokens(np.frombuffer(prompt, _IDS), np.frombuffer(completion, _IDS), np.frombuffer(logprobs, _LOGPROBS))
    except (binascii.Error, ValueError):
        # Half an array must not become a training row: without tokens the turn is left out and counted.
        return None
