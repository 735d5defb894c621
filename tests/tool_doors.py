"""A small MCP server with every way of going wrong, and the tool gateway in front of it, over real HTTP. For tests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.gateway.keys import LiveRollout, ToolDoor
from harness.gateway.tools import ToolGateway, open_tool_gateway
from traces.span import Span, new_span_id, new_trace_id


@asynccontextmanager
async def serve(app: ASGIApp) -> AsyncGenerator[str]:
    """Serve an ASGI app on a free port in this event loop; its base URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve([listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, 10)


@dataclass
class Till:
    """A server whose one tool with an effect counts how often it took effect."""

    name: str = "till"
    """Name of the server."""
    remembers: bool = True
    """Whether it keeps the once law: a repeated key gets the recorded result."""
    effects: list[str] = field(default_factory=list)
    """Items that were sold, in order."""
    keys: list[str | None] = field(default_factory=list)
    """Idempotency key of every request to sell that arrived, by header."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """Headers of every request."""
    lose_replies: int = 0
    """How many of the next replies to sales are lost: the connection breaks after the effect."""
    open: asyncio.Event = field(default_factory=asyncio.Event)
    """Lets `wait` end."""
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when `wait` has been called."""
    sold: dict[str, str] = field(default_factory=dict)
    """Recorded results by key."""

    def mcp(self) -> MCPServer:
        """The server's tools."""
        server = MCPServer(self.name)

        @server.tool()
        async def sell(item: str, ctx: Context[Any]) -> str:
            """Sells an item."""
            key = ctx.headers.get("x-idempotency-key") if ctx.headers else None
            self.keys.append(key)
            if self.remembers and key in self.sold:
                return self.sold[key]
            self.effects.append(item)
            self.sold[key or ""] = f"sold {item} as number {len(self.effects)}"
            return self.sold[key or ""]

        @server.tool()
        async def refuse(item: str) -> str:
            """Always refuses."""
            raise ToolError(f"{item} is not for sale")

        @server.tool()
        async def wait() -> str:
            """Answers when it is allowed to."""
            self.waiting.set()
            await self.open.wait()
            return "waited"

        return server

    def app(self, *, stateless: bool = True, json_response: bool = True) -> ASGIApp:
        """The server over HTTP, with replies that get lost on request."""
        inner = self.mcp().streamable_http_app(stateless_http=stateless, json_response=json_response)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await inner(scope, receive, send)
                return
            self.headers.append({k.decode(): v.decode() for k, v in scope["headers"]})
            selling = b"sell" in [v for k, v in scope["headers"] if k == b"mcp-name"]

            async def losing(message: Message) -> None:
                # An answer that is begun and not finished makes uvicorn close the connection.
                if selling and self.lose_replies and message["type"] == "http.response.body":
                    self.lose_replies -= 1
                    return
                await send(message)

            await inner(scope, receive, losing)

        return app


@dataclass
class Gateway:
    """A tool gateway for tests, with live rollouts by key."""

    url: str
    """Base address."""
    inner: ToolGateway
    """The gateway itself."""
    spans: list[Span]
    """Everything it recorded."""
    live: dict[str, LiveRollout]
    """Rollouts by key."""

    def open(self, *doors: ToolDoor, rollout_id: str = "r-1", allowed: Sequence[str] | None = None) -> LiveRollout:
        """Open a rollout over these servers."""
        rollout = LiveRollout(
            rollout_id=rollout_id,
            run_id="run",
            group_id="g",
            task_id="t",
            trace_id=new_trace_id(),
            parent_span_id=new_span_id(),
            model="policy",
            policy_version=0,
            tool_servers=doors,
            allowed_tools=None if allowed is None else frozenset(allowed),
        )
        self.live[rollout.key] = rollout
        return rollout

    def mcp_url(self, rollout: LiveRollout) -> str:
        """The rollout's MCP door."""
        return f"{self.url}/r/{rollout.key}/mcp"


@asynccontextmanager
async def serve_gateway(*, call_timeout_s: float = 20.0) -> AsyncGenerator[Gateway]:
    """A tool gateway over HTTP, in this event loop."""
    spans: list[Span] = []
    live: dict[str, LiveRollout] = {}

    async def record(span: Span) -> None:
        spans.append(span)

    async with open_tool_gateway(record, call_timeout_s=call_timeout_s) as inner:

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await receive()
                await send({"type": "lifespan.startup.complete"})
                await receive()
                await send({"type": "lifespan.shutdown.complete"})
                return
            await inner.handle_mcp(live[scope["path"].split("/")[2]], scope, receive, send)

        async with serve(app) as url:
            yield Gateway(url, inner, spans, live)


def door(url: str, name: str = "till", *, repeats_safely: bool = True) -> ToolDoor:
    """The door of a served `Till`."""
    return ToolDoor(name, f"{url}/mcp", repeats_safely=repeats_safely)
