"""HTTP/1.1 requests over kept connections, with no more work than a request to one known server needs.

A general client's request costs about as much processor time as the rest of a gateway call together. It knows nothing
about engines or JSON. Used by upstream.py only.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools


class ConnectionBroken(Exception):
    """The connection broke, or could not be made."""

    def __init__(self, words: str, *, answered: bool) -> None:
        super().__init__(words)
        self.answered = answered
        """True where a part of the answer had arrived."""


class _Connection(asyncio.Protocol):
    """One connection: a request at a time, its answer in parts as they arrive."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self.transport: asyncio.Transport | None = None
        self.idle_since_s = 0.0
        self.status = 0
        """Status of the answer; 0 before its head has arrived."""
        self.done = True
        """The answer is complete."""
        self.reusable = True
        """The server keeps the connection."""
        self.broken: str | None = None
        """Why nothing more will come."""
        self._parts: deque[bytes] = deque()
        self._news: asyncio.Future[None] | None = None
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's: the connection stands."""
        # uvloop's transports have asyncio's methods without being its subclasses.
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's: nothing more will come."""
        said = str(exc) if exc is not None else ""
        self.broken = self.broken or said or "the server closed the connection"
        self._tell()

    def data_received(self, data: bytes) -> None:
        """asyncio's: a part of an answer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break(f"the answer is no HTTP: {error}")
        self._tell()

    def _break(self, why: str) -> None:
        self.broken = self.broken or why
        self.close()

    def on_headers_complete(self) -> None:
        """The parser's: the head is through."""
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """The parser's: a part of the body."""
        self._bytes += len(body)
        if self._bytes > self._most_bytes:
            self._break(f"the answer is longer than {self._most_bytes} bytes")
        elif self.broken is None:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """The parser's: the answer is through."""
        self.reusable = self._parser.should_keep_alive()
        self.done = True

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def send(self, request: bytes) -> None:
        """Begin a request."""
        assert self.transport is not None
        self.status, self.done, self._bytes = 0, False, 0
        self._parts.clear()
        self._parser = httptools.HttpResponseParser(self)
        self.transport.write(request)

    async def head(self) -> int:
        """Wait for the answer's head; its status."""
        while not self.status:
            await self._wait()
        return self.status

    async def parts(self) -> AsyncGenerator[bytes]:
        """The body as it arrives."""
        while True:
            while self._parts:
                yield self._parts.popleft()
            if self.done:
                return
            await self._wait()

    async def _wait(self) -> None:
        if self.broken is not None:
            raise ConnectionBroken(self.broken, answered=self.status > 0)
        self._news = asyncio.get_running_loop().create_future()
        await self._news

    def close(self) -> None:
        """Drop the connection."""
        if self.transport is not None:
            self.transport.abort()


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer whose head has arrived."""

    status: int
    """HTTP status."""
    _connection: _Connection

    def parts(self) -> AsyncGenerator[bytes]:
        """The body as it arrives; raises ConnectionBroken."""
        return self._connection.parts()

    async def body(self) -> bytes:
        """The whole body; raises ConnectionBroken."""
        return b"".join([part async for part in self._connection.parts()])


@dataclass(slots=True)
class Connections:
    """Connections to one server, made as they are needed."""

    url: str
    """Base address."""
    keep_s: float
    """How long an idle connection is kept: less than the server keeps it."""
    connect_timeout_s: float
    """Longest wait for a connection."""
    most_bytes: int = 2**29
    """Longest answer that is read: more than 128 answers with log-probabilities make."""
    _idle: list[_Connection] = field(default_factory=list[_Connection])

    @asynccontextmanager
    async def post(self, path: str, body: bytes) -> AsyncGenerator[Answer]:
        """One POST of JSON; raises ConnectionBroken, in the block too. Left early, the connection is dropped."""
        connection = self._take() or await self._connect()
        try:
            connection.send(self._request(path, body))
            yield Answer(await connection.head(), connection)
        except BaseException:
            connection.close()
            raise
        if connection.done and connection.reusable and connection.broken is None:
            connection.idle_since_s = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.close()

    def _take(self) -> _Connection | None:
        """The connection used last, unless the server may be about to close it."""
        oldest_s = asyncio.get_running_loop().time() - self.keep_s
        while self._idle:
            connection = self._idle.pop()
            if connection.broken is None and connection.idle_since_s >= oldest_s:
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        parts = urlsplit(self.url)
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        port = parts.port or (443 if secure else 80)
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(self._make, parts.hostname or "", port, ssl=secure)
        except TimeoutError as error:
            raise ConnectionBroken(f"no connection in {self.connect_timeout_s:g} s", answered=False) from error
        except OSError as error:
            raise ConnectionBroken(error.strerror or str(error), answered=False) from error
        return connection

    def _make(self) -> _Connection:
        return _Connection(self.most_bytes)

    def _request(self, path: str, body: bytes) -> bytes:
        parts = urlsplit(self.url)
        head = (
            f"POST {parts.path.rstrip('/')}{path} HTTP/1.1\r\nhost: {parts.netloc}\r\n"
            f"content-type: application/json\r\naccept: */*\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode("ascii") + body

    def close(self) -> None:
        """Drop the idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
