"""A stdio MCP server that is a client of an MCP door over HTTP: the same tools for agents that only start commands.

Messages pass through as they are, in whatever protocol version the agent speaks; a request whose answer is lost on the
way is sent again under its idempotency key (law 6). It knows nothing about tools or rollouts.
Started by the agent itself, as `harness mcp-bridge` or, sooner up, `python -m harness.bridge`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO, cast
from uuid import uuid4

from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp_types import PROTOCOL_VERSION_META_KEY

from harness.gateway.events import MOST_BYTES, parse_message
from harness.gateway.keys import ToolDoor
from harness.gateway.toolserver import (
    KEY_HEADER,
    SESSION_HEADER,
    Answer,
    ToolServerFailure,
    ToolServerLink,
    open_connections,
    params_of,
)

_CONTENT = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")]
_PAUSES_S = (0.1, 0.5, 2.0)
_CONNECTION_CLOSED = -32000


class Bridge:
    """One agent's connection to its door."""

    def __init__(self, link: ToolServerLink, write: BinaryIO) -> None:
        self._link = link
        self._write = write
        self._session: str | None = None
        self._version: str | None = None
        self._param_headers: dict[str, Mapping[tuple[str, ...], str]] = {}
        self._requests: dict[str, asyncio.Task[None]] = {}
        self._stream: asyncio.Task[None] | None = None

    async def run(self, lines: asyncio.StreamReader) -> None:
        """Pass messages until the agent closes its end."""
        try:
            while line := await lines.readline():
                message = parse_message(line)
                if message is None:
                    self._say(_error(None, -32700, f"Parse error: not a JSON object: {line[:100]!r}"))
                elif "method" in message and message.get("id") is not None:
                    self._start(message)
                elif not self._takes_back(message):
                    await self._notify(message)
        finally:
            await self._close()

    def _start(self, message: dict[str, Any]) -> None:
        task = asyncio.create_task(self._request(message))
        at = repr(message["id"])
        self._requests[at] = task
        task.add_done_callback(lambda _: self._requests.pop(at, None))

    def _takes_back(self, message: dict[str, Any]) -> bool:
        """Over HTTP protocol 2026-07-28 cancels by closing the request's connection."""
        if message.get("method") != "notifications/cancelled" or self._session is not None or self._version is not None:
            return False
        request = self._requests.get(repr(params_of(message).get("requestId")))
        if request is not None:
            request.cancel()
        return True

    def _headers(self, message: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Headers for one message: its session, or what protocol 2026-07-28 repeats from the body."""
        session = [(SESSION_HEADER, self._session)] if self._session else []
        params = params_of(message)
        meta: dict[str, Any] = params.get("_meta") or {}
        version = meta.get(PROTOCOL_VERSION_META_KEY)
        if version is None:
            spoken = [(MCP_PROTOCOL_VERSION_HEADER, self._version)] if self._version else []
            return [*_CONTENT, *session, *spoken]
        method = str(message.get("method"))
        headers = [*_CONTENT, (MCP_PROTOCOL_VERSION_HEADER, str(version)), (MCP_METHOD_HEADER, method)]
        name = params.get(NAME_BEARING_METHODS.get(method, ""))
        if isinstance(name, str):
            headers.append((MCP_NAME_HEADER, encode_header_value(name)))
        if method == "tools/call":
            arguments = cast("dict[str, Any]", params.get("arguments") or {})
            headers += mcp_param_headers(self._param_headers.get(str(name), {}), arguments).items()
        return headers

    async def _request(self, message: dict[str, Any]) -> None:
        """Send a request and pass on all that is said to it, once more where the answer is lost."""
        headers = [*self._headers(message), (KEY_HEADER, uuid4().hex)]
        for pause_s in (*_PAUSES_S, None):
            try:
                await self._attempt(message, headers)
                return
            except ToolServerFailure as failure:
                if pause_s is None:
                    self._say(_error(message["id"], _CONNECTION_CLOSED, f"the MCP door failed: {failure}"))
                    return
            await asyncio.sleep(pause_s)

    async def _attempt(self, message: dict[str, Any], headers: list[tuple[str, str]]) -> None:
        last_id = ""
        async with self._link.ask("POST", headers, message) as answer:
            async for event in answer.events():
                last_id = event.event_id or last_id
                if event.message is None and not answer.streams:
                    words = f"HTTP status {answer.status}: {event.raw[:300].decode(errors='replace')}"
                    self._say(_error(message["id"], _CONNECTION_CLOSED, words))
                    return
                if event.message is not None:
                    self._learn(message, event.message, answer)
                    self._say(event.message)
                    if event.answers and event.message.get("id") == message["id"]:
                        return
        if not last_id:
            raise ToolServerFailure("lost", "the event stream ended without an answer", reached=True)
        await self._resume(message, last_id)

    async def _resume(self, message: dict[str, Any], last_id: str) -> None:
        """Take up a stream that the server closed before the answer (SEP-1699)."""
        while True:
            await asyncio.sleep(_PAUSES_S[0])
            headers = [*self._headers({}), ("last-event-id", last_id)]
            async with self._link.ask("GET", headers) as answer:
                if not answer.streams:
                    raise ToolServerFailure("lost", f"no stream to go on with: {answer.status}", reached=True)
                async for event in answer.events():
                    last_id = event.event_id or last_id
                    if event.message is not None:
                        self._say(event.message)
                        if event.answers and event.message.get("id") == message["id"]:
                            return

    def _learn(self, asked: Mapping[str, Any], said: Mapping[str, Any], answer: Answer) -> None:
        """What the answer says about later requests: session, version, parameters that ride in headers."""
        result = said.get("result")
        if not isinstance(result, dict):
            return
        content = cast("dict[str, Any]", result)
        if asked["method"] == "initialize":
            self._session, self._version = answer.session, content.get("protocolVersion")
        elif asked["method"] == "tools/list":
            for tool in content.get("tools", []):
                self._param_headers[tool["name"]] = x_mcp_header_map(tool.get("inputSchema"))

    async def _notify(self, message: dict[str, Any]) -> None:
        """Send what has no answer: a notification, or the agent's answer to a server's request."""
        try:
            async with self._link.ask("POST", self._headers(message), message) as answer:
                await answer.body()
        except ToolServerFailure as failure:
            print(f"mcp-bridge: {message.get('method', 'an answer')} was not delivered: {failure}", file=sys.stderr)
        if message.get("method") == "notifications/initialized" and self._session and self._stream is None:
            self._stream = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        """What a server says unasked, where it keeps a stream for that."""
        try:
            async with self._link.ask("GET", self._headers({})) as answer:
                if not answer.streams:
                    return
                async for event in answer.events():
                    if event.message is not None:
                        self._say(event.message)
        except ToolServerFailure as failure:
            print(f"mcp-bridge: the server's own stream ended: {failure}", file=sys.stderr)

    async def _close(self) -> None:
        tasks = [*self._requests.values(), *([self._stream] if self._stream else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session:
            with contextlib.suppress(ToolServerFailure):
                async with self._link.ask("DELETE", self._headers({})):
                    pass

    def _say(self, message: Mapping[str, Any]) -> None:
        self._write.write(json.dumps(message).encode() + b"\n")
        self._write.flush()


def _error(request_id: object, code: int, words: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": words}}


async def run_bridge(url: str) -> None:
    """Bridge standard input and output to the MCP door at `url` until input ends."""
    lines = asyncio.StreamReader(limit=MOST_BYTES)
    pipe = os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), pipe)
    try:
        async with open_connections() as http:
            await Bridge(ToolServerLink(ToolDoor("door", url), http), sys.stdout.buffer).run(lines)
    finally:
        transport.close()


if __name__ == "__main__":
    # The same without the command line's imports: up in a fraction of the time.
    asyncio.run(run_bridge(os.environ["MCP_URL"]))
