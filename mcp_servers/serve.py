"""One HTTP server for a world: MCP for agents under `/s/<session key>/mcp`, state control apart, `/health`.

Knows nothing about any domain. MCP is stateless streamable HTTP, both protocol versions through the SDK; the session is
in the path, so nothing depends on a connection. Used by command.py, and by tests that want the ASGI app in process.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.resources import TextResource
from mcp.server.mcpserver.tools import Tool
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, CallToolResult, TextContent, ToolAnnotations
from pydantic import TypeAdapter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_servers.control import control_app
from mcp_servers.errors import CallKeyReused, ServerError, SessionUnknown
from mcp_servers.sessions import Session, Sessions
from mcp_servers.world import World

SESSION = "mcp_servers.session"
FAILURE = "mcp_servers.failure"
KEY_HEADER = "x-idempotency-key"
KEY_META = "harness/idempotency-key"
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
log = logging.getLogger(__name__)


class SessionServer(MCPServer[Any]):
    """The SDK's server with its tool calls run on the session that the request's path names."""

    def __init__(
        self, world: World, sessions: Sessions, *, output_schemas: bool = True, only: Session | None = None
    ) -> None:
        """`only` is the one session of a server that is spoken to over stdio.

        Without `output_schemas` tools answer text alone. Each client session compiles the schema of each tool it calls,
        which takes it longer than all the rest of the call.
        """
        policy = TextResource(uri=f"policy://{world.name}", name="policy", mime_type="text/markdown", text=world.policy)
        super().__init__(
            world.name,
            tools=_tools(world, output_schemas),
            resources=[policy],
            log_level="WARNING",
            subscriptions=False,
        )
        self._sessions = sessions
        self._only = only
        self._structured = output_schemas

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult:
        """Calls a tool once per idempotency key (header or `_meta`); its errors are results that the agent reads."""
        request = context.request_context.request if context else None
        meta = (context.request_context.meta if context else None) or {}
        call_key = (request.headers.get(KEY_HEADER) if request else None) or meta.get(KEY_META)
        session = self._only or cast("Session", request.scope[SESSION] if request else None)
        try:
            result = self._sessions.call(session, name, arguments, str(call_key) if call_key else None)
        except CallKeyReused as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
        except ServerError as error:
            log.error("session %s: %s", session.id, error)
            if request:
                request.scope[FAILURE] = error
            raise MCPError(INTERNAL_ERROR, str(error)) from error
        return CallToolResult(
            content=[TextContent(type="text", text=result.text)],
            structured_content=result.value if self._structured else None,
            is_error=result.is_error,
        )

    def _tool_input_schema(self, name: str) -> dict[str, Any] | None:
        # The SDK asks for it before each call, to check parameters that are sent as headers; no tool here has any.
        return None


class WorldApp:
    """The ASGI app of a world."""

    def __init__(
        self, world: World, sessions: Sessions, control_key: str, *, loopback: bool = True, output_schemas: bool = True
    ) -> None:
        """`loopback` refuses requests that name another host, so no web page gets here by a name of its own."""
        self._world = world
        self._sessions = sessions
        self._control: ASGIApp = control_app(world, sessions, control_key)
        server = SessionServer(world, sessions, output_schemas=output_schemas)
        security = TransportSecuritySettings(
            enable_dns_rebinding_protection=loopback,
            allowed_hosts=[name for host in LOOPBACK_HOSTS for name in (host, f"{host}:*")],
            allowed_origins=[f"http://{host}:*" for host in LOOPBACK_HOSTS],
        )
        self._manager = StreamableHTTPSessionManager(
            server._lowlevel_server,  # pyright: ignore[reportPrivateUsage]
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
            request = {**scope, SESSION: session}
            await self._manager.handle_request(request, receive, _failing(request, send))
        elif parts[1] == "control":
            await self._control(scope, receive, send)
        elif scope["path"] == "/health":
            await _reply(send, 200, {"status": "ok", "server": self._world.name, "sessions": len(self._sessions)})
        else:
            await _reply(send, 404, {"error": "not found"})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self.running():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        self._sessions.close()
        await send({"type": "lifespan.shutdown.complete"})


def _tools(world: World, output_schemas: bool) -> list[Tool]:
    tools: list[Tool] = []
    for name, function in world.toolbox.tools.items():
        text, writes = world.texts[name], name in world.toolbox.writes
        annotations = ToolAnnotations(
            title=text.title,
            read_only_hint=not writes,
            destructive_hint=writes,
            idempotent_hint=not writes or text.idempotent,
            open_world_hint=False,
        )
        tool = Tool.from_function(
            function,
            name=name,
            title=text.title,
            description=text.description,
            # The first parameter is the session's view: filled in here, so agents are not told of it.
            context_kwarg=next(iter(inspect.signature(function).parameters)),
            annotations=annotations,
            structured_output=False,
        )
        if text.output is not None and output_schemas:
            tool.fn_metadata.output_schema = _untitled(TypeAdapter(text.output).json_schema())
        tools.append(tool)
    return tools


def _untitled(schema: Any) -> Any:
    """A JSON schema without the titles that repeat its property names, which are a fifth of its text."""
    if isinstance(schema, dict):
        parts = cast("dict[str, Any]", schema).items()
        return {name: _untitled(part) for name, part in parts if not (name == "title" and isinstance(part, str))}
    return [_untitled(part) for part in cast("list[Any]", schema)] if isinstance(schema, list) else schema


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


async def _reply(send: Send, status: int, body: dict[str, Any]) -> None:
    payload = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(payload)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": payload})
