"""Anthropic Messages: requests read, answers, events and errors written as Anthropic's clients expect them.

It knows nothing about the engine, rollouts or tokens. What blocks mean is blocks.py's.
Source: Anthropic API reference, messages/create, messages/count_tokens, streaming and errors. Called by model.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from harness.gateway.dialects.blocks import answer_blocks, read_messages, read_system, read_tools
from harness.gateway.dialects.bodies import decode_body, encode_messages, pick, picker, response_format
from harness.gateway.failures import Failure
from harness.gateway.record import AnswerRecord
from harness.gateway.replies import ChatChoice
from harness.gateway.request import BadRequest, ModelAnswer, ModelRequest, Sampled

NAME: str = "messages"
"""What spans call this dialect."""

_SAMPLING = picker("temperature top_p top_k")
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    410: "permission_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
}


class _OutputConfig(msgspec.Struct):
    effort: str | None = None
    """How much to reason."""
    format: dict[str, Any] | None = None
    """Schema that the answer must follow."""


class _MessagesBody(msgspec.Struct):
    """The fields that are acted on; others are ignored."""

    messages: list[dict[str, Any]]
    """At least one."""
    max_tokens: int | None = None
    """Longest answer; required but for counting."""
    model: str = ""
    """Any name: the rollout decides."""
    system: str | list[dict[str, Any]] | None = None
    """System prompt."""
    tools: list[dict[str, Any]] | None = None
    """Client tools; server tools are refused."""
    tool_choice: dict[str, Any] | None = None
    """Whether and which tools must be called."""
    stop_sequences: list[str] | None = None
    """Stop strings."""
    stream: bool | None = None
    """Answer in events."""
    thinking: dict[str, Any] | None = None
    """Only `disabled` is acted on: how much is thought is the policy's."""
    output_config: _OutputConfig | None = None
    """Effort and format."""
    output_format: dict[str, Any] | None = None
    """Older name of `output_config.format`."""
    mcp_servers: list[Any] | None = None
    """Tools that Anthropic's servers would call; refused."""
    container: Any = None
    """A machine at Anthropic; refused."""


_BODY = msgspec.json.Decoder(_MessagesBody)


def parse(content: bytes, record: AnswerRecord) -> ModelRequest:
    """A request; raises BadRequest."""
    body = decode_body(_BODY, content)
    if body.max_tokens is None:
        raise BadRequest("max_tokens is missing: say how long the answer may be", "max_tokens")
    return _request(body, content, record)


def parse_count(content: bytes, record: AnswerRecord) -> ModelRequest:
    """A request whose prompt is to be counted; raises BadRequest."""
    return _request(decode_body(_BODY, content), content, record)


def _request(body: _MessagesBody, content: bytes, record: AnswerRecord) -> ModelRequest:
    if not body.messages:
        raise BadRequest("messages is empty: give at least one message", "messages")
    if body.mcp_servers or body.container:
        name = "mcp_servers" if body.mcp_servers else "container"
        raise BadRequest(f"{name} can't be served: tools are called by the agent, at its MCP_URL", name)
    messages = read_system(body.system) + read_messages(body.messages, record.arguments)
    if messages[-1]["role"] == "assistant":
        raise BadRequest("the last message is the assistant's: an answer can't be prefilled here", "messages")
    tools = read_tools(body.tools or [])
    return ModelRequest(
        messages=encode_messages(messages),
        tools=msgspec.Raw(msgspec.json.encode(tools) if tools else b"null"),
        model=body.model,
        stream=bool(body.stream),
        sampling=pick(_SAMPLING, content),
        constraints=_constraints(body),
        max_tokens=body.max_tokens,
    )


def _constraints(body: _MessagesBody) -> dict[str, Any]:
    constraints: dict[str, Any] = {}
    if body.stop_sequences:
        constraints["stop"] = body.stop_sequences
    if body.tool_choice is not None and body.tools:
        constraints |= _tool_choice(body.tool_choice)
    config = body.output_config or _OutputConfig()
    if config.effort is not None:
        constraints["reasoning_effort"] = config.effort
    if body.thinking is not None and body.thinking.get("type") == "disabled":
        constraints["chat_template_kwargs"] = {"enable_thinking": False}
    wanted = config.format or body.output_format
    if wanted is not None:
        if wanted.get("type") != "json_schema":
            raise BadRequest(f"output format {wanted.get('type')!r} can't be served: use json_schema", "output_config")
        constraints["response_format"] = response_format("answer", wanted.get("schema"), True)
    return constraints


def _tool_choice(choice: dict[str, Any]) -> dict[str, Any]:
    named = {"type": "function", "function": {"name": choice.get("name")}}
    by_type: dict[str, Any] = {"auto": "auto", "any": "required", "none": "none", "tool": named}
    kind = str(choice.get("type"))
    if kind not in by_type:
        raise BadRequest(f"tool_choice.type is {kind!r}: use auto, any, tool or none", "tool_choice")
    parallel = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    return {"tool_choice": by_type[kind], **parallel}


def remember(record: AnswerRecord, request: ModelRequest, answer: ModelAnswer) -> None:
    """Nothing of its own: clients send their whole history, and the arguments are kept for every dialect."""


def write_answer(request: ModelRequest, answer: ModelAnswer) -> bytes:
    """The whole answer."""
    (sampled,) = answer.choices
    return msgspec.json.encode(
        {
            **_head(answer.id, request),
            "content": answer_blocks(sampled.message, answer.id),
            **_end(sampled),
            "usage": _usage(answer),
        }
    )


def _head(answer_id: str, request: ModelRequest) -> dict[str, Any]:
    return {"id": f"msg_{answer_id}", "type": "message", "role": "assistant", "model": request.model}


def _end(sampled: Sampled) -> dict[str, Any]:
    reason = _STOP_REASONS.get(sampled.finish_reason, "end_turn")
    if sampled.stop_text is not None and reason == "end_turn":
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": sampled.stop_text if reason == "stop_sequence" else None}


def _usage(answer: ModelAnswer) -> dict[str, Any]:
    """Anthropic counts cached tokens apart from input tokens."""
    details: dict[str, Any] = answer.usage.get("prompt_tokens_details") or {}
    cached = int(details.get("cached_tokens") or 0)
    return {
        "input_tokens": int(answer.usage.get("prompt_tokens", 0)) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": int(answer.usage.get("completion_tokens", 0)),
    }


def write_count(tokens: int) -> bytes:
    """The length of a prompt."""
    return msgspec.json.encode({"input_tokens": tokens})


def write_models(name: str, created: int, *, listed: bool) -> bytes:
    """The one model there is, or the list of it."""
    born = datetime.fromtimestamp(created, UTC).isoformat()
    model = {"id": name, "type": "model", "display_name": name, "created_at": born}
    listing = {"data": [model], "first_id": name, "last_id": name, "has_more": False}
    return msgspec.json.encode(listing if listed else model)


def write_error(failure: Failure) -> bytes:
    """An error in Anthropic's shape; its type goes with the status."""
    kind = _ERROR_TYPES.get(failure.status, "api_error")
    message = failure.message if failure.param is None else f"{failure.param}: {failure.message}"
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}, "request_id": None})


def stream_writer(request: ModelRequest) -> MessagesStreamWriter:
    """For one streamed answer."""
    return MessagesStreamWriter(request)


class MessagesStreamWriter:
    """Writes Anthropic's events: text and thinking as they come, tool calls whole, once they are on disk."""

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
        self._id = ""
        self._open: str | None = None
        self._count = 0

    def begin(self, answer_id: str, created: int, prompt_tokens: int) -> Iterable[bytes]:
        """The message without content."""
        self._id = answer_id
        start: dict[str, Any] = {
            **_head(answer_id, self._request),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": prompt_tokens, "output_tokens": 0},
        }
        yield _event("message_start", message=start)

    def delta(self, choice: ChatChoice) -> Iterable[bytes]:
        """New thinking and new text."""
        delta = choice.delta or {}
        thinking = delta.get("reasoning") or delta.get("reasoning_content")
        if thinking:
            yield from self._switch("thinking")
            yield self._delta({"type": "thinking_delta", "thinking": thinking})
        if delta.get("content"):
            yield from self._switch("text")
            yield self._delta({"type": "text_delta", "text": delta["content"]})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._count - 1, delta=delta)

    def _switch(self, kind: str | None) -> Iterable[bytes]:
        """Have a block of this kind open, or none."""
        if kind == self._open:
            return
        if self._open is not None:
            if self._open == "thinking":
                yield self._delta({"type": "signature_delta", "signature": self._id})
            yield _event("content_block_stop", index=self._count - 1)
        self._open = kind
        if kind is not None:
            empty = {"type": "text", "text": ""} if kind == "text" else {"type": kind, kind: "", "signature": ""}
            yield self._start(empty)

    def _start(self, block: dict[str, Any]) -> bytes:
        self._count += 1
        return _event("content_block_start", index=self._count - 1, content_block=block)

    def finish(self, answer: ModelAnswer) -> Iterable[bytes]:
        """The tool calls, the stop reason, token counts and the end."""
        yield from self._switch(None)
        (sampled,) = answer.choices
        for block in answer_blocks(sampled.message, self._id):
            if block["type"] == "tool_use":
                yield self._start({**block, "input": {}})
                arguments = msgspec.json.encode(block["input"]).decode()
                yield self._delta({"type": "input_json_delta", "partial_json": arguments})
                yield _event("content_block_stop", index=self._count - 1)
        yield _event("message_delta", delta=_end(sampled), usage=_usage(answer))
        yield _event("message_stop")

    def fail(self, failure: Failure) -> Iterable[bytes]:
        """The error as an event, which the official clients raise."""
        return (b"event: error\ndata: " + write_error(failure) + b"\n\n",)


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode({"type": kind, **fields}) + b"\n\n"
