"""One HTTP server for a world: MCP for agents under `/s/<session key>/mcp`, state control apart, `/health`.

Knows nothing about any domain. MCP is stateless streamable HTTP in both protocol versions, the session is in the path:
nothing depends on a connection. Plain tool calls are answered at once, all else by the SDK. Used by command.py, tests.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_servers.control import control_app
from mcp_servers.errors import CallKeyReused, ServerError, SessionUnknown
from mcp_servers.plain_calls import plain_call, plain_headers
from mcp_servers.session_server import FAILURE, KEY_HEADER, SESSION, SessionServer
from mcp_servers.sessions import Session, Sessions
from mcp_servers.world import World

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
log = logging.getLogger(__name__)


class WorldApp:
    """The ASGI app of a world."""

    def __init__(
        self,
        world: World,
        sessions: Sessions,
        control_key: str,
        *,
        loopback: bool = True,
        output_schemas: bool = True,
        sdk_only: bool = False,
    ) -> None:
        """`loopback` refuses requests that name another host, so no web page gets here by a name of its own.

        `sdk_only` leaves plain calls to the SDK too; the answers are the same.
        """
        self._world = world
        self._sessions = sessions
        self._control: ASGIApp = control_app(world, sessions, control_key)
        self._hosts = LOOPBACK_HOSTS if loopback else None
        self._sdk_only = sdk_only
        self._server = SessionServer(world, sessions, output_schemas=output_schemas)
        security = TransportSecuritySettings(
            enable_dns_rebinding_protection=loopback,
            allowed_hosts=[name for host in LOOPBACK_HOSTS for name in (host, f"{host}:*")],
            allowed_origins=[f"http://{host}:*" for host in LOOPBACK_HOSTS],
        )
        self._manager = StreamableHTTPSessionManager(
            self._server._lowlevel_server,  # pyright: ignore[reportPrivateUsage]
            json_response=True,
            stateless=True,
            security_settings=security,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Requests can be answered while this is entered."""
        async with self._manager.run():
            yield

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = scope["path"].split("/")
        if len(parts) == 4 and parts[1] == "s" and parts[3] == "mcp":
            try:
                session = self._sessions.by_key(parts[2])
            except SessionUnknown as error:
                await _reply(
                    send, 404, {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": str(error)}}
                )
                return
            await self._mcp(session, scope, receive, send)
        elif parts[1:2] == ["control"]:
            await self._control(scope, receive, send)
        elif scope["path"] == "/health":
            await _reply(send, 200, {"status": "ok", "server": self._world.name, "sessions": len(self._sessions)})
        else:
            await _reply(send, 404, {"error": "not found"})

    async def _mcp(self, session: Session, scope: Scope, receive: Receive, send: Send) -> None:
        # HTTP counts no space around a value as part of it; httptools leaves it there.
        scope["headers"] = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        headers = None if self._sdk_only else plain_headers(scope, self._hosts)
        if headers is not None:
            body, receive = await _received(receive)
            call = plain_call(headers, body)
            if call is not None:
                try:
                    await _send_json(send, 200, await self._server.answer_plain(session, call, headers.get(KEY_HEADER)))
                    return
                except CallKeyReused:
                    log.debug("session %s: the SDK words this refusal", session.id)
                except ServerError as error:
                    await _reply(send, 503, {"error": str(error)})
                    return
        request = {**scope, SESSION: session}
        await self._manager.handle_request(request, receive, _failing(request, send))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self.running():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        self._sessions.close()
        await send({"type": "lifespan.shutdown.complete"})


def _failing(request: Scope, send: Send) -> Send:
    """Sends answers, but status 503 in place of one where the server itself failed.

    As an MCP error the agent would read it and be judged by it; as a failed request it is the infrastructure's.
    """

    async def sent(message: Message) -> None:
        failure = request.get(FAILURE)
        if failure is None:
            await send(message)
        elif message["type"] == "http.response.start":
            await _reply(send, 503, {"error": str(failure)})

    return sent


async def _received(receive: Receive) -> tuple[bytes, Receive]:
    """A request's whole body, and a `receive` that gives it once more."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        body += message.get("body", b"")
        more = message.get("more_body", False)
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": more}

    return body, again


async def _reply(send: Send, status: int, body: dict[str, Any]) -> None:
    await _send_json(send, status, json.dumps(body).encode())


async def _send_json(send: Send, status: int, payload: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(payload)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": payload})
