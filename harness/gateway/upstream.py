"""The engine as the model gateway asks it: chat, render, generate, derender, over pooled connections.

It knows vLLM's HTTP API and nothing of rollouts, dialects or continuation. Only the fields that are needed are decoded;
a failure is either the engine's refusal (the agent's request was wrong) or an infrastructure failure.
Called by model.py and stream.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import msgspec

from harness.gateway.connections import Answer, ConnectionBroken, Connections
from harness.gateway.replies import ChatReply, Detokenized, Generated, Rendered, TextReply, Tokenized, check_said

T = TypeVar("T")

# vLLM's uvicorn drops idle connections after 5 s: ours must be the first to let go.
_KEEPALIVE_S = 3.0
_RETRY_PAUSES_S = (0.05, 0.5)
_CONNECT_TIMEOUT_S = 10.0


class EngineFailure(Exception):
    """The engine could not be asked, or answered with something other than it promises: infrastructure."""


class EngineRefusal(Exception):
    """The engine says that the request is wrong."""

    def __init__(self, status: int, message: str, kind: str) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status, 4xx."""
        self.kind = kind
        """The engine's error type."""


_REPLY = msgspec.json.Decoder(ChatReply)
_TEXT_REPLY = msgspec.json.Decoder(TextReply)
_RENDERED = msgspec.json.Decoder(Rendered)
_GENERATED = msgspec.json.Decoder(Generated)
_TOKENIZED = msgspec.json.Decoder(Tokenized)
_DETOKENIZED = msgspec.json.Decoder(Detokenized)
_OBJECT = msgspec.json.Decoder(dict[str, Any])


class Upstream:
    """One engine."""

    def __init__(self, connections: Connections, timeout_s: float) -> None:
        self.url = connections.url
        """Base address, without /v1."""
        self._connections = connections
        self._timeout_s = timeout_s

    async def chat(self, body: dict[str, Any]) -> ChatReply:
        """A whole chat answer; raises EngineFailure or EngineRefusal."""
        return _sound(self._decode(_REPLY, await self._post("/v1/chat/completions", body)))

    async def complete(self, body: dict[str, Any]) -> ChatReply:
        """Whole completed texts; raises EngineFailure or EngineRefusal."""
        return _sound(self._decode(_TEXT_REPLY, await self._post("/v1/completions", body)).as_chat())

    async def render(self, body: dict[str, Any]) -> list[int]:
        """The prompt ids of a chat request; raises EngineFailure or EngineRefusal."""
        return self._decode(_RENDERED, await self._post("/v1/chat/completions/render", body)).token_ids

    async def rendered(self, body: dict[str, Any]) -> dict[str, Any]:
        """A chat request as a whole generate request; raises EngineFailure or EngineRefusal."""
        return self._decode(_OBJECT, await self._post("/v1/chat/completions/render", body))

    async def generate(self, body: dict[str, Any]) -> Generated:
        """Tokens in, tokens out; raises EngineFailure or EngineRefusal."""
        return self._decode(_GENERATED, await self._post("/inference/v1/generate", body))

    async def derender(self, body: dict[str, Any]) -> ChatReply:
        """Tokens as chat messages; raises EngineFailure or EngineRefusal."""
        return _sound(self._decode(_REPLY, await self._post("/v1/chat/completions/derender", body)))

    async def detokenize(self, model: str, ids: list[int]) -> str:
        """The text of some ids; raises EngineFailure or EngineRefusal."""
        content = await self._post("/detokenize", {"model": model, "tokens": ids})
        return self._decode(_DETOKENIZED, content).prompt

    async def tokenize(self, model: str, text: str) -> list[int]:
        """The ids of a text within a text; raises EngineFailure or EngineRefusal."""
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        return self._decode(_TOKENIZED, await self._post("/tokenize", body)).tokens

    async def stream_chat(self, body: dict[str, Any]) -> AsyncGenerator[ChatReply]:
        """The chunks of a chat answer; raises EngineFailure (midway too) or EngineRefusal."""
        async with aclosing(self._stream("/v1/chat/completions", body)) as events:
            async for data in events:
                yield _sound(self._decode(_REPLY, data))

    async def stream_text(self, body: dict[str, Any]) -> AsyncGenerator[ChatReply]:
        """The chunks of completed texts; raises EngineFailure (midway too) or EngineRefusal."""
        async with aclosing(self._stream("/v1/completions", body)) as events:
            async for data in events:
                yield _sound(self._decode(_TEXT_REPLY, data).as_chat())

    async def _stream(self, path: str, body: dict[str, Any]) -> AsyncGenerator[bytes]:
        pending, ended = b"", False
        async with self._asked(path, body) as answer:
            # Read to the answer's very end, so that the connection can be used again.
            async for part in answer.parts():
                *lines, pending = (pending + part).split(b"\n")
                for line in lines:
                    ended = ended or line.startswith(b"data: [DONE]")
                    if line.startswith(b"data: ") and not ended:
                        yield line[6:]
        if not ended:
            raise EngineFailure("the engine's stream ended without its last event")

    @asynccontextmanager
    async def _asked(self, path: str, body: dict[str, Any]) -> AsyncGenerator[Answer]:
        """One POST whose answer is a success; asks again where no answer had begun, before anything was passed on."""
        data = msgspec.json.encode(body)
        pauses_s = iter(_RETRY_PAUSES_S)
        begun = False
        while True:
            try:
                async with asyncio.timeout(self._timeout_s), self._connections.post(path, data) as answer:
                    if answer.status != 200:
                        await _refuse(answer)
                    begun = True
                    yield answer
                    return
            except TimeoutError as error:
                raise EngineFailure(f"the engine gave no answer in {self._timeout_s:g} s") from error
            except ConnectionBroken as error:
                pause_s = None if begun or error.answered else next(pauses_s, None)
                if pause_s is None:
                    what = "the engine's answer broke off" if error.answered else "the engine can't be reached"
                    raise EngineFailure(f"{what}: {error}") from error
            await asyncio.sleep(pause_s)

    async def _post(self, path: str, body: dict[str, Any]) -> bytes:
        async with self._asked(path, body) as answer:
            return await answer.body()

    def _decode(self, decoder: msgspec.json.Decoder[T], content: bytes) -> T:
        try:
            return decoder.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise EngineFailure(f"the engine answered with something else ({error}): {content[:200]!r}") from error


def _sound(reply: ChatReply) -> ChatReply:
    """The reply, or one chunk of it, unless it tells of an error or has another form than is read."""
    if reply.error is not None:
        raise EngineFailure(f"the engine failed while it answered: {reply.error.get('message', reply.error)}")
    try:
        check_said(reply)
    except msgspec.ValidationError as error:
        raise EngineFailure(f"the engine's message has another form than a chat message: {error}") from error
    return reply


async def _refuse(answer: Answer) -> None:
    content = await answer.body()
    message, kind = content[:500].decode(errors="replace"), ""
    try:
        error = _OBJECT.decode(content)
        error = error.get("error", error)
        message, kind = str(error.get("message", message)), str(error.get("type", ""))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, AttributeError):
        kind = "unreadable"  # the raw text stays the message
    if 400 <= answer.status < 500:
        raise EngineRefusal(answer.status, message, kind)
    raise EngineFailure(f"the engine answered {answer.status}: {message}")


@asynccontextmanager
async def open_upstream(url: str, *, timeout_s: float = 600.0) -> AsyncGenerator[Upstream]:
    """The engine at `url` for as long as the block runs; `timeout_s` bounds one request to it."""
    base = url.rstrip("/").removesuffix("/v1")
    connections = Connections(base, _KEEPALIVE_S, _CONNECT_TIMEOUT_S)
    try:
        yield Upstream(connections, timeout_s)
    finally:
        connections.close()
