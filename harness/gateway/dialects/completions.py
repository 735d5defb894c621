"""OpenAI completions, the older API of one text: requests read, answers, chunks and errors written.

A prompt that begins with an earlier prompt and its completion continues that completion, token for token: it is taken
apart into texts of the client and texts of the model, which are the messages of the internal form.
It knows nothing about the engine, rollouts or tokens. Source: OpenAI API reference, completions. Called by model.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from harness.gateway.dialects import chat
from harness.gateway.dialects.bodies import decode_body, encode_messages, pick, picker
from harness.gateway.failures import Failure
from harness.gateway.record import AnswerRecord, WrittenText
from harness.gateway.replies import ChatChoice
from harness.gateway.request import BadRequest, ModelAnswer, ModelRequest, Sampled

NAME: str = "completions"
"""What spans call this dialect."""

_SAMPLING = picker(
    "temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty seed logit_bias min_tokens"
)
_CONSTRAINTS = picker("stop stop_token_ids")
_DEFAULT_MAX_TOKENS = 16


class _CompletionsBody(msgspec.Struct):
    """The fields that are acted on; others are ignored."""

    prompt: str | list[Any]
    """One text."""
    model: str = ""
    """Any name: the rollout decides."""
    n: int | None = None
    """Answers wanted."""
    max_tokens: int | None = None
    """Longest answer; 16 where it is not given, as OpenAI has it."""
    stream: bool | None = None
    """Answer in events."""
    stream_options: dict[str, Any] | None = None
    """Goes with `stream`."""
    logprobs: int | None = None
    """Log-probabilities, with so many alternatives per token."""
    return_token_ids: bool | None = None
    """vLLM's: ids wanted."""
    echo: bool | None = None
    """Refused."""
    suffix: str | None = None
    """Refused."""
    best_of: int | None = None
    """Refused where it isn't n."""


_BODY = msgspec.json.Decoder(_CompletionsBody)


def parse(content: bytes, record: AnswerRecord) -> ModelRequest:
    """A request; raises BadRequest."""
    body = decode_body(_BODY, content)
    _refuse(body)
    prompt = body.prompt[0] if isinstance(body.prompt, list) else body.prompt
    n = body.n if body.n is not None else 1
    if not 1 <= n <= 128:
        raise BadRequest(f"n is {n}, not between 1 and 128", "n")
    return ModelRequest(
        messages=_messages(prompt, record),
        tools=msgspec.Raw(b"null"),
        model=body.model,
        n=n,
        stream=bool(body.stream),
        sampling=pick(_SAMPLING, content),
        constraints=pick(_CONSTRAINTS, content),
        max_tokens=body.max_tokens if body.max_tokens is not None else _DEFAULT_MAX_TOKENS,
        wants_logprobs=body.logprobs is not None,
        top_logprobs=body.logprobs or 0,
        wants_ids=bool(body.return_token_ids),
        wants_usage=bool((body.stream_options or {}).get("include_usage")),
        is_text=True,
        own=prompt,
    )


def _refuse(body: _CompletionsBody) -> None:
    if isinstance(body.prompt, list) and (len(body.prompt) != 1 or not isinstance(body.prompt[0], str)):
        raise BadRequest("prompt is not one text: send one request a text, and no token ids", "prompt")
    for name in ("echo", "suffix"):
        if getattr(body, name):
            raise BadRequest(f"{name} can't be served", name)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise BadRequest(f"best_of is {body.best_of}: every answer is returned, ask for n", "best_of")


def _messages(prompt: str, record: AnswerRecord) -> list[msgspec.Raw]:
    """The prompt, taken apart after the longest text that was completed before."""
    before = max((one for one in record.texts if prompt.startswith(one.text)), key=_length, default=None)
    if before is None:
        return encode_messages([{"role": "user", "content": prompt}])
    rest = prompt[len(before.text) :]
    return before.messages + (encode_messages([{"role": "user", "content": rest}]) if rest else [])


def _length(written: WrittenText) -> int:
    return len(written.text)


def remember(record: AnswerRecord, request: ModelRequest, answer: ModelAnswer) -> None:
    """The completed texts, with the stop string that was sampled too: a prompt may go on after either."""
    for sampled in answer.choices:
        text = request.own + (sampled.message.get("content") or "")
        messages = request.messages + encode_messages([sampled.message])
        record.texts += [WrittenText(end, messages) for end in {text, text + (sampled.stop_text or "")}]


def write_answer(request: ModelRequest, answer: ModelAnswer) -> bytes:
    """The whole answer."""
    choices = [_choice(request, sampled) for sampled in answer.choices]
    return msgspec.json.encode({**_head(request, answer.id, answer.created), "choices": choices, "usage": answer.usage})


def _head(request: ModelRequest, answer_id: str, created: int) -> dict[str, Any]:
    return {"id": answer_id, "object": "text_completion", "created": created, "model": request.model}


def _choice(request: ModelRequest, sampled: Sampled) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": sampled.index,
        "text": sampled.message.get("content") or "",
        "finish_reason": sampled.finish_reason,
        "logprobs": sampled.logprobs if request.wants_logprobs else None,
    }
    if request.wants_ids and sampled.tokens is not None:
        choice["token_ids"] = sampled.tokens.completion_ids_T.tolist()
        choice["prompt_token_ids"] = sampled.tokens.prompt_ids_T.tolist()
    return choice


write_error = chat.write_error


def stream_writer(request: ModelRequest) -> CompletionsStreamWriter:
    """For one streamed answer."""
    return CompletionsStreamWriter(request)


class CompletionsStreamWriter:
    """Writes `text_completion` chunks."""

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
        self._head: dict[str, Any] = {}

    def begin(self, answer_id: str, created: int, prompt_tokens: int) -> Iterable[bytes]:
        """Nothing: every chunk says what it belongs to."""
        self._head = _head(self._request, answer_id, created)
        return ()

    def delta(self, choice: ChatChoice) -> Iterable[bytes]:
        """One chunk of text."""
        text = (choice.delta or {}).get("content") or ""
        if not text and not choice.token_ids:
            return ()
        part: dict[str, Any] = {"index": choice.index, "text": text, "finish_reason": None, "logprobs": None}
        if self._request.wants_logprobs:
            part["logprobs"] = choice.logprobs
        if self._request.wants_ids:
            part["token_ids"] = choice.token_ids
        return (self._chunk([part]),)

    def finish(self, answer: ModelAnswer) -> Iterable[bytes]:
        """The finish reasons, token counts where they are wanted, and the end."""
        for sampled in answer.choices:
            end = {"index": sampled.index, "text": "", "finish_reason": sampled.finish_reason, "logprobs": None}
            yield self._chunk([end])
        if self._request.wants_usage:
            yield self._chunk([], usage=answer.usage)
        yield b"data: [DONE]\n\n"

    def fail(self, failure: Failure) -> Iterable[bytes]:
        """The error as an event, which the official clients raise."""
        return (b"data: " + write_error(failure) + b"\n\n",)

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return b"data: " + msgspec.json.encode({**self._head, "choices": choices, **more}) + b"\n\n"
