"""A streamed answer: the engine's chunks passed on as they come, the end held back until the answer is on disk.

It knows nothing about dialects beyond their writers, or about retries: a stream that breaks is sampled anew.
Called by model.py.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any

import msgspec
from starlette.types import Send

from harness.gateway.answering import Answered, Answerer, Call, Prepared
from harness.gateway.dialects import StreamWriter
from harness.gateway.failures import describe_failure
from harness.gateway.http import end_events, send_frames, send_json, start_events
from harness.gateway.replies import NO_LOGPROBS, ChatChoice, ChatReply
from harness.gateway.request import ModelAnswer, Sampled
from harness.gateway.sampling import check_count, read_choice
from harness.gateway.upstream import EngineFailure


async def relay_stream(answerer: Answerer, call: Call, send: Send) -> None:
    """Answer a call in events; a failure before the first one is an error answer, after it an error event."""
    writer = call.dialect.stream_writer(call.request)
    started = False
    try:
        async with answerer.admitted(call):
            prepared = await answerer.prepare(call)
            assembly = _Assembly(prepared)
            async for chunk in _chunks(answerer, prepared):
                if not started:
                    await start_events(send)
                    started = True
                await send_frames(send, assembly.take(chunk, writer))
            answer = assembly.answer()
            call.turns.count_tokens(answer)
        await answerer.settle(Answered(prepared, answer))
    except Exception as error:
        failure = describe_failure(error)
        if not started:
            await send_json(send, failure.status, call.dialect.write_error(failure), {b"x-should-retry": b"false"})
        else:
            await send_frames(send, writer.fail(failure))
            await end_events(send)
        if failure.status == 500:
            raise
        return
    await send_frames(send, writer.finish(answer))
    await end_events(send)


async def _chunks(answerer: Answerer, prepared: Prepared) -> AsyncGenerator[ChatReply]:
    """The engine's chunks; where it ignores prompt ids, the whole answer in one."""
    ids = prepared.prompt.ids
    if ids is None or prepared.call.request.is_text or answerer.sampler.takes_ids_in_chat:
        body = {**prepared.body, "stream": True, "stream_options": {"include_usage": True}}
        upstream, is_text = answerer.upstream, prepared.call.request.is_text
        async for chunk in upstream.stream_text(body) if is_text else upstream.stream_chat(body):
            if ids is not None and chunk.prompt_token_ids not in (None, ids):
                answerer.sampler.takes_ids_in_chat = False
                break
            yield chunk
        else:
            return
    answer = await answerer.sampler.sample(prepared.body, prepared.call.reading, prepared.prompt)
    yield _as_chunk(answer)


def _as_chunk(answer: ModelAnswer) -> ChatReply:
    choices: list[ChatChoice] = []
    for sampled in answer.choices:
        calls: list[dict[str, Any]] = [
            {"index": i, **call} for i, call in enumerate(sampled.message.get("tool_calls") or ())
        ]
        choices.append(
            ChatChoice(
                index=sampled.index,
                delta={**sampled.message, **({"tool_calls": calls} if calls else {})},
                finish_reason=sampled.finish_reason,
                stop_reason=None if sampled.closed else sampled.stop_text or "",
                token_ids=sampled.tokens.completion_ids_T.tolist() if sampled.tokens is not None else None,
                logprobs=_as_logprobs(sampled),
            )
        )
    prompt = answer.choices[0].tokens
    prompt_ids = prompt.prompt_ids_T.tolist() if prompt is not None else None
    return ChatReply(answer.id, answer.created, choices, prompt_ids, dict(answer.usage))


def _as_logprobs(sampled: Sampled) -> msgspec.Raw:
    if sampled.tokens is None:
        return NO_LOGPROBS
    return msgspec.Raw(msgspec.json.encode({"content": [{"logprob": v} for v in sampled.tokens.logprobs_T.tolist()]}))


class _Logprobs(msgspec.Struct):
    content: list[Any] | None = None
    """One entry a token, as the engine wrote it."""
    token_logprobs: list[float] | None = None
    """The same of a completed text."""


_LOGPROBS: msgspec.json.Decoder[_Logprobs | None] = msgspec.json.Decoder(_Logprobs | None)


class _Assembly:
    """Puts the chunks together again: messages, ids, log-probabilities."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._head: ChatReply | None = None
        self._prompt_ids: list[int] | None = None
        self._usage: dict[str, Any] = {}
        self._messages: dict[int, dict[str, Any]] = {}
        self._choices: dict[int, ChatChoice] = {}
        self._logprobs: dict[int, list[Any]] = {}

    def take(self, chunk: ChatReply, writer: StreamWriter) -> Iterable[bytes]:
        """Add a chunk; the frames that tell the client of it, its end left out."""
        frames: list[bytes] = []
        if self._head is None:
            self._head = chunk
            frames += writer.begin(chunk.id, chunk.created, len(chunk.prompt_token_ids or ()))
        self._prompt_ids = self._prompt_ids or chunk.prompt_token_ids
        if chunk.usage is not None:
            self._usage = {name: count for name, count in chunk.usage.items() if count is not None}
        for choice in chunk.choices:
            self._add(choice)
            frames += writer.delta(choice)
        return frames

    def _add(self, choice: ChatChoice) -> None:
        whole = self._choices.setdefault(choice.index, ChatChoice(index=choice.index, token_ids=[]))
        whole.token_ids = (whole.token_ids or []) + (choice.token_ids or [])
        self._logprobs.setdefault(choice.index, []).extend(_entries(choice.logprobs))
        whole.finish_reason = choice.finish_reason or whole.finish_reason
        whole.stop_reason = choice.stop_reason if choice.stop_reason is not None else whole.stop_reason
        merge_delta(self._messages.setdefault(choice.index, {"role": "assistant", "content": None}), choice.delta or {})

    def answer(self) -> ModelAnswer:
        """The whole answer; raises EngineFailure where the stream ended before the answer did."""
        head = self._head
        if head is None or not self._choices or any(c.finish_reason is None for c in self._choices.values()):
            raise EngineFailure("the engine's stream ended before its answer did")
        choices: list[Sampled] = []
        for index, choice in sorted(self._choices.items()):
            choice.logprobs = msgspec.Raw(msgspec.json.encode({"content": self._logprobs.get(index, [])}))
            prompt_ids = self._prompt_ids if choice.token_ids else None
            choices.append(read_choice(choice, self._messages[index], prompt_ids))
        answer = ModelAnswer(head.id, head.created, choices, self._usage)
        check_count(answer, self._prepared.call.request.n)
        return answer


def _entries(raw: msgspec.Raw) -> list[Any]:
    try:
        block = _LOGPROBS.decode(raw)
    except msgspec.MsgspecError as error:
        raise EngineFailure(f"the engine's log-probabilities have another form: {error}") from error
    if block is None:
        return []
    return block.content or [{"logprob": value} for value in block.token_logprobs or ()]


def merge_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    """Add what is new in a chunk to the message so far."""
    for name, value in delta.items():
        if name == "tool_calls":
            for part in value or ():
                _merge_call(message.setdefault("tool_calls", []), part)
        elif isinstance(value, str) and name != "role":
            message[name] = (message.get(name) or "") + value


def _merge_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    index = int(part.get("index", len(calls)))
    while len(calls) <= index:
        calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
    call = calls[index]
    function: dict[str, Any] = part.get("function") or {}
    call["id"] = part.get("id") or call["id"]
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""
