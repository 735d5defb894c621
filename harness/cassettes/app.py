"""The cassette server's ASGI app: MCP for agents under `/s/<session key>/mcp`, the control API apart, `/health`.

The same paths and answers as a server of `mcp_servers/` (its README says which), so that nothing else needs to know.
It knows nothing about how calls are answered: deck.py does. Served by __main__.py and by tests.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import mcp_types
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.cassettes.deck import Deck, Misses
from harness.cassettes.shelf import Shelf
from harness.errors import HarnessError
from traces.cassette import Cassette, RecordedCall

_log = logging.getLogger(__name__)

KEY_HEADER = "x-idempotency-key"
KEY_META = "harness/idempotency-key"
_DECK = "harness.deck"
_FAILURE = "harness.failure"
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class CassetteApp:
    """Serves a shelf of cassettes."""

    def __init__(self, shelf: Shelf, misses: Misses, control_key: str) -> None:
        self._shelf = shelf
        self._misses = misses
        self._decks: dict[str, Deck] = {}
        self._keys: dict[str, str] = {}
        server: Server[Any] = Server("cassettes", version="1", get_tool_input_schema=lambda _name: None)
        server.add_request_handler("tools/list", mcp_types.PaginatedRequestParams, _list_tools)
        server.add_request_handler("tools/call", mcp_types.CallToolRequestParams, _call_tool)
        self._mcp = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
        self._control = self._control_app(control_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        parts = scope["path"].split("/")
        if len(parts) == 4 and parts[1] == "s" and parts[3] == "mcp":
            deck = self._decks.get(self._keys.get(parts[2], ""))
            if deck is None:
                error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "no such session"}}
                await JSONResponse(error, 404)(scope, receive, send)
                return
            request = {**scope, _DECK: deck}
            await self._mcp.handle_request(request, receive, _failing(request, receive, send))
        elif parts[1] == "control":
            await self._control(scope, receive, send)
        else:
            known = scope["path"] == "/health"
            answer = {"status": "ok", "cassettes": len(self._shelf)} if known else {"error": "not found"}
            await JSONResponse(answer, 200 if known else 404)(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Requests can be answered while this is entered."""
        async with self._mcp.run():
            yield

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self.running():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def _control_app(self, key: str) -> ASGIApp:
        one = "/control/sessions/{id}"
        routes = [
            Route("/control/tasks", self._tasks, methods=["GET"]),
            Route("/control/sessions", self._open, methods=["POST"]),
            Route(f"{one}/grade", self._grade, methods=["POST"]),
            Route(one, self._drop, methods=["DELETE"]),
        ]
        app = Starlette(routes=routes, exception_handlers={ValueError: _failed(422), HarnessError: _failed(502)})
        wanted = f"Bearer {key}".encode()

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            answer = app if hmac.compare_digest(given, wanted) else JSONResponse({"error": "not found"}, 404)
            await answer(scope, receive, send)

        return guarded

    async def _tasks(self, request: Request) -> Response:
        query = request.query_params
        numbers = {name: int(query.get(name, default)) for name, default in (("seed", 0), ("offset", 0), ("count", 1))}
        return JSONResponse(
            {"tasks": self._shelf.tasks(query.get("split", "train"), kinds=query.getlist("kind"), **numbers)}
        )

    async def _open(self, request: Request) -> Response:
        task = (await _body(request)).get("task")
        if not isinstance(task, dict):
            raise ValueError("a session of recorded results needs the task that was recorded: {'task': …}")
        cassette = self._shelf.cassette(str(cast("Mapping[str, Any]", task).get("id")))
        deck, key = Deck(secrets.token_hex(8), cassette, self._misses), secrets.token_urlsafe(24)
        self._decks[deck.id], self._keys[key] = deck, deck.id
        return JSONResponse({"session_id": deck.id, "session_key": key}, 201)

    async def _grade(self, request: Request) -> Response:
        body = await _body(request)
        return JSONResponse(await self._deck(request).grade(str(body.get("answer") or "")))

    async def _drop(self, request: Request) -> Response:
        deck = self._deck(request)
        self._keys = {key: name for key, name in self._keys.items() if name != deck.id}
        del self._decks[deck.id]
        await deck.close()
        return Response(status_code=204)

    def _deck(self, request: Request) -> Deck:
        session_id = request.path_params["id"]
        if session_id not in self._decks:
            raise ValueError(f"no session {session_id!r}")
        return self._decks[session_id]


async def _list_tools(ctx: ServerRequestContext[Any, Any], _params: object) -> dict[str, Any]:
    tools = mcp_tools(_deck_of(ctx).cassette)
    return {"tools": tools, "ttlMs": 0, "cacheScope": "private", "resultType": "complete"}


async def _call_tool(ctx: ServerRequestContext[Any, Any], params: mcp_types.CallToolRequestParams) -> dict[str, Any]:
    request = cast("Request", ctx.request)
    meta = cast("Mapping[str, Any]", (ctx.params or {}).get("_meta") or {})
    key = request.headers.get(KEY_HEADER) or meta.get(KEY_META)
    try:
        call = await _deck_of(ctx).call(params.name, params.arguments or {}, str(key) if key else None)
    except HarnessError as error:
        _log.error("%s: %s", error.asked, error.found)
        request.scope[_FAILURE] = error
        raise MCPError(mcp_types.INTERNAL_ERROR, error.found) from error
    content = [{"type": "text", "text": call.result}]
    return {"content": content, "isError": call.is_error, "resultType": "complete"}


def _deck_of(ctx: ServerRequestContext[Any, Any]) -> Deck:
    return cast("Deck", cast("Request", ctx.request).scope[_DECK])


def mcp_tools(cassette: Cassette) -> list[dict[str, Any]]:
    """The recorded tool definitions in MCP's wire form; of tools that only calls show, what their arguments tell."""
    functions = [cast("Mapping[str, Any]", tool.get("function") or {}) for tool in cassette.tools]
    defined = {str(function.get("name")) for function in functions}
    undefined = dict.fromkeys(call.name for call in cassette.calls if call.name not in defined)
    tools: list[dict[str, Any]] = []
    for function in (*functions, *(_seen_function(cassette, name) for name in undefined)):
        made: dict[str, Any] = {
            "name": function.get("name"),
            "inputSchema": function.get("parameters") or _NO_PARAMETERS,
            "annotations": {"readOnlyHint": function.get("name") not in cassette.writes},
        }
        if function.get("description"):
            made["description"] = function["description"]
        tools.append(made)
    return tools


def _seen_function(cassette: Cassette, name: str) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for call in cassette.calls:
        if call.name == name:
            properties |= {str(key): {} for key in _arguments(call)}
    return {"name": name, "parameters": {"type": "object", "properties": properties}}


def _arguments(call: RecordedCall) -> dict[str, Any]:
    try:
        arguments: Any = json.loads(call.arguments or "{}")
    except ValueError:
        return {}  # broken JSON names no parameter
    return cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {}


def _failing(request: Scope, receive: Receive, send: Send) -> Send:
    """Sends answers, but status 503 in place of one where a miss could not be answered.

    As an MCP error the agent would read it and be judged by it; as a failed request it is the infrastructure's.
    """

    async def sent(message: Message) -> None:
        failure = request.get(_FAILURE)
        if failure is None:
            await send(message)
        elif message["type"] == "http.response.start":
            await JSONResponse({"error": str(failure)}, 503)(request, receive, send)

    return sent


def _failed(status: int) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        del request
        return JSONResponse({"error": str(error)}, status)

    return answer


async def _body(request: Request) -> dict[str, Any]:
    body: Any = json.loads(await request.body() or b"{}")
    if not isinstance(body, dict):
        raise ValueError(f"the body must be a JSON object, got {type(body).__name__}")
    return cast("dict[str, Any]", body)
