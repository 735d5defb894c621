"""Isolation and once laws over HTTP: many agents write to the same orders at once, and replies get lost on the way.

`RETAIL_LOSSY_WRITES` sets how many writes are sent over the lossy way (10,000 take about a minute).
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mcp_servers.journal import Journal
from mcp_servers.retail.data import generated_base
from mcp_servers.retail.server import retail_world
from mcp_servers.retail.state import open_retail
from mcp_servers.retail.tools import call_tool
from mcp_servers.sessions import Sessions
from mcp_servers.state import Base
from mcp_servers.world import World
from tests.served_worlds import Served, post_call, serve_world

AGENTS = 256
WRITERS = 8
WRITES = int(os.environ.get("RETAIL_LOSSY_WRITES", "400"))
LOST_SHARE = 0.1


@pytest.fixture(scope="module")
def base() -> Base:
    return generated_base()


@pytest.fixture(scope="module")
def world(base: Base) -> World:
    return retail_world(base)


def pending_orders(base: Base, count: int) -> list[str]:
    orders = (base.get("orders", order_id) or {} for order_id in base.ids("orders"))
    return [
        order["order_id"]
        for order, _ in zip((o for o in orders if o["status"] == "pending"), range(count), strict=False)
    ]


def move_to(order_id: str, number: int) -> dict[str, Any]:
    place = {"address2": "", "city": "Austin", "state": "TX", "country": "USA", "zip": f"{number:03d}"}
    return {"order_id": order_id, "address1": f"{number} Elm Street", **place}


def many_connections() -> aiohttp.ClientSession:
    # Fewer than the five seconds after which uvicorn closes an idle connection.
    connector = aiohttp.TCPConnector(limit=64, keepalive_timeout=2)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))


async def test_agents_that_write_to_the_same_orders_at_once_keep_states_of_their_own(world: World, base: Base) -> None:
    orders = pending_orders(base, 2)
    async with serve_world(world) as served, many_connections() as client:
        sessions = [served.sessions.create() for _ in range(AGENTS)]

        async def act(number: int) -> None:
            session = sessions[number]
            for order_id in orders:
                await post_call(client, served.door(session), "modify_pending_order_address", move_to(order_id, number))

        await asyncio.gather(*(act(number) for number in range(AGENTS)))
        for number, session in enumerate(sessions):
            alone = open_retail(base)
            for order_id in orders:
                call_tool(alone, "modify_pending_order_address", move_to(order_id, number))
            assert session.state.changes() == alone.state.changes()
        assert len({session.state.hash() for session in sessions}) == AGENTS


class LossyClient:
    """Sends writes whose replies are lost now and then, and sends those again under the same key until answered."""

    def __init__(self, client: aiohttp.ClientSession, seed: int) -> None:
        self.client = client
        self.rng = random.Random(seed)
        self.sent = 0
        self.answered = 0

    async def write(self, door: str, name: str, arguments: dict[str, Any], key: str) -> None:
        while True:
            self.sent += 1
            result = await post_call(self.client, door, name, arguments, key)
            if self.rng.random() >= LOST_SHARE:
                assert not result["isError"], result
                self.answered += 1
                return


async def test_writes_whose_replies_are_lost_and_sent_again_apply_exactly_once(world: World, base: Base) -> None:
    orders = pending_orders(base, WRITES // WRITERS)
    async with serve_world(world) as served, many_connections() as client:
        sessions = [served.sessions.create() for _ in range(WRITERS)]
        lossy = LossyClient(client, seed=5)
        await asyncio.gather(*(cancel_all(lossy, served, number, orders) for number in range(WRITERS)))
        # A second application would be an error ("Non-pending order"), a lost one a missing change.
        assert lossy.answered == WRITES < lossy.sent
        for session in sessions:
            assert [order_id for order_id in orders if order_id not in session.state.changes()["orders"]] == []


async def cancel_all(lossy: LossyClient, served: Served, number: int, orders: list[str]) -> None:
    door = served.door(list(served.sessions)[number])
    for order_id in orders:
        arguments = {"order_id": order_id, "reason": "no longer needed"}
        await lossy.write(door, "cancel_pending_order", arguments, f"{order_id}-{number}")


async def test_a_write_that_the_server_can_not_keep_is_no_answer_to_the_agent(world: World, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "sessions.db", world.base)
    sessions = Sessions(world.base, world.run, journal=journal)
    session = sessions.create()
    async with serve_world(world, sessions) as served, many_connections() as client:
        journal.close()
        arguments = move_to(pending_orders(world.base, 1)[0], 1)
        with pytest.raises(AssertionError, match=r"write to .*sessions\.db"):
            await post_call(client, served.door(session), "modify_pending_order_address", arguments, "key-1")
        assert session.state.changes() == {}
        looked = await post_call(client, served.door(session), "calculate", {"expression": "1"})
        assert not looked["isError"]
