"""What sessions cost: made, forked, hashed, kept, called in process and over HTTP, beside a copy or a process each."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from mcp_servers.journal import Journal
from mcp_servers.retail.data import generated_base
from mcp_servers.retail.server import retail_world
from mcp_servers.serve import WorldApp
from mcp_servers.sessions import Session, Sessions
from mcp_servers.world import World
from tests.served_worlds import CLIENT_META, post_call, post_in_memory, run_server

pytestmark = pytest.mark.benchmark

LIVE = 10_000
HTTP_CALLS = 3_000
IN_MEMORY_CALLS = 2_000


@pytest.fixture(scope="module")
def world() -> World:
    return retail_world(generated_base())


def report(name: str, **figures: float) -> None:
    print(f"\n{name}: " + " · ".join(f"{key} {value:,.4g}" for key, value in figures.items()))


def median_us(act: Callable[[int], object], times: int) -> float:
    """Median of one act in microseconds."""
    taken: list[float] = []
    for n in range(times):
        start = time.perf_counter()
        act(n)
        taken.append(time.perf_counter() - start)
    return sorted(taken)[times // 2] * 1e6


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def pending(world: World, count: int) -> list[str]:
    found = (world.base.get("orders", key) or {} for key in world.base.ids("orders"))
    return [order["order_id"] for order in found if order["status"] == "pending"][:count]


def cancelled_session(world: World, sessions: Sessions, orders: list[str]) -> Session:
    """A session that cancelled a few orders: about what an episode leaves."""
    session = sessions.create()
    for order_id in orders:
        sessions.call(session, "cancel_pending_order", {"order_id": order_id, "reason": "no longer needed"})
    return session


def test_ten_thousand_live_sessions_cost_little_to_make_fork_hash_and_keep(world: World) -> None:
    sessions = Sessions(world.base, world.run)
    orders = pending(world, 3)
    gc.collect()
    before = resident_bytes()
    create = median_us(lambda _: sessions.create(), LIVE // 2)
    work = median_us(lambda _: cancelled_session(world, sessions, orders), LIVE // 2)
    kept = resident_bytes() - before
    lived = list(sessions)[-1000:]
    fork = median_us(lambda n: sessions.fork(lived[n].id), 1000)
    digest = median_us(lambda n: lived[n].state.hash(), 1000)
    assert len(sessions) == LIVE + 1000
    report("sessions", create_us=create, create_and_three_writes_us=work, fork_us=fork, hash_us=digest)
    report("sessions", created_per_s=1e6 / create, forks_per_s=1e6 / fork, hashes_per_s=1e6 / digest)
    report("memory", live=LIVE, total_mb=kept / 1e6, bytes_a_session=kept / LIVE)
    assert kept < 1e9
    assert max(create, fork, digest) <= 1000


def test_calls_in_process_are_fast_with_and_without_a_journal(world: World, tmp_path: Path) -> None:
    orders = pending(world, 2000)
    rates: dict[str, float] = {}
    for name, journal in (("memory", None), ("journal", Journal(tmp_path / "sessions.db", world.base))):
        sessions = Sessions(world.base, world.run, journal=journal)
        session = sessions.create()
        read = median_us(lambda n: sessions.call(session, "get_order_details", {"order_id": orders[n]}, f"r{n}"), 2000)  # noqa: B023
        write = median_us(
            lambda n: sessions.call(  # noqa: B023
                session,  # noqa: B023
                "cancel_pending_order",
                {"order_id": orders[n], "reason": "no longer needed"},
                f"w{n}",
            ),
            2000,
        )
        rates |= {f"{name}_read_per_s": 1e6 / read, f"{name}_write_per_s": 1e6 / write}
    report("calls in process", **rates)
    assert rates["memory_read_per_s"] >= 20_000


def test_an_overlay_costs_a_small_part_of_a_copy_or_a_process(world: World) -> None:
    sessions = Sessions(world.base, world.run)
    entities = {
        kind: {key: world.base.get(kind, key) for key in world.base.ids(kind)}
        for kind in ("products", "users", "orders")
    }
    before, copies = resident_bytes(), []
    copied = median_us(lambda _: copies.append(copy.deepcopy(entities)), 2)
    copy_bytes = (resident_bytes() - before) / 2
    start = time.perf_counter()
    with run_server() as server:
        process_us = (time.perf_counter() - start) * 1e6
        pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    overlay = median_us(lambda _: sessions.create(), 1000)
    report("one session", overlay_us=overlay, deep_copy_us=copied, process_us=process_us)
    report("one session", deep_copy_mb=copy_bytes / 1e6, process_mb=pages * 4096 / 1e6)
    report("overlay against", deep_copy_ratio=copied / overlay, process_ratio=process_us / overlay)
    assert overlay * 20 < min(copied, process_us)


@pytest.mark.parametrize("agents", [1, 32, 256])
async def test_calls_over_http_are_fast_at_any_number_of_sessions(agents: int, world: World) -> None:
    orders = pending(world, 50)
    with run_server("--no-output-schemas") as server:
        with server.control() as control:
            keys = [control.post("/control/sessions", json={}).json()["session_key"] for _ in range(agents)]
        connector = aiohttp.TCPConnector(limit=min(agents, 64))
        async with aiohttp.ClientSession(connector=connector) as http:
            doors = [f"{server.ready['url']}/s/{key}/mcp" for key in keys]
            await load(http, doors, orders, 200)
            start = time.perf_counter()
            latencies = sorted(await load(http, doors, orders, HTTP_CALLS))
            rate = HTTP_CALLS / (time.perf_counter() - start)
    p50, p99 = (latencies[int(len(latencies) * share)] * 1e3 for share in (0.5, 0.99))
    report(f"calls over HTTP, {agents} sessions", per_s=rate, p50_ms=p50, p99_ms=p99)
    assert rate >= 1000


async def test_a_plain_call_costs_the_server_a_part_of_what_it_costs_through_the_sdk(world: World) -> None:
    order_id = pending(world, 1)[0]
    for version in ("2026-07-28", "2025-11-25"):
        cpu_us: dict[str, float] = {}
        for way, sdk_only in (("plain_us", False), ("sdk_us", True)):
            sessions = Sessions(world.base, world.run)
            app = WorldApp(world, sessions, "key", output_schemas=False, sdk_only=sdk_only)
            async with app.running():
                await called(app, sessions.create(), version, order_id, 100)
                start = time.process_time()
                await called(app, sessions.create(), version, order_id, IN_MEMORY_CALLS)
                cpu_us[way] = (time.process_time() - start) / IN_MEMORY_CALLS * 1e6
        report(f"CPU of a call, {version}", **cpu_us, ratio=cpu_us["sdk_us"] / cpu_us["plain_us"])
        assert cpu_us["plain_us"] * 2 < cpu_us["sdk_us"]


async def called(app: WorldApp, session: Session, version: str, order_id: str, times: int) -> None:
    """The same read over and over, without a socket."""
    headers = [("host", "127.0.0.1"), ("content-type", "application/json"), ("accept", "application/json")]
    headers += [("mcp-protocol-version", version), ("mcp-method", "tools/call"), ("mcp-name", "get_order_details")]
    params = {"name": "get_order_details", "arguments": {"order_id": order_id}, "_meta": CLIENT_META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    for _ in range(times):
        status, _ = await post_in_memory(app, f"/s/{session.key}/mcp", body, headers)
        assert status == 200


async def load(http: aiohttp.ClientSession, doors: list[str], orders: list[str], calls: int) -> list[float]:
    """Seconds of each call; every session has one call under way at a time."""
    taken: list[float] = []

    async def act(number: int) -> None:
        for n in range(number, calls, len(doors)):
            start = time.perf_counter()
            await post_call(http, doors[number], "get_order_details", {"order_id": orders[n % len(orders)]})
            taken.append(time.perf_counter() - start)

    await asyncio.gather(*(act(number) for number in range(len(doors))))
    return taken
