"""OpenAI chat completions: requests read, answers, chunks and errors written as the official clients expect them.

It knows nothing about the engine, rollouts or tokens beyond passing them on.
Source: OpenAI API reference, chat/create and chat/streaming; vLLM's additions are marked. Called by model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from harness.gateway.dialects import chunks
from harness.gateway.dialects.bodies import decode_body, pick, picker
from harness.gateway.dialects.chunks import ChunkWriter, wanted_choices, write_choice
from harness.gateway.record import AnswerRecord
from harness.gateway.request import BadRequest, ModelAnswer, ModelRequest

NAME: str = "chat"
"""What spans call this dialect."""


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False
    """A last chunk with token counts."""


class _ChatBody(msgspec.Struct):
    """The fields that are acted on; others are ignored."""

    messages: list[msgspec.Raw]
    """At least one."""
    model: str = ""
    """Any name: the rollout decides."""
    tools: msgspec.Raw = msgspec.Raw(b"null")
    """Function tools."""
    n: int | None = None
    """Answers wanted."""
    stream: bool | None = None
    """Answer in events."""
    stream_options: _StreamOptions | None = None
    """Goes with `stream`."""
    max_tokens: int | None = None
    """Older name of the next."""
    max_completion_tokens: int | None = None
    """Longest answer."""
    logprobs: bool | None = None
    """Log-probabilities wanted."""
    top_logprobs: int | None = None
    """Alternatives per token."""
    return_token_ids: bool | None = None
    """vLLM's: ids wanted."""
    modalities: list[str] | None = None
    """Only text can be served."""
    functions: list[Any] | None = None
    """Superseded by tools in 2023; refused."""


_BODY = msgspec.json.Decoder(_ChatBody)
# Everything that shapes the distribution: dropped where the rollout brings its own.
_SAMPLING = picker(
    "temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty seed logit_bias min_tokens"
    " bad_words allowed_token_ids"
)
# What shapes the answer otherwise: kept as it is.
_CONSTRAINTS = picker(
    "stop stop_token_ids tool_choice parallel_tool_calls response_format structured_outputs chat_template_kwargs"
    " reasoning_effort"
)


def parse(content: bytes, record: AnswerRecord) -> ModelRequest:
    """A request, its messages not yet looked into; raises BadRequest."""
    body = decode_body(_BODY, content)
    _check(body)
    return ModelRequest(
        messages=body.messages,
        tools=body.tools,
        model=body.model,
        n=wanted_choices(body.n),
        stream=bool(body.stream),
        sampling=pick(_SAMPLING, content),
        constraints=pick(_CONSTRAINTS, content),
        max_tokens=body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens,
        wants_logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
        wants_ids=bool(body.return_token_ids),
        wants_usage=body.stream_options is not None and body.stream_options.include_usage,
    )


def _check(body: _ChatBody) -> None:
    if not body.messages:
        raise BadRequest("messages is empty: give at least one message", "messages")
    if body.functions is not None:
        raise BadRequest("functions is superseded by tools: send tools", "functions")
    if body.modalities and body.modalities != ["text"]:
        raise BadRequest(f"modalities {body.modalities} can't be served: only text", "modalities")


def remember(record: AnswerRecord, request: ModelRequest, answer: ModelAnswer) -> None:
    """Nothing: chat's clients send their whole history, arguments as they got them."""


def write_answer(request: ModelRequest, answer: ModelAnswer) -> bytes:
    """The whole answer."""
    body: dict[str, Any] = {
        "id": answer.id,
        "object": "chat.completion",
        "created": answer.created,
        "model": request.model,
        "choices": [
            write_choice(request, sampled, {"message": _with_reasoning_content(sampled.message)})
            for sampled in answer.choices
        ],
        "usage": answer.usage,
    }
    if request.wants_ids and answer.choices[0].tokens is not None:
        body["prompt_token_ids"] = answer.choices[0].tokens.prompt_ids_T.tolist()
    return msgspec.json.encode(body)


def write_models(name: str, created: int, *, listed: bool) -> bytes:
    """The one model there is, or the list of it."""
    model = {"id": name, "object": "model", "created": created, "owned_by": "harness"}
    return msgspec.json.encode({"object": "list", "data": [model]} if listed else model)


write_error = chunks.write_error


def stream_writer(request: ModelRequest) -> ChatStreamWriter:
    """For one streamed answer."""
    return ChatStreamWriter(request)


class ChatStreamWriter(ChunkWriter):
    """Writes `chat.completion.chunk` events; the engine's first delta carries the role."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__(request, "chat.completion.chunk")

    def said(self, delta: Mapping[str, Any]) -> dict[str, Any]:
        """The delta, without what the engine left empty."""
        return {"delta": _with_reasoning_content({name: value for name, value in delta.items() if value is not None})}


def _with_reasoning_content(message: dict[str, Any]) -> dict[str, Any]:
    """vLLM says `reasoning`; many SDKs still read `reasoning_content`."""
    return {**message, "reasoning_content": message["reasoning"]} if "reasoning" in message else message
