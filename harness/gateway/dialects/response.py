"""The response around an answer's items, begun or whole; pure.

Source: OpenAI API reference, "The response object". Called by responses.py and responses_stream.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.gateway.dialects.items import output_items
from harness.gateway.request import ModelAnswer, ModelRequest, Sampled


@dataclass(frozen=True, slots=True)
class Asked:
    """What the answer to a request needs of it."""

    echo: dict[str, Any]
    """Fields that the answer repeats."""
    own_messages: int
    """How many messages at the front are not inherited by what follows."""


def response_id(answer_id: str) -> str:
    """The id of a response, from the engine's id of the answer."""
    return f"resp_{answer_id}"


def response_object(request: ModelRequest, answer: ModelAnswer) -> dict[str, Any]:
    """The answer as a response."""
    (sampled,) = answer.choices
    status, details = _status(sampled)
    return {
        **response_head(request, answer.id, answer.created),
        "status": status,
        "incomplete_details": details,
        "output": output_items(sampled.message, answer.id, status),
        "usage": _usage(answer),
    }


def response_head(request: ModelRequest, answer_id: str, created: int) -> dict[str, Any]:
    """What is known of a response before it has begun."""
    asked: Asked = request.own
    return {
        "id": response_id(answer_id),
        "object": "response",
        "created_at": created,
        "model": request.model,
        "status": "in_progress",
        "incomplete_details": None,
        "output": [],
        "usage": None,
        **asked.echo,
    }


def _status(sampled: Sampled) -> tuple[str, dict[str, str] | None]:
    reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
    reason = reasons.get(sampled.finish_reason)
    return ("completed", None) if reason is None else ("incomplete", {"reason": reason})


def _usage(answer: ModelAnswer) -> dict[str, Any]:
    usage = answer.usage
    prompt, completion = int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", 0))
    read: dict[str, Any] = usage.get("prompt_tokens_details") or {}
    written: dict[str, Any] = usage.get("completion_tokens_details") or {}
    cached, reasoned = int(read.get("cached_tokens") or 0), int(written.get("reasoning_tokens") or 0)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": reasoned},
        "total_tokens": prompt + completion,
    }
