"""What the model gateway adds to a call: latency, CPU, and calls a second, with every token on disk before the answer.

Beside a fast stand-in for the engine asked directly and the peers that are installed (`tests/gateway_sides.py`), in one
run: gateways on one core, engine and client on another. Then real vLLM, with and without. Run by `make bench`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from harness.engine import EngineConfig, start_engine
from tests.gateway_sides import Side, pin, start_engine_side, start_gateway_side, start_peers
from tests.model_doors import TOOLS

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

NANO = Path(__file__).resolve().parents[2] / "training" / "nano" / "weights"
CALLS = int(os.environ.get("HARNESS_BENCH_CALLS", "1500"))
TURNS = 8
CALLS_A_ROLLOUT = 16
"""A rollout has tens of calls: thousands of samples of one prompt in one forest would measure the forest."""
MESSAGES: list[Any] = [{"role": "system", "content": "rules " * 200}, {"role": "user", "content": "go"}]
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/chat/completions", {"model": "m", "messages": MESSAGES, "tools": TOOLS}),
    "responses": (
        "/responses",
        {"model": "m", "input": MESSAGES, "tools": [{"type": "function", **tool["function"]} for tool in TOOLS]},
    ),
    "messages": (
        "/messages",
        {
            "model": "m",
            "max_tokens": 500,
            "system": MESSAGES[0]["content"],
            "messages": MESSAGES[1:],
            "tools": [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS],
        },
    ),
}


@asynccontextmanager
async def sides(folder: Path, *, peers: bool = False) -> AsyncGenerator[list[Side]]:
    """Engine, gateway and, where asked for, the peers; the gateways on one core, the rest on another."""
    free = os.sched_getaffinity(0)
    async with start_engine_side(folder) as engine:
        url = await engine.base_url(0)
        async with start_gateway_side(folder, url) as gateway, start_peers(folder, url if peers else "") as others:
            for side in (gateway, *others):
                side.pin(0)
            engine.pin(1)
            pin(os.getpid(), 1)
            try:
                yield [engine, gateway, *others]
            finally:
                for task in Path("/proc/self/task").iterdir():
                    os.sched_setaffinity(int(task.name), free)


async def ask(http: aiohttp.ClientSession, url: str, body: bytes) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    async with http.post(url, data=body, headers={"content-type": "application/json"}) as response:
        await response.read()
        assert response.status == 200
    return (time.perf_counter() - start) * 1e3


async def measure(side: Side, title: str, calls: int, concurrent: int, one: Callable[[int], Awaitable[float]]) -> float:
    """Make the calls and print what they took; the median in milliseconds."""
    await asyncio.gather(*(one(n) for n in range(min(concurrent, 64))))
    slots = asyncio.Semaphore(concurrent)

    async def bounded(number: int) -> float:
        async with slots:
            return await one(number)

    before, start = side.cpu_s(), time.perf_counter()
    ordered = sorted(await asyncio.gather(*(bounded(n) for n in range(calls))))
    seconds, cpu_s = time.perf_counter() - start, side.cpu_s() - before
    p50, p99 = ordered[calls // 2], ordered[min(calls - 1, int(calls * 0.99))]
    print(
        f"{side.name:<14} {title:<28} p50 {p50:7.2f} ms  p99 {p99:7.2f} ms  {calls / seconds:6.0f}/s  "
        f"{cpu_s / calls * 1e6:5.0f} µs CPU a call"
    )
    return p50


async def rollouts_of(side: Side, calls: int, path: str) -> list[str]:
    """Addresses for so many calls, a rollout for each `CALLS_A_ROLLOUT` of them."""
    return [await side.base_url(number) + path for number in range(calls // CALLS_A_ROLLOUT + 1)]


@pytest.mark.parametrize("concurrent", [1, 32, 256, 1024])
@pytest.mark.parametrize("stream", [False, True])
async def test_added_latency_and_calls_per_second_of_single_calls(
    tmp_path: Path, concurrent: int, stream: bool
) -> None:
    path, asked = BODIES["chat"]
    body = msgspec.json.encode({**asked, "stream": stream})
    connector = aiohttp.TCPConnector(limit=0)
    async with sides(tmp_path, peers=True) as measured, aiohttp.ClientSession(connector=connector) as http:
        for side in measured:
            slow = side.name not in ("engine", "gateway")
            calls = max(concurrent, CALLS // (5 if concurrent == 1 or slow else 1))
            urls = await rollouts_of(side, calls, path)

            async def one(number: int, urls: list[str] = urls) -> float:
                return await ask(http, urls[number // CALLS_A_ROLLOUT], body)

            await measure(side, f"{concurrent} at once{', streamed' if stream else ''}", calls, concurrent, one)


@pytest.mark.parametrize("dialect", list(BODIES))
@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_dialect_costs(tmp_path: Path, dialect: str, stream: bool) -> None:
    path, asked = BODIES[dialect]
    body = msgspec.json.encode({**asked, "stream": stream})
    async with sides(tmp_path) as (_, gateway), aiohttp.ClientSession() as http:
        urls = await rollouts_of(gateway, CALLS, path)

        async def one(number: int) -> float:
            return await ask(http, urls[number // CALLS_A_ROLLOUT], body)

        await measure(gateway, f"{dialect}, 32{', streamed' if stream else ''}", CALLS, 32, one)


@pytest.mark.parametrize("concurrent", [1, 32])
async def test_the_token_exact_path_over_conversations_of_eight_turns(tmp_path: Path, concurrent: int) -> None:
    async with sides(tmp_path) as measured, aiohttp.ClientSession() as http:
        for side in measured:

            async def converse(number: int, side: Side = side) -> float:
                url = await side.base_url(number) + "/chat/completions"
                messages, spent_ms = list(MESSAGES), 0.0
                for _ in range(TURNS):
                    body = msgspec.json.encode({"model": "m", "messages": messages, "tools": TOOLS})
                    spent_ms += await ask(http, url, body)
                    messages += TURN
                return spent_ms / TURNS

            await measure(
                side, f"{TURNS} turns, {concurrent} at once", 10 if concurrent == 1 else 100, concurrent, converse
            )


async def test_real_vllm_loses_next_to_nothing_of_its_throughput(tmp_path: Path) -> None:
    config = EngineConfig(str(NANO), tmp_path / "engine.log", max_model_len=4096, max_num_seqs=32)
    asked = {"messages": [{"role": "user", "content": "cancel #W1, please"}], "max_tokens": 64, "min_tokens": 64}
    async with (
        start_engine(config) as engine,
        start_gateway_side(tmp_path, engine.url, engine.model_name) as gateway,
        # Connections that were idle while the others had their turn may be closed by the time they are used again.
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as http,
    ):
        plain = {**asked, "model": engine.model_name}
        tokens = {"logprobs": True, "top_logprobs": 0, "return_token_ids": True, "return_tokens_as_token_ids": True}
        direct, behind = f"{engine.url}/v1/chat/completions", await gateway.base_url(0) + "/chat/completions"
        ways = {
            "vLLM": (direct, msgspec.json.encode(plain)),
            "vLLM, with ids and logprobs": (direct, msgspec.json.encode({**plain, **tokens})),
            "vLLM behind the gateway": (behind, msgspec.json.encode(plain)),
        }
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for way in [*ways] * 5:
            url, body = ways[way]
            start = time.perf_counter()
            for _ in range(3):
                await asyncio.gather(*(ask(http, url, body) for _ in range(32)))
            rates[way].append(96 / (time.perf_counter() - start))
        for way, measured in rates.items():
            # The first round of each warms up.
            rate = sorted(measured[1:])[len(measured[1:]) // 2]
            print(f"{way:<28} 32 at once, 64 tokens each: median {rate:6.1f} calls/s  of {measured}")


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
