"""What the model gateway adds to a call: latency, CPU, and calls a second, with every token on disk before the answer.

Against a fast stand-in for the engine, asked directly in the same run. Run by `make bench`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from harness.gateway.client import GatewayClient, attach_gateway
from harness.guardian import descendants
from harness.process import Process, ProcessSpec, ready_file, ready_line, start_process
from tests.model_doors import TOOLS
from traces.span import new_trace_id

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(900)]

REPO = Path(__file__).resolve().parents[2]
KEY = "benchmark"
CALLS = 1500
TURNS = 8
BODY = {"model": "m", "messages": [{"role": "system", "content": "rules " * 200}, {"role": "user", "content": "go"}]}


@dataclass
class Side:
    """What is measured: the engine itself, or the gateway before it."""

    name: str
    process: Process
    admin: GatewayClient | None = None
    engine_url: str = ""

    def cpu_s(self) -> float:
        """Processor time of the served process so far."""
        ticks = 0
        for pid in descendants(self.process.pid):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    async def chat_url(self, number: int) -> str:
        """Where a new conversation asks."""
        if self.admin is None:
            return f"{self.engine_url}/v1/chat/completions"
        fields = {"run_id": "bench", "group_id": "g", "task_id": "t", "trace_id": new_trace_id(), "model": "base"}
        opened = await self.admin.open_rollout({"rollout_id": f"r-{time.time_ns()}-{number}", **fields})
        return f"{opened.model_url}/chat/completions"


@asynccontextmanager
async def sides(folder: Path) -> AsyncGenerator[tuple[Side, Side]]:
    log = folder / "logs"
    engine_spec = ProcessSpec(
        [sys.executable, "-m", "tests.fast_engine"], log / "engine", cwd=REPO, ready=ready_line("")
    )
    async with start_process(engine_spec) as engine:
        url = f"http://127.0.0.1:{engine.ready}"
        ready = folder / "gateway.json"
        argv = [sys.executable, "-m", "harness.gateway", "--store", str(folder / "traces.db"), "--engine-url", url]
        spec = ProcessSpec(
            [*argv, "--model", "base", "--ready-file", str(ready)],
            log / "gateway",
            env={"HARNESS_ADMIN_KEY": KEY},
            ready=ready_file(ready),
        )
        async with start_process(spec) as gateway, attach_gateway(gateway.ready["url"], KEY) as admin:
            yield Side("engine", engine, engine_url=url), Side("gateway", gateway, admin)


async def ask(http: aiohttp.ClientSession, url: str, body: bytes) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    async with http.post(url, data=body, headers={"content-type": "application/json"}) as response:
        await response.read()
        assert response.status == 200
    return (time.perf_counter() - start) * 1e3


def tell(title: str, times_ms: list[float], seconds: float, cpu_s: float) -> None:
    ordered, count = sorted(times_ms), len(times_ms)
    p50, p99 = ordered[count // 2], ordered[min(count - 1, int(count * 0.99))]
    cost = cpu_s / count * 1e6
    print(f"{title:<42} p50 {p50:7.2f} ms  p99 {p99:7.2f} ms  {count / seconds:6.0f}/s  {cost:5.0f} µs CPU a call")


@pytest.mark.parametrize("concurrent", [1, 32, 256, 1024])
@pytest.mark.parametrize("stream", [False, True])
async def test_added_latency_and_calls_per_second_of_single_calls(
    tmp_path: Path, concurrent: int, stream: bool
) -> None:
    calls = CALLS if concurrent > 1 else CALLS // 5
    body = msgspec.json.encode({**BODY, "tools": TOOLS, "stream": stream})
    async with sides(tmp_path) as both, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        for side in both:
            url = await side.chat_url(0)
            await asyncio.gather(*(ask(http, url, body) for _ in range(min(concurrent, 64))))
            slots = asyncio.Semaphore(concurrent)

            async def one(url: str = url, slots: asyncio.Semaphore = slots) -> float:
                async with slots:
                    return await ask(http, url, body)

            before, start = side.cpu_s(), time.perf_counter()
            times_ms = await asyncio.gather(*(one() for _ in range(calls)))
            title = f"{side.name}, {concurrent} at once{', streamed' if stream else ''}"
            tell(title, times_ms, time.perf_counter() - start, side.cpu_s() - before)


async def test_the_token_exact_path_over_conversations_of_eight_turns(tmp_path: Path) -> None:
    async with sides(tmp_path) as (_, gateway), aiohttp.ClientSession() as http:
        for concurrent in (1, 32):
            rollouts = 10 if concurrent == 1 else 100
            slots = asyncio.Semaphore(concurrent)
            times_ms: list[float] = []

            async def converse(number: int, slots: asyncio.Semaphore = slots, times_ms: list[float] = times_ms) -> None:
                async with slots:
                    url = await gateway.chat_url(number)
                    messages: list[Any] = list(BODY["messages"])
                    for _ in range(TURNS):
                        body = msgspec.json.encode({"model": "m", "messages": messages, "tools": TOOLS})
                        times_ms.append(await ask(http, url, body))
                        messages += TURN

            await converse(-1)
            times_ms.clear()
            before, start = gateway.cpu_s(), time.perf_counter()
            await asyncio.gather(*(converse(number) for number in range(rollouts)))
            tell(
                f"{TURNS} turns, {concurrent} at once", times_ms, time.perf_counter() - start, gateway.cpu_s() - before
            )


TURN = [
    {
        "role": "assistant",
        "content": "I look it up.",
        "tool_calls": [
            {
                "id": "call-1",
                "type": "function",
                "function": {"name": "get_order_details", "arguments": '{"order_id": "#W1"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call-1", "content": '{"status": "pending", "items": [1, 2, 3]}'},
]
