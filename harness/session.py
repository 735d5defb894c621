"""Tool servers and their sessions: one isolated session a rollout, opened, graded and closed over the control API.

The control key stays here: agents and gateways get a session's MCP address and nothing that could reset or grade it.
It knows nothing about agents, models or scores. Called by rollout.py; servers are started by the command line.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

import aiohttp

from harness.errors import ToolServerError
from harness.process import Process, ProcessSpec, ready_line, start_process
from harness.task import Task, task_from_dict

CONTROL_KEY_VARIABLE = "HARNESS_CONTROL_KEY"
"""A server started by us finds its control key here: command lines can be read by everybody on the machine."""

_TIMEOUT_S = 60.0
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class SessionDoor:
    """How the tool gateway reaches a session."""

    name: str
    """Name of the server."""
    url: str
    """The session's MCP address."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """Sent with every request."""
    repeats_safely: bool = False
    """True where the server keeps the once law: a repeated idempotency key gets the recorded result."""

    def to_dict(self) -> dict[str, Any]:
        """As the gateway's admin API takes it."""
        return {
            "name": self.name,
            "url": self.url,
            "headers": self.headers,
            "repeats_safely": self.repeats_safely,
        }


class Session(Protocol):
    """One rollout's own tool state."""

    @property
    def door(self) -> SessionDoor:
        """How the tool gateway reaches it."""
        ...

    async def grade(self, task: Task, answer: str | None) -> dict[str, Any]:
        """What the server says of the state the agent left and of its answer; raises ToolServerError."""
        ...

    async def close(self) -> None:
        """Drop the state; raises ToolServerError."""
        ...


class SessionSource(Protocol):
    """What a rollout needs of a tool server."""

    @property
    def name(self) -> str:
        """Name of the server."""
        ...

    async def open_session(self, task: Task) -> Session:
        """A fresh session for the task; raises ToolServerError."""
        ...


@dataclass(frozen=True, slots=True)
class ToolServer:
    """A running tool server with a control API. Made by `start_tool_server` or `attach_tool_server`."""

    name: str
    """Name of the server, such as `retail`."""
    url: str
    """Base of its sessions' MCP addresses: `{url}/s/<session key>/mcp`."""
    control: ControlApi
    """Its control API."""
    process: Process | None = None
    """Its process; None when it was attached to."""

    async def tasks(
        self,
        split: str,
        *,
        seed: int = 0,
        offset: int = 0,
        count: int = 1,
        kinds: Sequence[str] = (),
        difficulty: int | None = None,
    ) -> list[Task]:
        """Tasks `offset` to `offset + count` of a split; the same arguments give the same tasks.

        `kinds` and `difficulty` narrow what is drawn where the server knows such; empty and None leave it to it.
        Raises ToolServerError where the server refuses or answers with something else than tasks.
        """
        query: list[tuple[str, str]] = [("split", split), ("seed", str(seed))]
        query += [("offset", str(offset)), ("count", str(count)), *(("kind", kind) for kind in kinds)]
        if difficulty is not None:
            query.append(("difficulty", str(difficulty)))
        answer = await self.control.request("GET", "/control/tasks", query=query)
        listed = answer.get("tasks")
        if not isinstance(listed, list):
            raise self.control.unexpected("GET /control/tasks", f"no list 'tasks' in it: {sorted(answer)}")
        return [task_from_dict(raw, server=self.name) for raw in cast("list[Mapping[str, Any]]", listed)]

    async def open_session(self, task: Task) -> ControlledSession:
        """A fresh session for the task; raises ToolServerError."""
        answer = await self.control.request("POST", "/control/sessions", body={"task": task.to_dict()})
        session_id, session_key = answer.get("session_id"), answer.get("session_key")
        if not isinstance(session_id, str) or not isinstance(session_key, str):
            raise self.control.unexpected("POST /control/sessions", "no texts 'session_id' and 'session_key' in it")
        door = SessionDoor(self.name, f"{self.url}/s/{session_key}/mcp", repeats_safely=True)
        return ControlledSession(door, session_id, self.control)


@dataclass(frozen=True, slots=True)
class ControlledSession:
    """A session of a server with a control API."""

    door: SessionDoor
    """How the tool gateway reaches it."""
    id: str
    """Its id in the control API."""
    control: ControlApi
    """The server's control API."""

    async def grade(self, task: Task, answer: str | None) -> dict[str, Any]:
        """`{passed, value, components, reason}`; raises ToolServerError."""
        body = {"task": task.to_dict(), "answer": answer}
        return await self.control.request("POST", f"/control/sessions/{self.id}/grade", body=body)

    async def state(self, what: str = "state") -> dict[str, Any]:
        """`state`, `hash` or `diff` of the session; raises ToolServerError."""
        return await self.control.request("GET", f"/control/sessions/{self.id}/{what}")

    async def close(self) -> None:
        """Drop the session; raises ToolServerError."""
        await self.control.request("DELETE", f"/control/sessions/{self.id}")


@dataclass(frozen=True, slots=True)
class ControlApi:
    """Calls of one server's control API, over connections that stay open."""

    server: str
    """Name of the server, for messages."""
    url: str
    """Base address."""
    key: str = field(repr=False)
    """Bearer key."""
    http: aiohttp.ClientSession
    """Pooled connections."""

    async def request(
        self, method: str, path: str, *, body: object = None, query: Sequence[tuple[str, str]] = ()
    ) -> dict[str, Any]:
        """One call and its JSON answer; a lost connection is tried again, since no call here harms when repeated.

        Raises ToolServerError for no connection, an error status, or an answer that is no JSON object.
        """
        asked = f"{method} {path}"
        headers = {"authorization": f"Bearer {self.key}"}
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with self.http.request(
                    method, f"{self.url}{path}", json=body, params=query, headers=headers
                ) as response:
                    return await self._answer(asked, response)
            except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
                if attempt == _ATTEMPTS:
                    raise ToolServerError(
                        f"{asked} of the tool server {self.server!r} at {self.url}",
                        f"{type(error).__name__}: {error}",
                        "look whether the server still runs, and into its log",
                    ) from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _answer(self, asked: str, response: aiohttp.ClientResponse) -> dict[str, Any]:
        text = await response.text()
        if response.status >= 400:
            raise self.unexpected(asked, f"status {response.status}: {text[:500]}")
        if response.status == 204 or not text:
            return {}
        try:
            answer = await response.json(content_type=None)
        except ValueError as error:
            raise self.unexpected(asked, f"no JSON in it: {text[:200]!r}") from error
        if not isinstance(answer, dict):
            raise self.unexpected(asked, f"JSON, but no object: {text[:200]!r}")
        return cast("dict[str, Any]", answer)

    def unexpected(self, asked: str, found: str) -> ToolServerError:
        """An answer that isn't what the control API promises."""
        fix = "compare the server with mcp_servers/README.md; it may be of another version"
        return ToolServerError(f"{asked} of the tool server {self.server!r}", f"an answer with {found}", fix)


@asynccontextmanager
async def attach_tool_server(name: str, url: str, control_url: str, control_key: str) -> AsyncGenerator[ToolServer]:
    """Use a server that somebody else runs; raises ToolServerError where its control API doesn't answer."""
    # uvicorn closes idle connections after 5 s; a request on a closing one is lost.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S, sock_connect=5.0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        control = ControlApi(name, control_url.rstrip("/"), control_key, http)
        yield ToolServer(name, url.rstrip("/"), control)


@asynccontextmanager
async def start_tool_server(
    name: str,
    log_folder: Path,
    *,
    module: str | None = None,
    args: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> AsyncGenerator[ToolServer]:
    """Start `python -m mcp_servers.<name>`, or another `module`, on a free port of this machine; stop it on leaving.

    Raises ToolServerError where it says no address, ProcessError where it doesn't start.
    """
    control_key = secrets.token_urlsafe(24)
    spec = ProcessSpec(
        (sys.executable, "-m", module or module_of(name), "--port", "0", *args),
        log_folder / f"tools-{name}.log",
        name=f"tool server {name!r}",
        env={**(environment or {}), CONTROL_KEY_VARIABLE: control_key},
        ready=ready_line('{"'),
    )
    async with start_process(spec) as process:
        addresses = _addresses(name, str(process.ready))
        async with attach_tool_server(name, addresses["url"], addresses["control_url"], control_key) as server:
            yield replace(server, process=process)


def module_of(name: str) -> str:
    """The module that `tools.server` names: a folder of `mcp_servers/`; with a dot any other (`.mine`, `pkg.mine`)."""
    return name.removeprefix(".") if "." in name else f"mcp_servers.{name}"


def _addresses(name: str, line: str) -> dict[str, str]:
    try:
        said = json.loads(line)
    except ValueError:
        said = None
    if not isinstance(said, dict) or not {"url", "control_url"} <= set(cast("dict[str, str]", said)):
        raise ToolServerError(
            f"the addresses of the tool server {name!r}",
            f"its first line of JSON was {line[:200]!r}",
            'make the server print {"url": …, "control_url": …} when it is ready',
        )
    return cast("dict[str, str]", said)
