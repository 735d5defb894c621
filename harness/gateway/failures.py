"""What a client is told when its call fails: a status that its SDK won't retry in vain, and words.

It knows no dialect's error shape. Called by model.py and stream.py, whose dialects write it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from harness.gateway.turns import LimitHit
from harness.gateway.upstream import EngineFailure, EngineRefusal

FailureKind = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "api_error",
    "rollout_limit",
]


@dataclass(frozen=True, slots=True)
class Failure:
    """An error answer."""

    status: int
    """HTTP status."""
    message: str
    """What was wrong, in words."""
    kind: FailureKind
    """OpenAI's error type, or `rollout_limit`."""
    code: str | None = None
    """Machine-readable detail: the limit's name, the engine's error type."""
    param: str | None = None
    """Field of the request that is at fault."""


def describe_failure(error: BaseException) -> Failure:
    """The failure that a client is told of."""
    if isinstance(error, LimitHit):
        return Failure(403, str(error), "rollout_limit", error.limit)
    if isinstance(error, EngineRefusal) and error.status != 404:
        return Failure(error.status, str(error), "invalid_request_error", error.kind or None)
    if isinstance(error, EngineFailure | EngineRefusal):
        return Failure(503, f"the engine failed: {error}", "api_error", "engine_error")
    if isinstance(error, asyncio.CancelledError):
        return Failure(410, "this rollout has ended", "permission_error", "sealed")
    return Failure(500, f"the gateway failed: {type(error).__name__}", "api_error", "gateway_error")
