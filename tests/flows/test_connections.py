"""The gateway's own HTTP client against real servers, well-behaved and not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from starlette.types import Receive, Scope, Send

from harness.gateway.connections import ConnectionBroken, Connections
from tests.tool_doors import serve

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_server(handler: Handler) -> AsyncGenerator[Connections]:
    """A server that answers in whatever bytes it likes."""
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    connections = Connections(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", 3.0, 2.0)
    try:
        yield connections
    finally:
        connections.close()
        server.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    return head + await reader.readexactly(length)


async def post(connections: Connections, body: bytes = b"{}") -> tuple[int, bytes]:
    async with asyncio.timeout(10), connections.post("/path", body) as answer:
        return answer.status, await answer.body()


async def test_requests_reuse_connections_and_keep_their_bodies_apart() -> None:
    peers: set[tuple[str, int]] = set()

    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message.get("body", b"")
        peers.add(scope["client"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for start in range(0, len(body), 1000):  # without a length: chunked
            await send({"type": "http.response.body", "body": body[start : start + 1000], "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with serve(echo) as url:
        connections = Connections(url, 3.0, 2.0)
        bodies = [str(number).encode() * 1 + b"x" * (number * 97) for number in range(60)]
        for some in (bodies[:20], bodies[20:40], bodies[40:]):
            answers = await asyncio.gather(*(post(connections, body) for body in some))
            assert answers == [(200, body) for body in some]
        connections.close()
    assert len(peers) <= 20


async def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    requests = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await read_request(reader)
        requests += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()

    async with raw_server(once) as connections:
        assert [await post(connections) for _ in range(3)] == [(200, b"ok")] * 3
    assert requests == 3


@pytest.mark.parametrize(
    ("answer", "answered"),
    [
        (b"", False),
        (b"HTTP/1.1 200 OK\r\ncontent-le", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", True),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", True),
        (b"220 mail.example ESMTP\r\n", False),
    ],
)
async def test_an_answer_that_breaks_off_or_is_no_http_is_told_as_such(answer: bytes, answered: bool) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with raw_server(broken) as connections:
        with pytest.raises(ConnectionBroken) as raised:
            await post(connections)
    assert raised.value.answered is answered


async def test_an_answer_without_end_is_given_up_and_its_connection_dropped() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"400\r\n" + b"x" * 0x400 + b"\r\n")
                await writer.drain()

    async with raw_server(flood) as connections:
        connections.most_bytes = 100_000
        with pytest.raises(ConnectionBroken, match="longer than 100000 bytes"):
            await post(connections)


async def test_a_request_given_up_drops_its_connection_and_no_other() -> None:
    held = asyncio.Event()
    gone = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        held.set()
        assert await reader.read() == b""
        gone.set()
        writer.close()

    async with raw_server(hold) as connections:
        asked = asyncio.create_task(post(connections))
        await asyncio.wait_for(held.wait(), 10)
        asked.cancel()
        await asyncio.wait_for(gone.wait(), 10)
        with pytest.raises(asyncio.CancelledError):
            await asked


async def test_a_server_that_is_not_there_is_told_before_anything_is_sent() -> None:
    with pytest.raises(ConnectionBroken) as raised:
        await post(Connections("http://127.0.0.1:9", 3.0, 2.0))
    assert raised.value.answered is False
