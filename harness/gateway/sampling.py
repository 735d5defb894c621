"""One answer from the engine, with its ids and log-probabilities: from messages or from ids, in one call where it can.

vLLM's chat call takes prompt ids in place of rendering (`kv_transfer_params.prompt_token_ids`, made for decode nodes)
and says which ids it read, so that every answer proves its own prompt. Where an engine ignores them, generate and
derender do the same in two calls. It knows nothing about HTTP, limits, retries or spans. Called by model.py, stream.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from harness.gateway.prompts import Prompt
from harness.gateway.replies import NO_LOGPROBS, ChatChoice, ChatReply, Generated, logprob_values
from harness.gateway.request import ModelAnswer, ModelRequest, Sampled
from harness.gateway.transcript import Reading
from harness.gateway.upstream import EngineFailure, Upstream
from traces.span import Tokens

_BROKEN_OFF = frozenset({"abort", "error"})
_KEPT_WHEN_EMPTY = frozenset({"role", "content"})


@dataclass(frozen=True, slots=True)
class Policy:
    """What the rollout imposes on its calls."""

    model: str
    """Name the engine serves it under."""
    sampling: Mapping[str, Any]
    """Sampling parameters in force."""
    tokens_left: int | None
    """What its token limit leaves; None without one."""


def engine_body(policy: Policy, request: ModelRequest, reading: Reading, prompt: Prompt) -> dict[str, Any]:
    """The chat call for a request: the rollout's sampling parameters first, the client's where it has none."""
    sampling = policy.sampling
    own = {name: value for name, value in sampling.items() if name != "max_tokens"}
    bounds = [
        bound for bound in (sampling.get("max_tokens"), request.max_tokens, policy.tokens_left) if bound is not None
    ]
    body: dict[str, Any] = {
        "model": policy.model,
        "messages": reading.raws if prompt.ids is None else [],
        **(own or request.sampling),
        **request.constraints,
        "n": request.n,
        "logprobs": True,
        "top_logprobs": request.top_logprobs if request.wants_logprobs else 0,
        "return_token_ids": True,
        # Token texts cost the engine a decoding each; only clients that asked for them need them.
        "return_tokens_as_token_ids": not request.wants_logprobs,
    }
    if bounds:
        body["max_tokens"] = int(min(bounds))
    if request.is_text:
        return _text_body(body, request, reading, prompt)
    if reading.tools.raw is not None:
        body["tools"] = reading.tools.raw
    if prompt.ids is not None:
        body["kv_transfer_params"] = {"prompt_token_ids": prompt.ids}
    return body


def _text_body(body: dict[str, Any], request: ModelRequest, reading: Reading, prompt: Prompt) -> dict[str, Any]:
    """The call that completes a text, from what the chat call would be."""
    kept = {name: value for name, value in body.items() if name not in ("messages", "top_logprobs")}
    text = "".join(known.message.get("content") or "" for known in reading.messages)
    return {**kept, "logprobs": request.top_logprobs, "prompt": text if prompt.ids is None else prompt.ids}


class Sampler:
    """Samples whole answers from one engine."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self.takes_ids_in_chat = True
        """False once the engine was seen to ignore prompt ids in a chat call."""

    async def sample(self, body: dict[str, Any], reading: Reading, prompt: Prompt) -> ModelAnswer:
        """The answer to `body` (from `engine_body`); raises EngineFailure or EngineRefusal."""
        answer = await self._sample(body, reading, prompt)
        check_count(answer, body["n"])
        return answer

    async def _sample(self, body: dict[str, Any], reading: Reading, prompt: Prompt) -> ModelAnswer:
        if "prompt" in body:
            return read_reply(await self._upstream.complete(body))
        if prompt.ids is not None and not self.takes_ids_in_chat:
            return await self._generate(body, reading, prompt.ids)
        reply = await self._upstream.chat(body)
        if prompt.ids is not None and reply.prompt_token_ids != prompt.ids:
            self.takes_ids_in_chat = False
            return await self._generate(body, reading, prompt.ids)
        return read_reply(reply)

    async def _generate(self, body: dict[str, Any], reading: Reading, ids: list[int]) -> ModelAnswer:
        chat = {name: value for name, value in body.items() if name != "kv_transfer_params"}
        chat["messages"] = reading.raws
        rendered = await self._upstream.rendered(chat)
        generated = await self._upstream.generate({**rendered, "token_ids": ids, "stream": False})
        return await self._derender(chat, generated, ids)

    async def _derender(self, chat: dict[str, Any], generated: Generated, ids: list[int]) -> ModelAnswer:
        choices: list[Sampled] = []
        for choice in generated.choices:
            logprobs = [entry.logprob for entry in choice.logprobs.content or ()] if choice.logprobs else []
            closed = _is_closed(choice.finish_reason, choice.stop_reason)
            # Derender would leave the turn's end in the text.
            spoken = choice.token_ids[:-1] if closed else choice.token_ids
            message = (
                await self._message(chat, generated, spoken, ids) if spoken else {"role": "assistant", "content": ""}
            )
            calls = bool(message.get("tool_calls"))
            reason = "tool_calls" if calls and choice.finish_reason == "stop" else choice.finish_reason or "stop"
            tokens = _tokens(ids, choice.token_ids, logprobs)
            stop_text = choice.stop_reason if isinstance(choice.stop_reason, str) else None
            choices.append(Sampled(choice.index, message, reason, tokens, closed, NO_LOGPROBS, stop_text))
        usage = {name: count for name, count in (generated.usage or {}).items() if count is not None}
        return ModelAnswer(generated.request_id, generated.created or 0, choices, usage)

    async def _message(
        self, chat: dict[str, Any], generated: Generated, spoken: list[int], ids: list[int]
    ) -> dict[str, Any]:
        choice = {"index": 0, "token_ids": spoken, "finish_reason": "stop"}
        response = {"request_id": generated.request_id, "choices": [choice], "prompt_token_ids": ids}
        body = {"model": chat["model"], "generate_response": response, "chat_request": chat}
        reply = await self._upstream.derender(body)
        return read_reply(reply).choices[0].message


def check_count(answer: ModelAnswer, wanted: int) -> None:
    """Raise EngineFailure where an answer has not as many choices as were asked for."""
    if len(answer.choices) != wanted:
        raise EngineFailure(f"the engine gave {len(answer.choices)} answers where {wanted} were asked for")


def read_reply(reply: ChatReply) -> ModelAnswer:
    """A whole chat reply in the internal form; raises EngineFailure where it holds no answer."""
    if not reply.choices or any(choice.message is None for choice in reply.choices):
        raise EngineFailure("the engine's answer holds no message")
    choices = [read_choice(choice, choice.message or {}, reply.prompt_token_ids) for choice in reply.choices]
    usage = {name: count for name, count in (reply.usage or {}).items() if count is not None}
    return ModelAnswer(reply.id, reply.created, choices, usage)


def read_choice(choice: ChatChoice, message: Mapping[str, Any], prompt_ids: list[int] | None) -> Sampled:
    """One choice of a whole reply in the internal form; raises EngineFailure where sampling was broken off."""
    if choice.finish_reason in _BROKEN_OFF:
        raise EngineFailure(f"the engine broke the answer off ({choice.finish_reason})")
    tokens = None
    if prompt_ids is not None and choice.token_ids is not None:
        tokens = _tokens(prompt_ids, choice.token_ids, _logprobs(choice))
    closed = _is_closed(choice.finish_reason, choice.stop_reason)
    return Sampled(
        choice.index,
        clean_message(message),
        choice.finish_reason or "stop",
        tokens,
        closed,
        choice.logprobs,
        choice.stop_reason if isinstance(choice.stop_reason, str) and choice.stop_reason else None,
    )


def clean_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message without the fields that the engine left empty."""
    return {name: value for name, value in message.items() if value or name in _KEPT_WHEN_EMPTY}


def _is_closed(finish_reason: str | None, stop_reason: int | str | None) -> bool:
    return finish_reason in ("stop", "tool_calls") and not isinstance(stop_reason, str)


def _logprobs(choice: ChatChoice) -> list[float]:
    try:
        return logprob_values(choice.logprobs)
    except msgspec.MsgspecError as error:
        raise EngineFailure(f"the engine's log-probabilities have another form: {error}") from error


def _tokens(prompt_ids: list[int], completion_ids: list[int], logprobs: list[float]) -> Tokens:
    return Tokens(np.array(prompt_ids, np.int32), np.array(completion_ids, np.int32), np.array(logprobs, np.float32))
