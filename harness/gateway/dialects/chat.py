"""OpenAI chat completions: requests read, answers, chunks and errors written as the official clients expect them.

It knows nothing about the engine, rollouts or tokens beyond passing them on.
Source: OpenAI API reference, chat/create and chat/streaming; vLLM's additions are marked. Called by model.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from harness.gateway.dialects.bodies import decode_body, pick, picker
from harness.gateway.failures import Failure
from harness.gateway.record import AnswerRecord
from harness.gateway.replies import ChatChoice
from harness.gateway.request import BadRequest, ModelAnswer, ModelRequest, Sampled

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
        n=body.n or 1,
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
    if body.n is not None and not 1 <= body.n <= 128:
        raise BadRequest(f"n is {body.n}, not between 1 and 128", "n")


def remember(record: AnswerRecord, request: ModelRequest, answer: ModelAnswer) -> None:
    """Nothing: chat's clients send their whole history, arguments as they got them."""


def write_answer(request: ModelRequest, answer: ModelAnswer) -> bytes:
    """The whole answer."""
    body: dict[str, Any] = {
        "id": answer.id,
        "object": "chat.completion",
        "created": answer.created,
        "model": request.model,
        "choices": [_choice(request, sampled) for sampled in answer.choices],
        "usage": answer.usage,
    }
    if request.wants_ids and answer.choices[0].tokens is not None:
        body["prompt_token_ids"] = answer.choices[0].tokens.prompt_ids_T.tolist()
    return msgspec.json.encode(body)


def _choice(request: ModelRequest, sampled: Sampled) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": sampled.index,
        "message": _with_reasoning_content(sampled.message),
        "finish_reason": sampled.finish_reason,
        "logprobs": sampled.logprobs if request.wants_logprobs else None,
    }
    if request.wants_ids and sampled.tokens is not None:
        choice["token_ids"] = sampled.tokens.completion_ids_T.tolist()
    return choice


def write_models(name: str, created: int, *, listed: bool) -> bytes:
    """The one model there is, or the list of it."""
    model = {"id": name, "object": "model", "created": created, "owned_by": "harness"}
    return msgspec.json.encode({"object": "list", "data": [model]} if listed else model)


def write_error(failure: Failure) -> bytes:
    """An error in the shape that the official clients turn into exceptions."""
    error = {"message": failure.message, "type": failure.kind, "param": failure.param, "code": failure.code}
    return msgspec.json.encode({"error": error})


def stream_writer(request: ModelRequest) -> ChatStreamWriter:
    """For one streamed answer."""
    return ChatStreamWriter(request)


class ChatStreamWriter:
    """Writes `chat.completion.chunk` events."""

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
        self._head: dict[str, Any] = {}

    def begin(self, answer_id: str, created: int, prompt_tokens: int) -> Iterable[bytes]:
        """Nothing yet: the engine's first delta carries the role."""
        self._head = {
            "id": answer_id, "object": "chat.completion.chunk", "created": created, "model": self._request.model,
        }  # fmt: skip
        return ()

    def delta(self, choice: ChatChoice) -> Iterable[bytes]:
        """One chunk, unless the choice brings nothing but its end."""
        delta = {name: value for name, value in (choice.delta or {}).items() if value is not None}
        if not delta and not choice.token_ids:
            return ()
        part: dict[str, Any] = {"index": choice.index, "delta": _with_reasoning_content(delta), "finish_reason": None}
        if self._request.wants_logprobs:
            part["logprobs"] = choice.logprobs
        if self._request.wants_ids:
            part["token_ids"] = choice.token_ids
        return (self._chunk([part]),)

    def finish(self, answer: ModelAnswer) -> Iterable[bytes]:
        """A chunk with the finish reason of each choice, token counts where they are wanted, and the end."""
        for sampled in answer.choices:
            yield self._chunk([{"index": sampled.index, "delta": {}, "finish_reason": sampled.finish_reason}])
        if self._request.wants_usage:
            yield self._chunk([], usage=answer.usage)
        yield b"data: [DONE]\n\n"

    def fail(self, failure: Failure) -> Iterable[bytes]:
        """The error as an event, which the official clients raise."""
        return (b"data: " + write_error(failure) + b"\n\n",)

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return b"data: " + msgspec.json.encode({**self._head, "choices": choices, **more}) + b"\n\n"


def _with_reasoning_content(message: dict[str, Any]) -> dict[str, Any]:
    """vLLM says `reasoning`; many SDKs still read `reasoning_content`."""
    return {**message, "reasoning_content": message["reasoning"]} if "reasoning" in message else message
