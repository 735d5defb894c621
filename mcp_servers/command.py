"""`python -m mcp_servers.<name>`: reads the command line, opens the socket, says where it listens, serves, stops.

Knows nothing about any domain: each server's `__main__.py` hands over how to make its world. One JSON line on standard
output (and in --ready-file) says that it is ready: `{"url": …, "control_url": …}`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import uvicorn

from mcp_servers.errors import ServerError
from mcp_servers.journal import Journal
from mcp_servers.serve import WorldApp
from mcp_servers.session_server import SessionServer
from mcp_servers.sessions import Sessions
from mcp_servers.world import World

CONTROL_KEY_VARIABLE = "HARNESS_CONTROL_KEY"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
# An idle connection is kept longer than any client of ours lets one rest, so that none meets a close it didn't expect.
KEEP_ALIVE_S = 600


def arguments(name: str, description: str) -> argparse.ArgumentParser:
    """The options that every server has; a server adds its own."""
    parser = argparse.ArgumentParser(f"python -m mcp_servers.{name}", description=description)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; not loopback needs --control-key")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument(
        "--control-key", help=f"key of the state control API (default: ${CONTROL_KEY_VARIABLE}, or made up)"
    )
    parser.add_argument("--ready-file", type=Path, help="also write the ready line to this file")
    parser.add_argument("--db", type=Path, help="base database to open (default: one generated from --seed)")
    parser.add_argument("--write-db", type=Path, help="write the base database to this file and stop")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generated base")
    parser.add_argument("--sessions", type=Path, help="SQLite file in which sessions survive a crash")
    parser.add_argument("--stdio", action="store_true", help="serve one session on standard input and output instead")
    parser.add_argument(
        "--output-schemas",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="answer structured content beside text, with schemas that clients check (costs them time)",
    )
    parser.add_argument("--idle-s", type=float, default=3600.0, help="an unused session lives this long")
    return parser


def main(
    parser: argparse.ArgumentParser,
    make_world: Callable[[argparse.Namespace], World],
    argv: Sequence[str] | None = None,
) -> None:
    """Runs a server until it is told to stop. Exit code 1 and one message where it can't be started."""
    options = parser.parse_args(argv)
    try:
        world = make_world(options)
        if options.write_db:
            world.base.write(options.write_db)
            return
        if options.stdio:
            sessions = _sessions(options, world)
            SessionServer(world, sessions, output_schemas=options.output_schemas, only=sessions.create()).run("stdio")
        else:
            with asyncio.Runner(loop_factory=uvicorn.Config("").get_loop_factory()) as runner:
                runner.run(_serve(options, world))
    except (ServerError, ValueError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")
    except KeyboardInterrupt:
        return


class _Server(uvicorn.Server):
    """uvicorn's server, saying when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Stops gracefully, with exit code 0, on SIGTERM and SIGINT; uvicorn's own would raise the signal again."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._ready()


async def _serve(options: argparse.Namespace, world: World) -> None:
    key, made_up = _control_key(options)
    sessions = _sessions(options, world)
    listening = listen(options.host, options.port)
    port = listening.getsockname()[1]
    host = f"[{options.host}]" if ":" in options.host else options.host
    ready = {"url": f"http://{host}:{port}", "control_url": f"http://{host}:{port}"}
    if made_up:
        ready["control_key"] = key
    app = WorldApp(world, sessions, key, loopback=options.host in LOOPBACK, output_schemas=options.output_schemas)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=5,
        server_header=False,
        date_header=False,
    )
    await _Server(config, lambda: _announce(ready, options.ready_file)).serve([listening])


def _sessions(options: argparse.Namespace, world: World) -> Sessions:
    journal = Journal(options.sessions, world.base) if options.sessions else None
    return Sessions(world.base, world.run, journal=journal, idle_s=options.idle_s)


def _announce(ready: dict[str, str], ready_file: Path | None) -> None:
    line = json.dumps(ready)
    if ready_file:
        part = ready_file.with_name(f"{ready_file.name}.part")
        part.write_text(line + "\n", encoding="utf-8")
        part.replace(ready_file)
    print(line, flush=True)


def _control_key(options: argparse.Namespace) -> tuple[str, bool]:
    """The key, and whether it was made up here."""
    given = options.control_key or os.environ.get(CONTROL_KEY_VARIABLE)
    if given:
        return given, False
    if options.host not in LOOPBACK:
        fix = f"give --control-key or set {CONTROL_KEY_VARIABLE}, or listen on 127.0.0.1"
        raise ServerError(f"listen on {options.host}", "an address that others can reach, and no control key", fix)
    return secrets.token_urlsafe(24), True


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket. ServerError where the address can't be had, for instance because the port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, so that asyncio turns Nagle's algorithm off: with it, answers wait 40 ms for an acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        fix = "give another --port (0 takes a free one) or --host, or stop what listens there"
        raise ServerError(f"listen on {host}:{port}", error.strerror or str(error), fix) from error
    return listening
