"""OpenAI completions, the older API of one text: requests read, answers, chunks and errors written.

A prompt that begins with an earlier prompt and its completion continues that completion, token for token: it is taken
apart into texts of the client and texts of the model, which are the messages of the internal form.
It knows nothing about the engine, rollouts or tokens. Source: OpenAI API reference, completions. Called by model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from harness.gateway.dialects import chunks
from harness.gateway.dialects.bodies import decode_body, encode_messages, pick, picker
from harness.gateway.dialects.chunks import ChunkWriter, wanted_choices, write_choice
from harness.gateway.record import AnswerRecord, WrittenText
from harness.gateway.request import BadRequest, ModelAnswer, ModelRequest, Sampled

NAME: str = "completions"
"""What spans call this dialect."""

_SAMPLING = picker(
    "temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty seed logit_bias min_tokens"
)
_CONSTRAINTS = picker("stop stop_token_ids")
_DEFAULT_MAX_TOKENS = 16
_KIND = "text_completion"


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
    return ModelRequest(
        messages=_messages(prompt, record),
        tools=msgspec.Raw(b"null"),
        model=body.model,
        n=wanted_choices(body.n),
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
    body: dict[str, Any] = {
        "id": answer.id,
        "object": _KIND,
        "created": answer.created,
        "model": request.model,
        "choices": [_choice(request, sampled) for sampled in answer.choices],
        "usage": answer.usage,
    }
    return msgspec.json.encode(body)


def _choice(request: ModelRequest, sampled: Sampled) -> dict[str, Any]:
    choice = write_choice(request, sampled, {"text": sampled.message.get("content") or ""})
    if request.wants_ids and sampled.tokens is not None:
        choice["prompt_token_ids"] = sampled.tokens.prompt_ids_T.tolist()
    return choice


write_error = chunks.write_error


def stream_writer(request: ModelRequest) -> CompletionsStreamWriter:
    """For one streamed answer."""
    return CompletionsStreamWriter(request)


class CompletionsStreamWriter(ChunkWriter):
    """Writes `text_completion` chunks."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__(request, _KIND)

    def said(self, delta: Mapping[str, Any]) -> dict[str, Any]:
        """New text."""
        return {"text": delta.get("content") or ""}
