"""What the engine answers, as far as it is needed: chat answers, completed texts, generated tokens.

It knows vLLM's JSON and nothing of how it is asked for. Called by upstream.py, which decodes it, and by its callers.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

_MOST_PLACES = 4096  # choices of an answer, or calls of a message: a higher number is garbage
_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Place = Annotated[int, msgspec.Meta(ge=0, lt=_MOST_PLACES)]
NO_LOGPROBS = msgspec.Raw(b"null")
"""Stands for log-probabilities that an answer does not have."""


class _Logprob(msgspec.Struct):
    logprob: float
    """Natural logarithm of the sampled token's probability."""


class _Logprobs(msgspec.Struct):
    content: list[_Logprob] | None = None
    """One entry a sampled token."""
    token_logprobs: list[float] | None = None
    """The same of a completed text."""


class ChatChoice(msgspec.Struct):
    """One answer of a chat request, streamed or whole."""

    index: _Place = 0
    """Which of the n answers."""
    message: dict[str, Any] | None = None
    """The whole message."""
    delta: dict[str, Any] | None = None
    """What is new in it, when streamed."""
    finish_reason: str | None = None
    """Why sampling stopped; None before it did."""
    stop_reason: int | str | None = None
    """Stop string or token; None at the end of the turn."""
    token_ids: list[_TokenId] | None = None
    """Sampled ids (those of this chunk, when streamed)."""
    logprobs: msgspec.Raw = NO_LOGPROBS
    """As the engine wrote them, for clients that asked."""


class ChatReply(msgspec.Struct):
    """A chat answer, or one chunk of it."""

    id: str = ""
    """The engine's id of the answer."""
    created: int = 0
    """Unix seconds."""
    choices: list[ChatChoice] = []
    """n answers; in a chunk one or none."""
    prompt_token_ids: list[_TokenId] | None = None
    """What the engine read; in the first chunk only."""
    usage: dict[str, Any] | None = None
    """Token counts."""
    error: dict[str, Any] | None = None
    """An error that came within a stream."""


class _TextChoice(msgspec.Struct):
    """One completed text, or what is new in it."""

    text: str = ""
    """Without the prompt."""
    index: _Place = 0
    """Which of the n answers."""
    finish_reason: str | None = None
    """Why sampling stopped; None before it did."""
    stop_reason: int | str | None = None
    """Stop string or token."""
    token_ids: list[_TokenId] | None = None
    """Sampled ids."""
    prompt_token_ids: list[_TokenId] | None = None
    """What the engine read."""
    logprobs: msgspec.Raw = NO_LOGPROBS
    """As the engine wrote them."""


class TextReply(msgspec.Struct):
    """Completed texts, or one chunk of them."""

    id: str = ""
    """The engine's id."""
    created: int = 0
    """Unix seconds."""
    choices: list[_TextChoice] = []
    """n answers."""
    usage: dict[str, Any] | None = None
    """Token counts."""
    error: dict[str, Any] | None = None
    """An error that came within a stream."""

    def as_chat(self) -> ChatReply:
        """The same as a chat answer: the text is the message's."""
        choices: list[ChatChoice] = []
        for one in self.choices:
            said = {"role": "assistant", "content": one.text}
            ids, logprobs = one.token_ids, one.logprobs
            choices.append(ChatChoice(one.index, said, said, one.finish_reason, one.stop_reason, ids, logprobs))
        prompt_ids = next((one.prompt_token_ids for one in self.choices if one.prompt_token_ids), None)
        return ChatReply(self.id, self.created, choices, prompt_ids, self.usage, self.error)


class Rendered(msgspec.Struct):
    """A prompt that the engine rendered."""

    token_ids: list[_TokenId]
    """The prompt."""


class Tokenized(msgspec.Struct):
    """A text as ids."""

    tokens: list[_TokenId]
    """The ids."""


class Detokenized(msgspec.Struct):
    """Ids as a text."""

    prompt: str
    """The text."""


class _GeneratedChoice(msgspec.Struct):
    token_ids: list[_TokenId]
    """Sampled ids."""
    index: _Place = 0
    """Which of the n answers."""
    finish_reason: str | None = None
    """Why sampling stopped."""
    stop_reason: int | str | None = None
    """Stop string or token."""
    logprobs: _Logprobs | None = None
    """Of the sampled ids."""


class Generated(msgspec.Struct):
    """Tokens out."""

    request_id: str
    """The engine's id."""
    choices: list[_GeneratedChoice]
    """n answers."""
    created: int | None = None
    """Unix seconds."""
    usage: dict[str, Any] | None = None
    """Token counts."""


class _Function(msgspec.Struct):
    name: str | None = None
    """Name of the tool."""
    arguments: str | None = None
    """JSON text, or what was meant to be."""


class _ToolCall(msgspec.Struct):
    function: _Function | None = None
    """What is called."""
    id: str | None = None
    """Its id; in the first delta only, when streamed."""
    index: _Place | None = None
    """Which of the answer's calls a delta belongs to."""


class _Said(msgspec.Struct):
    """The parts of a message, or of a delta, that are acted on."""

    content: str | None = None
    """What was said."""
    reasoning: str | None = None
    """What was thought."""
    reasoning_content: str | None = None
    """Older name of the same."""
    tool_calls: list[_ToolCall] | None = None
    """What was called."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    """Of the prompt."""
    reasoning_tokens: int | None = None
    """Of the answer."""


class _Usage(msgspec.Struct):
    """The counts that are acted on."""

    prompt_tokens: int | None = None
    """Read."""
    completion_tokens: int | None = None
    """Sampled."""
    prompt_tokens_details: _Details | None = None
    """What of the prompt was kept from before."""
    completion_tokens_details: _Details | None = None
    """What of the answer was thought."""


def check_said(reply: ChatReply) -> None:
    """Raise msgspec.ValidationError where what was said, or counted, has another form than is read."""
    for choice in reply.choices:
        for said in (choice.message, choice.delta):
            if said is not None:
                msgspec.convert(said, _Said)
    if reply.usage is not None:
        msgspec.convert(reply.usage, _Usage)


_LOGPROBS: msgspec.json.Decoder[_Logprobs | None] = msgspec.json.Decoder(_Logprobs | None)


def logprob_values(raw: msgspec.Raw) -> list[float]:
    """The numbers in an answer's log-probabilities; empty where it has none."""
    block = _LOGPROBS.decode(raw)
    if block is None:
        return []
    return block.token_logprobs or [entry.logprob for entry in block.content or ()]
