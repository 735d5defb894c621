"""Whatever a client or the engine gets wrong, in each dialect, streamed and not: the official client raises an error of
its own, the span tells it, and other rollouts never notice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import anthropic
import openai
import pytest
from starlette.types import Message, Receive, Scope, Send

from harness.gateway.client import OpenedRollout
from tests.model_doors import Doors, anthropic_client, client, serve_doors
from tests.tool_doors import serve
from traces.span import SpanStatus

APIError = (openai.APIError, anthropic.APIError)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
MISBEHAVE = "misbehave: "
ASKED = pytest.mark.parametrize(
    ("dialect", "stream"),
    [(dialect, stream) for dialect in ("chat", "responses", "messages", "completions") for stream in (False, True)],
)


@dataclass(frozen=True)
class Client:
    """The official client of a dialect. It may retry, and must not."""

    sdk: Any
    dialect: str
    stream: bool

    async def ask(self, opened: OpenedRollout, text: str, body: str = "", **unknown: Any) -> str:
        """One request; `body` names what a `mangler` puts in place of it. The answer's text."""
        more: dict[str, Any] = {"stream": self.stream, "extra_headers": {"x-body": body}, "extra_body": unknown}
        messages: Any = [{"role": "user", "content": text}]
        base_url = opened.model_url.removesuffix("/v1") if self.dialect == "messages" else opened.model_url
        # One client for all addresses: to make one is slow.
        sdk = self.sdk.with_options(base_url=base_url, api_key=opened.key)
        if self.dialect == "messages":
            answer = await sdk.messages.create(model="m", max_tokens=9, messages=messages, **more)
        elif self.dialect == "chat":
            answer = await sdk.chat.completions.create(model="m", messages=messages, **more)
        elif self.dialect == "responses":
            answer = await sdk.responses.create(model="m", input=text, **more)
        else:
            answer = await sdk.completions.create(model="m", prompt=text, **more)
        if self.stream:
            return "".join([_delta(event.model_dump()) async for event in answer])
        return TEXT[self.dialect](answer)

    async def error(self, opened: OpenedRollout, text: str, body: str = "") -> Any:
        """The error that the client raises."""
        with pytest.raises(APIError) as raised:
            await self.ask(opened, text, body)
        return raised.value


@pytest.fixture
async def asking(dialect: str, stream: bool) -> AsyncGenerator[Client]:
    nowhere = OpenedRollout("none", "http://nowhere/v1", "", "")
    sdk = anthropic_client(nowhere, retries=2) if dialect == "messages" else client(nowhere, retries=2)
    async with sdk:
        yield Client(sdk, dialect, stream)


TEXT: dict[str, Callable[[Any], str]] = {
    "chat": lambda answer: answer.choices[0].message.content,
    "responses": lambda answer: answer.output_text,
    "messages": lambda answer: answer.content[0].text,
    "completions": lambda answer: answer.choices[0].text,
}


def _delta(event: dict[str, Any]) -> str:
    """The new text of any client's event."""
    if event.get("choices"):
        (one,) = event["choices"]
        part: dict[str, Any] = one.get("delta") or {}
        return str(one.get("text") or part.get("content") or "")
    delta: Any = event.get("delta")
    block: dict[str, Any] = cast("dict[str, Any]", delta) if isinstance(delta, dict) else {"text": delta}
    return str(block.get("text") or "")


def kind_of(error: Any) -> str:
    """The error's type, as each client's user reads it."""
    body: dict[str, Any] = error.body
    return str(body.get("error", body)["type"])


# What a client gets wrong.

BODIES: dict[str, bytes] = {
    "nothing": b"",
    "broken JSON": b'{"model": "m", "messages": [{"role": "user',
    "no object": b"[]",
    "no encoding": b'{"model": "\xff\xfe"}',
    "fields of other types": b'{"model": {}, "messages": 5, "input": 5, "prompt": 5, "max_tokens": 9}',
    "nothing to answer": b'{"model": "m", "messages": [], "input": [], "prompt": [], "max_tokens": 9}',
    "nesting without end": b'{"messages": ' + b"[" * 100_000,
    "more than ten megabytes": b'{"model": "' + b"m" * 10_000_001 + b'"}',
}


@asynccontextmanager
async def mangler(doors: Doors, opened: OpenedRollout) -> AsyncGenerator[OpenedRollout]:
    """The rollout's doors behind a server that puts the body named by `x-body` in place of the client's."""

    async def mangled(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        name = dict(scope["headers"])[b"x-body"].decode()
        if not name:
            await doors.app(scope, receive, send)
            return
        while (await receive()).get("more_body"):
            pass
        sent = iter((BODIES[name],))

        async def other() -> Message:
            body = next(sent, None)
            return await receive() if body is None else {"type": "http.request", "body": body, "more_body": False}

        await doors.app(scope, other, send)

    async with serve(mangled) as url:
        yield replace(opened, model_url=f"{url}/r/{opened.key}/v1")


@ASKED
async def test_a_body_that_cannot_be_read_is_an_error_of_the_client_and_a_span(
    tmp_path: Path, asking: Client, dialect: str
) -> None:
    async with engine_and_doors(tmp_path) as doors, mangler(doors, await doors.open()) as opened:
        for case in BODIES:
            error = await asking.error(opened, "x", case)
            too_long = case == "more than ten megabytes"
            wanted = (413, "request_too_large") if too_long else (400, "invalid_request_error")
            assert (error.status_code, kind_of(error)) == wanted, case
        assert await asking.ask(opened, "hello", from_the_future={"x": [1]}, another=None) == "fine"
        *spans, answered = doors.spans()
        seal = await doors.admin.seal("r-1")
    told = ["BodyTooLarge" if case == "more than ten megabytes" else "BadRequest" for case in BODIES]
    assert [span.attributes["error.type"] for span in spans] == told
    assert {span.attributes["harness.gateway.dialect"] for span in spans} == {dialect}
    assert {span.status for span in spans} == {SpanStatus.ERROR}
    assert answered.status is not SpanStatus.ERROR
    assert (seal.turns, seal.infrastructure_error) == (1, None)


@ASKED
async def test_keys_and_ids_of_others_open_nothing_and_leave_nothing_behind(tmp_path: Path, asking: Client) -> None:
    async with engine_and_doors(tmp_path) as doors:
        mine, other, ended = [await doors.open(name) for name in ("r-1", "r-2", "r-3")]
        await doors.admin.seal("r-3")
        for key, status in (("guess", 401), ("r-2", 401), ("%2e%2e", 401), (ended.key, 410)):
            url = f"{doors.url}/r/{key}/v1"
            error = await asking.error(replace(mine, key=key, model_url=url), "hello")
            assert error.status_code == status, key
            assert kind_of(error) in ("authentication_error", "permission_error"), key
        # The address decides whose request it is, whatever else the request names.
        mixed = replace(mine, key=other.key)
        assert await asking.ask(mixed, "hello", rollout_id="r-2", user="r-2", metadata={"rollout_id": "r-2"}) == "fine"
        assert [len(doors.spans(name)) for name in ("r-1", "r-2", "r-3")] == [1, 0, 0]


HEADERS = {
    "no number of retries": {"x-stainless-retry-count": "\xb2"},
    "too many retries": {"x-stainless-retry-count": "9" * 5000},
    "no trace context": {"traceparent": "00-{trace}-not-a-span-id-01"},
    "a context of no span": {"traceparent": "00-{trace}-0000000000000000-01"},
    "a context of another trace": {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"},
}


async def test_headers_that_say_nothing_are_left_alone(tmp_path: Path) -> None:
    trace, parent = "c" * 32, "d" * 16
    async with engine_and_doors(tmp_path) as doors:
        opened = await doors.open(trace_id=trace, parent_span_id=parent)
        for case, given in HEADERS.items():
            headers = {name: value.format(trace=trace) for name, value in given.items()}
            status, _ = await doors.post(opened, {"messages": [{"role": "user", "content": case}]}, headers)
            assert status == 200, case
        assert {(span.trace_id, span.parent_id) for span in doors.spans()} == {(trace, parent)}


# What the engine gets wrong.


def _first(text: bool, **more: Any) -> dict[str, Any]:
    """A whole answer, or the first chunk of one."""
    logprobs = {"token_logprobs": [-0.5, -0.5]} if text else {"content": [{"logprob": -0.5}] * 2}
    said = (
        {"text": "fine"}
        if text
        else {"message": {"role": "assistant", "content": "fine"}, "delta": {"content": "fine"}}
    )
    choice = {"index": 0, **said, "token_ids": [5, 6], "prompt_token_ids": [7], "logprobs": logprobs, **more}
    return {"id": "a", "created": 1, "choices": [choice], "prompt_token_ids": [7]}


def _reply(stream: bool, data: bytes) -> bytes:
    """An HTTP answer, whole as far as HTTP goes, that says this."""
    if not stream:
        return HEAD + b"content-length: %d\r\n\r\n" % len(data) + data
    return _begun(stream, data) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def _begun(stream: bool, data: bytes) -> bytes:
    """An HTTP answer of which only the beginning comes."""
    if not stream:
        return HEAD + b"content-length: %d\r\n\r\n" % (2 * len(data)) + data
    return HEAD + b"transfer-encoding: chunked\r\n\r\n" + _chunk(b"data: " + data + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _says(**more: Any) -> Callable[[bool, bool], bytes]:
    def says(stream: bool, text: bool) -> bytes:
        whole = {name: value for name, value in more.items() if name in ("choices", "usage")}
        part = {name: value for name, value in more.items() if name not in whole}
        return _reply(stream, json.dumps({**_first(text, finish_reason="stop", **part), **whole}).encode())

    return says


def _speaks(content: Any, calls: Any = None) -> Callable[[bool, bool], bytes]:
    said = {"role": "assistant", "content": content, "tool_calls": calls}
    return _says(message=said, delta=said, text=content if calls is None else calls)


def _raw(data: bytes) -> Callable[[bool, bool], bytes]:
    return lambda stream, _text: _reply(stream, data)


FAULTS: dict[str, Callable[[bool, bool], bytes]] = {
    "closes without a word": lambda _stream, _text: b"",
    "closes within its head": lambda _stream, _text: b"HTTP/1.1 200 OK\r\ncontent-le",
    "closes midway": lambda stream, text: _begun(stream, json.dumps(_first(text)).encode()),
    "speaks no HTTP": lambda _stream, _text: b"220 mail.example ESMTP\r\n\r\n",
    "answers 500": lambda _stream, _text: b"HTTP/1.1 500 Oops\r\ncontent-length: 4\r\n\r\noops",
    "sends a page": _raw(b"<html>"),
    "sends a number": _raw(b"5"),
    "sends an empty object": _raw(b"{}"),
    "sends another encoding": _raw(b'{"id": "\xff"}'),
    "nests without end": _raw(b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "sends an error in place of an answer": _raw(b'{"error": {"message": "out of memory"}}'),
    "has no choice": _says(choices=[]),
    "has choices of another form": _says(choices=[5]),
    "breaks off by itself": _says(finish_reason="abort"),
    "says a number": _speaks(5),
    "calls a word": _speaks(None, ["x"]),
    "calls with an object": _speaks(None, [{"id": "c", "index": 0, "function": {"name": "f", "arguments": {}}}]),
    "numbers a call without end": _speaks(None, [{"id": "c", "index": 2**60, "function": {"name": "f"}}]),
    "sends ids that are none": _says(token_ids=[2**40, -1]),
    "sends other log-probabilities": _says(logprobs=5),
    "counts in words": _says(usage={"prompt_tokens": "many"}),
}
HANGS: dict[str, Callable[[bool, bool], bytes]] = {
    "hangs": lambda _stream, _text: b"",
    "hangs within its head": lambda _stream, _text: HEAD,
    "hangs midway": FAULTS["closes midway"],
}


@asynccontextmanager
async def engine_and_doors(folder: Path, **options: float) -> AsyncGenerator[Doors]:
    """A gateway before an engine that answers well, and misbehaves as it is asked to."""
    handlers: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        try:
            while not reader.at_eof() and await _answer_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the gateway gave up on us, or the test is over
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with serve_doors(url, folder, **options) as doors:
            yield doors
    finally:
        for handler in handlers:
            handler.cancel()
        server.close()


async def _answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """One request; False where the connection is to be closed."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    asked = json.loads(await reader.readexactly(length))
    stream, text = bool(asked.get("stream")), "prompt" in asked
    said = str(asked["prompt"] if text else asked["messages"][-1]["content"])
    if not said.startswith(MISBEHAVE):
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        whole = {**_first(text, finish_reason="stop"), "usage": usage}
        writer.write(_reply(stream, json.dumps(whole).encode()))
        await writer.drain()
        return True
    fault = said.removeprefix(MISBEHAVE)
    writer.write({**FAULTS, **HANGS}[fault](stream, text))
    await writer.drain()
    if fault in HANGS:
        await reader.read()
    return False


async def fails(doors: Doors, asking: Client, fault: str) -> None:
    """The engine's fault reaches the client as an error, the span and the seal; and is asked for once."""
    error = await asking.error(await doors.open(fault), MISBEHAVE + fault)
    assert kind_of(error) == "api_error", fault
    assert "the engine failed" in str(error), fault
    assert asking.stream or error.status_code == 503, fault
    (span,) = doors.spans(fault)
    assert (span.status, span.attributes["error.type"]) == (SpanStatus.ERROR, "EngineFailure"), fault
    assert span.attributes["harness.gateway.dialect"] == asking.dialect, fault
    assert span.attributes.get("gen_ai.request.stream", False) is asking.stream, fault
    seal = await doors.admin.seal(fault)
    assert (seal.turns, (seal.infrastructure_error or "").partition(":")[0]) == (0, "engine_error"), fault


async def is_served(doors: Doors, asking: Client) -> None:
    """A neighbour notices nothing."""
    assert await asking.ask(await doors.open("neighbour"), "hello") == "fine"
    seal = await doors.admin.seal("neighbour")
    assert (seal.turns, seal.infrastructure_error) == (1, None)


@ASKED
async def test_an_engine_that_closes_or_sends_garbage_fails_its_own_call_only(tmp_path: Path, asking: Client) -> None:
    async with engine_and_doors(tmp_path) as doors:
        for fault in FAULTS:
            await fails(doors, asking, fault)
        await is_served(doors, asking)


@ASKED
async def test_an_engine_that_hangs_fails_its_own_call_only(tmp_path: Path, asking: Client) -> None:
    async with engine_and_doors(tmp_path, engine_timeout_s=2.0) as doors, asyncio.TaskGroup() as tasks:
        for fault in HANGS:
            tasks.create_task(fails(doors, asking, fault))
        tasks.create_task(is_served(doors, asking))
