"""`python -m harness.cassettes FILE`: serves recorded tasks until it is told to stop.

One JSON line says that it is ready: `{"url": …, "control_url": …}`. The control key comes from HARNESS_CONTROL_KEY and
not from the command line, which everybody on the machine can read. Loopback only. Started by stack.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import uvicorn

from harness.cassettes.app import CassetteApp
from harness.cassettes.deck import Misses, Refuse
from harness.cassettes.live import LiveServer, LiveUrl
from harness.cassettes.shelf import Shelf
from harness.cassettes.simulate import Simulate
from harness.errors import ConfigError, HarnessError
from harness.process import ProcessError
from harness.scoring.judge import Judge
from harness.scoring.litellm_call import JudgeSpec
from harness.session import CONTROL_KEY_VARIABLE, start_tool_server
from traces.cassette import CassetteError, load_cassettes

# Longer than any client of ours lets a connection rest, so that none meets a close it didn't expect.
_KEEP_ALIVE_S = 600
_HOST = "127.0.0.1"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.cassettes", description="Serve recorded tasks.")
    parser.add_argument("file", type=Path, help="cassettes, one a line")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 takes a free one")
    parser.add_argument("--on-miss", choices=("refuse", "simulate", "live"), default="refuse")
    parser.add_argument("--simulator", help="LiteLLM model string that plays the tools, for simulate")
    parser.add_argument("--simulator-api-base", help="address of an OpenAI-compatible endpoint for it")
    parser.add_argument("--live", help="a folder of mcp_servers/ to start, for live")
    parser.add_argument("--live-arg", action="append", default=[], help="argument of that server; repeatable")
    parser.add_argument("--live-url", help="MCP address of a running server, for live")
    parser.add_argument("--logs", type=Path, default=Path("."), help="folder of the live server's log")
    return parser.parse_args(argv)


@contextlib.asynccontextmanager
async def open_misses(options: argparse.Namespace) -> AsyncGenerator[Misses]:
    """What answers calls that are not on record; raises ConfigError where it isn't named."""
    if options.on_miss == "refuse":
        yield Refuse()
    elif options.on_miss == "simulate":
        if not options.simulator:
            raise ConfigError("--on-miss simulate", "no model that plays the tools", "name one: --simulator MODEL")
        yield Simulate(Judge(JudgeSpec(model=options.simulator, api_base=options.simulator_api_base)))
    elif options.live_url:
        yield LiveUrl(options.live_url)
    elif options.live:
        async with start_tool_server(options.live, options.logs, args=options.live_arg) as server:
            yield LiveServer(server)
    else:
        raise ConfigError("--on-miss live", "no live server", "name one: --live retail, or --live-url URL")


def open_shelf(file: Path) -> Shelf:
    """The cassettes of a file; raises ConfigError where it can't be read or holds none."""
    fix = "make one with: harness traces cassettes RUN FILE"
    try:
        cassettes = load_cassettes(file)
    except (CassetteError, OSError) as error:
        raise ConfigError(f"the cassettes {file}", str(error), fix) from error
    if not cassettes:
        raise ConfigError(f"the cassettes {file}", "the file is empty", fix)
    return Shelf(cassettes)


async def _serve(options: argparse.Namespace) -> None:
    shelf = open_shelf(options.file)
    key = os.environ.get(CONTROL_KEY_VARIABLE) or secrets.token_urlsafe(24)
    async with open_misses(options) as misses:
        listening = socket.create_server((_HOST, options.port), backlog=1024)
        url = f"http://{_HOST}:{listening.getsockname()[1]}"
        ready = {"url": url, "control_url": url}
        if CONTROL_KEY_VARIABLE not in os.environ:
            ready["control_key"] = key
        config = uvicorn.Config(
            CassetteApp(shelf, misses, key), log_level="warning", access_log=False, timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=5, server_header=False, date_header=False,
        )  # fmt: skip
        print(json.dumps(ready), flush=True)
        await uvicorn.Server(config).serve([listening])


def main(argv: Sequence[str] | None = None) -> int:
    """Serve; the exit code is 2 where it could not start."""
    try:
        asyncio.run(_serve(_arguments(argv)))
    except (HarnessError, ProcessError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
