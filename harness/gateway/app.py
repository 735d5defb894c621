"""The one ASGI application of a gateway process: which request goes to which door.

    /r/<key>/v1/…   the model door of the rollout with that key     (model.py)
    /r/<key>/mcp    its tool door                                   (tools.py)
    /r/<key>/otlp   its span door                                   (otlp_door.py)
    /v1/…           the model door for clients with a fixed path; the key comes as bearer or `x-api-key`
    /admin/…        open, seal, policy, pause, resume; admin key    (admin.py)
    /health         is it alive

It knows nothing about what the doors do. Served by __main__.py; tests call it in memory.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from starlette.types import Receive, Scope, Send

from harness.gateway.admin import AdminApi, Doors, Policy
from harness.gateway.answering import Answerer
from harness.gateway.failures import Failure, FailureKind
from harness.gateway.gate import Gate
from harness.gateway.http import BodyTooLarge, ClientGone, header, send_json
from harness.gateway.keys import KeyRing, LiveRollout, SealedKey, UnknownKey
from harness.gateway.model import ModelGateway, speaks
from harness.gateway.otlp_door import SpanDoor
from harness.gateway.tools import open_tool_gateway
from harness.gateway.upstream import open_upstream
from traces.span import Span
from traces.store import Store
from traces.writer import StoreWriter


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """What a gateway process is to serve."""

    store_path: Path
    """Span store that it appends to; made where it is absent."""
    engine_url: str
    """Address of the engine."""
    model: str
    """Policy of rollouts that name none: the name the engine serves."""
    policy_version: int = 0
    """Version of that policy."""
    admin_key: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """Key of the admin API."""
    engine_timeout_s: float = 600.0
    """Longest wait for one answer of the engine."""
    tool_timeout_s: float = 60.0
    """Longest wait for one tool call with all its attempts."""


class GatewayApp:
    """The ASGI application. Made by `open_gateway`."""

    def __init__(self, doors: Doors, admin: AdminApi) -> None:
        self.doors = doors
        self.admin = admin
        self.public_url = "http://127.0.0.1"
        """Base address that agents are told; set once the port is known."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        try:
            if path.startswith("/r/"):
                key, _, rest = path[3:].partition("/")
                await self._door(key, rest, scope, receive, send)
            elif path.startswith("/v1/"):
                await self._door(_given_key(scope), path[1:], scope, receive, send)
            elif path.startswith("/admin/"):
                await self.admin.handle_admin(path[len("/admin") :], scope, receive, send)
            elif path == "/health":
                await send_json(send, 200, b'{"status": "ok"}')
            else:
                await _refuse(send, path, 404, f"there is nothing at {path!r}")
        except BodyTooLarge:
            await _refuse(send, path, 413, "the body is too long")
        except ClientGone:
            return

    async def _door(self, key: str, rest: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            rollout = self.doors.keys.find(key)
        except UnknownKey:
            await _refuse(send, rest, 401, "no rollout has this key")
            return
        except SealedKey:
            await _refuse(send, rest, 410, "this rollout has ended; its key is dead")
            return
        await self._enter(rollout, rest, scope, receive, send)

    async def _enter(self, rollout: LiveRollout, rest: str, scope: Scope, receive: Receive, send: Send) -> None:
        if rest.startswith("v1/"):
            await self.doors.model.handle_model(rollout, rest[2:], scope, receive, send)
        elif rest.rstrip("/") == "mcp":
            await self.doors.tools.handle_mcp(rollout, scope, receive, send)
        elif rest == "otlp/v1/traces":
            await self.doors.spans.handle_otlp(rollout, rest[len("otlp") :], scope, receive, send)
        else:
            await _refuse(send, rest, 404, f"there is no door {rest!r}; use v1, mcp or otlp/v1/traces")


def _given_key(scope: Scope) -> str:
    return header(scope, b"x-api-key") or header(scope, b"authorization").removeprefix("Bearer ")


async def _refuse(send: Send, path: str, status: int, message: str) -> None:
    kinds: dict[int, FailureKind] = {404: "not_found_error", 413: "request_too_large"}
    failure = Failure(status, message, kinds.get(status, "authentication_error"))
    content = speaks(path.removeprefix("v1")).write_error(failure)
    await send_json(send, status, content, {b"x-should-retry": b"false"})


@asynccontextmanager
async def open_gateway(config: GatewayConfig) -> AsyncGenerator[GatewayApp]:
    """The application with its store, its engine and its tool gateway, for as long as the block runs.

    Raises StoreError where the store can't be opened.
    """
    with Store(config.store_path) as store:
        async with (
            StoreWriter(store) as writer,
            open_upstream(config.engine_url, timeout_s=config.engine_timeout_s) as upstream,
        ):

            async def record_one(span: Span) -> None:
                await writer.append([span])

            async with open_tool_gateway(record_one, call_timeout_s=config.tool_timeout_s) as tools:
                gate = Gate()
                doors = Doors(
                    KeyRing(),
                    ModelGateway(Answerer(upstream, writer.append, gate)),
                    tools,
                    SpanDoor(writer.append),
                    gate,
                )
                policy = Policy(config.model, config.policy_version)
                app = GatewayApp(doors, AdminApi(doors, config.admin_key, lambda: app.public_url, policy))
                yield app
