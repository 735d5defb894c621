"""Task worlds served for tests: in this event loop over real HTTP, or as a process of their own. Imported by tests."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import uvicorn
from starlette.types import Message

from mcp_servers.command import listen
from mcp_servers.serve import WorldApp
from mcp_servers.sessions import Session, Sessions
from mcp_servers.world import World

CONTROL_KEY = "control-key-of-a-test"
SERVERS = sorted(path.parent.name for path in (Path(__file__).parents[1] / "mcp_servers").glob("*/server.py"))
"""Every server that ships: the folders of `mcp_servers/`."""
CLIENT_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


@dataclass(frozen=True, slots=True)
class Served:
    """A world that is being served."""

    url: str
    """Where."""
    sessions: Sessions
    """Its sessions, for looking inside."""

    def door(self, session: Session) -> str:
        """The URL that an agent is given."""
        return f"{self.url}/s/{session.key}/mcp"


def make_world(name: str) -> World:
    """The world of a server, over its generated base."""
    return getattr(import_module(f"mcp_servers.{name}.server"), f"{name}_world")()


@asynccontextmanager
async def serve_world(world: World, sessions: Sessions | None = None) -> AsyncGenerator[Served]:
    """Serves a world on a free port of this machine, in this event loop."""
    sessions = sessions or Sessions(world.base, world.run)
    listening = listen("127.0.0.1", 0)
    app = WorldApp(world, sessions, CONTROL_KEY)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2))
    serving = asyncio.create_task(server.serve([listening]))
    try:
        yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}", sessions)
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, 10)


@dataclass(slots=True)
class Running:
    """A server that runs as a process."""

    process: subprocess.Popen[str]
    """The process."""
    ready: dict[str, str]
    """What its ready line said."""

    def control(self) -> httpx2.Client:
        """A client of its control API."""
        headers = {"authorization": f"Bearer {CONTROL_KEY}"}
        return httpx2.Client(base_url=self.ready["control_url"], headers=headers, timeout=30)


@contextmanager
def run_server(*options: str, name: str = "retail") -> Generator[Running]:
    """`python -m mcp_servers.<name>` as a process; killed on leaving if it still runs."""
    argv = [sys.executable, "-m", f"mcp_servers.{name}", "--control-key", CONTROL_KEY, *options]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, f"the server said nothing and ended: {process.communicate(timeout=10)[1]}"
        yield Running(process, json.loads(line))
    finally:
        process.kill()
        process.communicate(timeout=10)


async def post_call(
    client: aiohttp.ClientSession, door: str, name: str, arguments: dict[str, Any], key: str | None = None
) -> dict[str, Any]:
    """One tools/call as a bare HTTP request of the 2026-07-28 protocol; the result as JSON."""
    params = {"name": name, "arguments": arguments, "_meta": CLIENT_META}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": name,
    }
    if key:
        headers["x-idempotency-key"] = key
    async with client.post(door, json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        return (await response.json())["result"]


async def post_in_memory(
    app: WorldApp, path: str, body: bytes, headers: Sequence[tuple[str, str]], parts: int = 1
) -> tuple[int, bytes]:
    """One POST to a world's app without a socket, its body sent in so many parts; status and body of the answer."""
    size = -(-len(body) // parts)
    waiting = [body[n * size : (n + 1) * size] for n in range(parts)]
    sent: list[Message] = []

    async def receive() -> Message:
        if not waiting:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    async def send(message: Message) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode("utf-8", "replace")) for name, value in headers]
    raw.append((b"content-length", str(len(body)).encode()))
    scope = {"type": "http", "method": "POST", "path": path, "headers": raw, "query_string": b"", "root_path": ""}
    await app(scope | {"scheme": "http", "http_version": "1.1"}, receive, send)
    return int(sent[0]["status"]), b"".join(message.get("body", b"") for message in sent[1:])
