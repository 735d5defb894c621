"""Law 6: a tool call takes effect once, whatever is retried or lost on the way."""

from __future__ import annotations

import asyncio
import json

import pytest
from mcp import Client

from harness.gateway import tools
from harness.gateway.keys import LiveRollout
from tests.tool_doors import Gateway, Till, door, serve, serve_gateway

HEADERS = "accept: application/json, text/event-stream\r\ncontent-type: application/json\r\n"


async def begin_call(gateway: Gateway, rollout: LiveRollout, tool: str, arguments: dict[str, str], extra: str = ""):
    """Send one tools/call over a connection of its own and leave the reply unread."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    )
    head = f"POST /r/{rollout.key}/mcp HTTP/1.1\r\nhost: {host}\r\n{HEADERS}{extra}content-length: {len(body)}\r\n\r\n"
    writer.write((head + body).encode())
    await writer.drain()
    return reader, writer


async def read_result(reader: asyncio.StreamReader) -> str:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    answer = json.loads(await asyncio.wait_for(reader.readexactly(length), 10))
    return answer["result"]["content"][0]["text"]


async def test_a_reply_lost_between_gateway_and_server_leaves_one_effect() -> None:
    till = Till(lose_replies=2)
    async with serve(till.app()) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url))
        async with Client(gateway.mcp_url(rollout)) as client:
            result = await client.call_tool("sell", {"item": "lamp"})
    assert result.content[0].text == "sold lamp as number 1"
    assert till.effects == ["lamp"]
    assert till.keys == ["r-1:1"] * 3
    assert len(gateway.spans) == 1
    assert rollout.infrastructure_error is None


async def test_a_server_that_forgets_keys_is_never_asked_twice() -> None:
    till = Till(lose_replies=1, remembers=False)
    async with serve(till.app()) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url, repeats_safely=False))
        async with Client(gateway.mcp_url(rollout)) as client:
            result = await client.call_tool("sell", {"item": "lamp"})
    assert result.is_error
    assert till.effects == ["lamp"]
    assert rollout.infrastructure_error is not None


async def test_replies_that_stay_lost_end_in_a_bounded_number_of_attempts() -> None:
    till = Till(lose_replies=100)
    async with serve(till.app()) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url))
        async with Client(gateway.mcp_url(rollout)) as client:
            result = await client.call_tool("sell", {"item": "lamp"})
    assert result.is_error
    assert till.effects == ["lamp"]
    assert len(till.keys) == 3


async def test_an_agent_that_loses_the_reply_and_asks_again_gets_the_first_result() -> None:
    till = Till()
    async with serve(till.app()) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url))
        _, first = await begin_call(gateway, rollout, "wait", {})
        await asyncio.wait_for(till.waiting.wait(), 10)
        till.waiting.clear()
        first.close()
        await first.wait_closed()
        reader, second = await begin_call(gateway, rollout, "wait", {})
        till.open.set()
        assert await read_result(reader) == "waited"
        second.close()
    assert not till.waiting.is_set(), "the second request reached the server as a call of its own"
    assert len(gateway.spans) == 1


async def test_a_call_that_was_taken_back_is_made_anew_under_its_old_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "REPEAT_GRACE_S", 0.05)
    till = Till()
    async with serve(till.app()) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url))
        async with Client(gateway.mcp_url(rollout)) as client:
            calling = asyncio.create_task(client.call_tool("wait", {}))
            await asyncio.wait_for(till.waiting.wait(), 10)
            calling.cancel()
            async with asyncio.timeout(10):
                while not gateway.spans:  # noqa: ASYNC110 - a span has no event
                    await asyncio.sleep(0.01)
            till.open.set()
            assert (await client.call_tool("wait", {})).content[0].text == "waited"
    assert [headers["x-idempotency-key"] for headers in till.headers if "x-idempotency-key" in headers] == ["r-1:1"] * 2
    assert rollout.infrastructure_error is None


async def test_the_same_call_made_twice_on_purpose_takes_effect_twice() -> None:
    till = Till()
    async with serve(till.app()) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url))
        for _ in range(2):
            # A new client starts its JSON-RPC ids again: equal ids and arguments, and yet another call.
            async with Client(gateway.mcp_url(rollout)) as client:
                await client.call_tool("sell", {"item": "lamp"})
    assert till.effects == ["lamp", "lamp"]


async def test_a_key_given_by_the_agents_client_is_kept_across_connections() -> None:
    till = Till()
    async with serve(till.app()) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url))
        results: list[str] = []
        for _ in range(2):
            reader, writer = await begin_call(gateway, rollout, "sell", {"item": "lamp"}, "x-idempotency-key: k\r\n")
            results.append(await read_result(reader))
            writer.close()
    assert results == ["sold lamp as number 1"] * 2
    assert till.effects == ["lamp"]


@pytest.mark.parametrize("count", [16])
async def test_parallel_equal_calls_over_living_connections_all_take_effect(count: int) -> None:
    till = Till()
    async with serve(till.app()) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url))
        async with Client(gateway.mcp_url(rollout)) as client:
            await asyncio.gather(*(client.call_tool("sell", {"item": "lamp"}) for _ in range(count)))
    assert len(till.effects) == count
    assert len(set(till.keys)) == count
