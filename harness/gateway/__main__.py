"""`python -m harness.gateway`: one gateway process, serving until it is told to stop.

It knows nothing about runs or tasks. The admin key comes from HARNESS_ADMIN_KEY, never from the command line, which
everybody on the machine can read; without one it is made and told in the ready file.
Started by the command line through process.py.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import json
import os
import socket
import sys
from pathlib import Path

import uvicorn

from harness.errors import GatewayError, HarnessError
from harness.gateway.app import GatewayConfig, open_gateway
from traces.store import StoreError

ADMIN_KEY_VARIABLE = "HARNESS_ADMIN_KEY"
_BACKLOG = 4096


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.gateway", description="Serve the two doors of rollouts.")
    parser.add_argument("--store", type=Path, required=True, help="span store (traces.db); made where absent")
    parser.add_argument("--engine-url", required=True, help="address of the vLLM server")
    parser.add_argument("--model", required=True, help="name the engine serves the default policy under")
    parser.add_argument("--policy-version", type=int, default=0, help="version of the default policy")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 takes a free one")
    parser.add_argument("--ready-file", type=Path, help="gets one JSON line with the address once it serves")
    parser.add_argument("--engine-timeout-s", type=float, default=600.0, help="longest wait for one answer")
    parser.add_argument("--tool-timeout-s", type=float, default=60.0, help="longest wait for one tool call")
    return parser.parse_args()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket; raises GatewayError."""
    if not _is_loopback(host) and not os.environ.get(ADMIN_KEY_VARIABLE):
        found = f"{host} can be reached from other machines and {ADMIN_KEY_VARIABLE} is not set"
        raise GatewayError(f"listen on {host}", found, f"set {ADMIN_KEY_VARIABLE}, or listen on 127.0.0.1")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # Listening from here on: who reads the ready line may connect before uvicorn has taken over.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        fix = "stop what listens there, or take --port 0"
        raise GatewayError(f"listen on {host}:{port}", error.strerror or str(error), fix) from error
    return listener


def _tell(path: Path | None, url: str, admin_key: str) -> None:
    line = json.dumps({"url": url}) + "\n"
    print(line, end="", flush=True)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps({"url": url, "admin_key": admin_key}) + "\n")


async def _serve(arguments: argparse.Namespace) -> None:
    listener = _listen(arguments.host, arguments.port)
    key = os.environ.get(ADMIN_KEY_VARIABLE)
    config = GatewayConfig(
        store_path=arguments.store,
        engine_url=arguments.engine_url,
        model=arguments.model,
        policy_version=arguments.policy_version,
        engine_timeout_s=arguments.engine_timeout_s,
        tool_timeout_s=arguments.tool_timeout_s,
        **({"admin_key": key} if key else {}),
    )
    async with open_gateway(config) as app:
        host, port = listener.getsockname()[:2]
        app.public_url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        server = uvicorn.Server(
            uvicorn.Config(
                app, http="httptools", lifespan="off", access_log=False, proxy_headers=False, log_level="warning",
                timeout_keep_alive=75, timeout_graceful_shutdown=5, backlog=_BACKLOG,
            )
        )  # fmt: skip
        _tell(arguments.ready_file, app.public_url, config.admin_key)
        await server.serve(sockets=[listener])


def main() -> int:
    """Serve; the exit code is 2 where it could not start."""
    arguments = _arguments()
    try:
        if sys.platform == "win32":
            asyncio.run(_serve(arguments))
        else:
            import uvloop

            uvloop.run(_serve(arguments))
    except (HarnessError, StoreError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
