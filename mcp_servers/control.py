"""State control over HTTP: list tasks, open, fork, snapshot, restore, hash, diff, grade and drop sessions.

Knows nothing about any domain or about MCP. It has its own bearer key; without it every path answers like one that does
not exist, so an agent can't learn that it is there. Served by serve.py under /control.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_servers.errors import ServerError, SessionUnknown
from mcp_servers.sessions import Sessions
from mcp_servers.world import Task, World

Handler = Callable[[Request], Awaitable[Response]]
MAX_TASKS = 10_000


class Control:
    """The handlers, over one world and its sessions."""

    def __init__(self, world: World, sessions: Sessions) -> None:
        self._world = world
        self._sessions = sessions

    async def tasks(self, request: Request) -> Response:
        """GET tasks?split=&seed=&offset=&count=[&kind=&difficulty=] → {tasks}; `kind` may be repeated.

        Tasks that name no server or system prompt are given this server and its policy.
        """
        query = request.query_params
        numbers = {name: _number(query.get(name, default)) for name, default in NUMBERS.items()}
        if not 0 <= numbers["count"] <= MAX_TASKS or numbers["offset"] < 0:
            raise ValueError(f"count must be 0 to {MAX_TASKS} and offset at least 0, got {numbers}")
        options: dict[str, Any] = {}
        if "kind" in query:
            options["kinds"] = query.getlist("kind")
        if "difficulty" in query:
            options["difficulty"] = _number(query["difficulty"])
        tasks = self._world.tasks(query.get("split", "train"), **numbers, **options)
        told = {"server": self._world.name, "system_prompt": self._world.policy}
        return JSONResponse({"tasks": [told | task for task in tasks]})

    async def open(self, request: Request) -> Response:
        """POST sessions {task?, durable?} → {session_id, session_key}."""
        body = await _body(request)
        task: Any = body.get("task")
        if task is not None and type(task) is not dict:
            raise ValueError(f"the task must be a JSON object as this server listed it, got {type(task).__name__}")
        if task is not None and task.get("server", self._world.name) != self._world.name:
            raise ValueError(f"the task is of the server {task['server']!r}, this one is {self._world.name!r}")
        session = self._sessions.create(
            durable=body.get("durable"), state=self._world.opening(cast("Task | None", task))
        )
        return JSONResponse({"session_id": session.id, "session_key": session.key}, 201)

    async def fork(self, request: Request) -> Response:
        """POST sessions/<id>/fork → {session_id, session_key}."""
        session = self._sessions.fork(request.path_params["id"])
        return JSONResponse({"session_id": session.id, "session_key": session.key}, 201)

    async def snapshot(self, request: Request) -> Response:
        """POST sessions/<id>/snapshot → {snapshot_id}."""
        return JSONResponse({"snapshot_id": self._sessions.snapshot(request.path_params["id"])}, 201)

    async def restore(self, request: Request) -> Response:
        """POST sessions/<id>/restore {snapshot_id} → {hash}."""
        session_id = request.path_params["id"]
        self._sessions.restore(session_id, str((await _body(request)).get("snapshot_id")))
        return JSONResponse({"hash": self._sessions.get(session_id).state.hash()})

    async def hash(self, request: Request) -> Response:
        """GET sessions/<id>/hash → {hash}."""
        return JSONResponse({"hash": self._sessions.get(request.path_params["id"]).state.hash()})

    async def diff(self, request: Request) -> Response:
        """GET sessions/<id>/diff → {diff: {kind: {id: {before, after}}}}."""
        return JSONResponse({"diff": self._sessions.get(request.path_params["id"]).state.diff()})

    async def state(self, request: Request) -> Response:
        """GET sessions/<id>/state → {changes: {kind: {id: entity}}}; with ?kind=&entity= that one as it is now."""
        state = self._sessions.get(request.path_params["id"]).state
        kind, entity = request.query_params.get("kind"), request.query_params.get("entity")
        if kind is not None and entity is not None:
            return JSONResponse({"entity": state.get(kind, entity)})
        return JSONResponse({"changes": state.changes()})

    async def grade(self, request: Request) -> Response:
        """POST sessions/<id>/grade {task, answer} → {passed, value, components, reason}."""
        body = await _body(request)
        if not isinstance(body.get("task"), dict):
            raise ValueError(f"grading needs the task as this server listed it, got {type(body.get('task')).__name__}")
        session = self._sessions.get(request.path_params["id"])
        grade = self._world.grade(session.state, body["task"], body.get("answer") or "")
        return JSONResponse(grade.to_dict())

    async def drop(self, request: Request) -> Response:
        """DELETE sessions/<id> → nothing."""
        self._sessions.drop(request.path_params["id"])
        return Response(status_code=204)

    async def count(self, request: Request) -> Response:
        """GET sessions → {sessions: [id]}."""
        return JSONResponse({"sessions": [session.id for session in self._sessions]})

    def routes(self) -> list[Route]:
        """The paths."""
        one = "/control/sessions/{id}"
        return [
            Route("/control/tasks", self.tasks, methods=["GET"]),
            Route("/control/sessions", self.count, methods=["GET"]),
            Route("/control/sessions", self.open, methods=["POST"]),
            Route(one, self.drop, methods=["DELETE"]),
            *(
                Route(f"{one}/{handler.__name__}", handler, methods=["GET"])
                for handler in (self.hash, self.diff, self.state)
            ),
            *(
                Route(f"{one}/{handler.__name__}", handler, methods=["POST"])
                for handler in (self.fork, self.snapshot, self.restore, self.grade)
            ),
        ]


NUMBERS = {"seed": "0", "offset": "0", "count": "1"}


def control_app(world: World, sessions: Sessions, key: str) -> ASGIApp:
    """The control API as an ASGI app that answers 404 to whoever doesn't hold the key."""
    failures: dict[Any, Any] = {SessionUnknown: _failed(404), ServerError: _failed(409), ValueError: _failed(422)}
    app = Starlette(routes=Control(world, sessions).routes(), exception_handlers=failures | {HTTPException: _not_found})
    wanted = f"Bearer {key}".encode()

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        answer = app if hmac.compare_digest(given, wanted) else JSONResponse({"error": "not found"}, 404)
        await answer(scope, receive, send)

    return guarded


def _failed(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, status)

    return answer


async def _not_found(request: Request, error: Exception) -> Response:
    status = cast("HTTPException", error).status_code
    return JSONResponse({"error": f"no {request.method} {request.url.path} here"}, status)


async def _body(request: Request) -> dict[str, Any]:
    text = await request.body()
    try:
        body: Any = json.loads(text) if text else {}
    except ValueError as error:
        raise ValueError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ValueError(f"the body must be a JSON object, got {type(body).__name__}")
    return cast("dict[str, Any]", body)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"not a whole number: {text!r}") from error
