"""Model gateways to be measured beside each other, each in its own process before the same stand-in for the engine.

Ours, the engine without any, and the peers that are installed: `HARNESS_BENCH_PEERS` names a virtual environment with
`litellm[proxy]` and `rllm-model-gateway` in it. For benchmarks.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from harness.gateway.client import attach_gateway
from harness.guardian import descendants
from harness.process import Process, ProcessSpec, Ready, ready_file, ready_line, start_process
from traces.span import new_trace_id

REPO = Path(__file__).resolve().parents[1]
ADMIN_KEY = "benchmark"
PEERS = os.environ.get("HARNESS_BENCH_PEERS", "")

BaseUrl = Callable[[int], Awaitable[str]]
"""Number of a conversation → base address (with /v1) of a new one."""


@dataclass
class Side:
    """A gateway, or the engine itself."""

    name: str
    """What the tables call it."""
    process: Process
    """Its process."""
    base_url: BaseUrl
    """Where conversations ask."""

    def pin(self, core: int) -> None:
        """Keep it on one core."""
        for pid in descendants(self.process.pid):
            pin(pid, core)

    def cpu_s(self) -> float:
        """Processor time of the process and its children so far."""
        ticks = 0
        for pid in descendants(self.process.pid):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def pin(pid: int, core: int) -> None:
    """Keep a process with all its threads on one of the machine's cores."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core % (os.cpu_count() or 1)})


@asynccontextmanager
async def start_engine_side(folder: Path) -> AsyncGenerator[Side]:
    """The stand-in for the engine."""
    log = folder / "engine"
    spec = ProcessSpec([sys.executable, "-m", "tests.fast_engine"], log, cwd=REPO, ready=ready_line(""))
    async with start_process(spec) as engine:
        yield Side("engine", engine, _always(f"http://127.0.0.1:{engine.ready}/v1"))


@asynccontextmanager
async def start_gateway_side(folder: Path, engine_url: str, model: str = "base") -> AsyncGenerator[Side]:
    """Our gateway."""
    ready = folder / "gateway.json"
    argv = [sys.executable, "-m", "harness.gateway", "--store", str(folder / "traces.db"), "--engine-url", engine_url]
    argv += ["--model", model, "--ready-file", str(ready)]
    env = {"HARNESS_ADMIN_KEY": ADMIN_KEY}
    spec = ProcessSpec(argv, folder / "gateway", env=env, ready=ready_file(ready))
    async with start_process(spec) as gateway, attach_gateway(gateway.ready["url"], ADMIN_KEY) as admin:

        async def open_one(number: int) -> str:
            fields = {"run_id": "bench", "group_id": "g", "task_id": "t", "trace_id": new_trace_id(), "model": model}
            opened = await admin.open_rollout({"rollout_id": f"r-{time.time_ns()}-{number}", **fields})
            return opened.model_url

        yield Side("gateway", gateway, open_one)


@asynccontextmanager
async def start_peers(folder: Path, engine_url: str) -> AsyncGenerator[list[Side]]:
    """LiteLLM's proxy and rLLM's gateway, those that are installed in the peers' environment."""
    starts = {"litellm": _start_litellm, "rllm-model-gateway": _start_rllm}
    async with AsyncExitStack() as stack:
        peers: list[Side] = []
        for program, start in starts.items():
            path = Path(PEERS) / "bin" / program
            if PEERS and engine_url and path.exists():
                peers.append(await stack.enter_async_context(start(path, folder, engine_url)))
        yield peers


@asynccontextmanager
async def _start_litellm(program: Path, folder: Path, engine_url: str) -> AsyncGenerator[Side]:
    port, config = _free_port(), folder / "litellm.json"
    parameters = {"model": "openai/base", "api_base": engine_url, "api_key": "none"}
    config.write_text(json.dumps({"model_list": [{"model_name": "m", "litellm_params": parameters}]}))
    argv = [str(program), "--config", str(config), "--port", str(port), "--host", "127.0.0.1", "--telemetry", "False"]
    spec = ProcessSpec(
        argv, folder / "litellm", name="litellm", cwd=folder, ready=_answers(port, "/health/liveliness"),
        ready_timeout_s=180,
        env={
            "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        },
    )  # fmt: skip
    async with start_process(spec) as process:
        yield Side("LiteLLM proxy", process, _always(f"http://127.0.0.1:{port}/v1"))


@asynccontextmanager
async def _start_rllm(program: Path, folder: Path, engine_url: str) -> AsyncGenerator[Side]:
    port = _free_port()
    argv = [str(program), "--port", str(port), "--host", "127.0.0.1", "--worker", engine_url]
    argv += ["--store", "sqlite", "--db-path", str(folder / "rllm.db")]
    spec = ProcessSpec(argv, folder / "rllm", name="rllm", cwd=folder, ready=_answers(port, "/health"))

    async def open_one(number: int) -> str:
        return f"http://127.0.0.1:{port}/sessions/s-{time.time_ns()}-{number}/v1"

    async with start_process(spec) as process:
        yield Side("rLLM gateway", process, open_one)


def _always(url: str) -> BaseUrl:
    async def base_url(_: int) -> str:
        return url

    return base_url


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def _answers(port: int, path: str) -> Ready:
    async def ready(_: Process) -> bool | None:
        try:
            async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}{path}") as response:
                return True if response.status == 200 else None
        except (TimeoutError, aiohttp.ClientError):
            return None

    return ready
