"""The tool gateway between real MCP clients and real MCP servers of both protocol versions."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from mcp import Client, MCPError

from harness.gateway.keys import AskedCall, ToolDoor
from tests.tool_doors import Till, door, serve, serve_gateway
from traces import semconv
from traces.trajectory import Ending

VERSIONS = {"auto": "2026-07-28", "legacy": "2025-11-25"}


@pytest.mark.parametrize("mode", VERSIONS)
async def test_clients_of_both_protocol_versions_see_what_the_server_offers(mode: str) -> None:
    async with serve(Till().app()) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url))
        async with Client(f"{url}/mcp") as client:
            offered = await client.list_tools()
            unknown = await client.call_tool("steal", {})
        async with Client(gateway.mcp_url(rollout), mode=mode) as client:
            assert client.session.protocol_version == VERSIONS[mode]
            listed = await client.list_tools()
            sold = await client.call_tool("sell", {"item": "lamp"})
            refused = await client.call_tool("refuse", {"item": "lamp"})
            assert (await client.call_tool("steal", {})).content == unknown.content
    assert listed.tools == offered.tools
    assert sold.content[0].text == "sold lamp as number 1"
    assert not sold.is_error
    assert refused.is_error
    assert refused.content[0].text.endswith("lamp is not for sale")


@pytest.mark.parametrize(("stateless", "json_response"), [(True, True), (True, False), (False, False)])
async def test_servers_are_reached_whatever_form_of_http_they_answer_in(stateless: bool, json_response: bool) -> None:
    app = Till().app(stateless=stateless, json_response=json_response)
    async with serve(app) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url))
        async with Client(gateway.mcp_url(rollout)) as client:
            result = await client.call_tool("sell", {"item": "lamp"})
    assert result.content[0].text == "sold lamp as number 1"
    assert result.structured_content == {"result": "sold lamp as number 1"}


async def test_a_server_of_the_old_protocol_is_reached_through_a_handshake() -> None:
    till = Till()
    inner = till.app(stateless=False)

    async def old_server(scope, receive, send) -> None:
        versions = [value for name, value in scope.get("headers", []) if name == b"mcp-protocol-version"]
        if versions == [b"2026-07-28"]:
            await receive()
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b"Bad Request: Unsupported protocol version"})
            return
        await inner(scope, receive, send)

    async with serve(old_server) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url))
        async with Client(gateway.mcp_url(rollout)) as client:
            assert len((await client.list_tools()).tools) == 3
            result = await client.call_tool("sell", {"item": "lamp"})
        await gateway.inner.close_rollout(rollout)
    assert result.content[0].text == "sold lamp as number 1"
    assert "mcp-session-id" in till.headers[-1]


async def test_every_call_is_a_span_that_names_the_models_call_and_no_secret() -> None:
    async with serve(Till().app()) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url))
        rollout.asked_calls += [
            AskedCall("call-1", "sell", '{"item": "lamp"}'),
            AskedCall("call-2", "sell", '{"item":   "desk"}'),
        ]
        async with Client(gateway.mcp_url(rollout)) as client:
            await client.call_tool("sell", {"item": "desk"})
            await client.call_tool("refuse", {"item": "desk"})
    sale, refusal = gateway.spans
    assert sale.name == "tools/call sell"
    assert sale.attributes[semconv.TOOL_CALL_ID] == "call-2"
    assert json.loads(sale.attributes[semconv.TOOL_CALL_ARGUMENTS]) == {"item": "desk"}
    assert sale.attributes[semconv.TOOL_CALL_RESULT] == "sold desk as number 1"
    assert sale.attributes[semconv.TOOL_SERVER] == "till"
    assert (sale.trace_id, sale.parent_id) == (rollout.trace_id, rollout.parent_span_id)
    assert sale.start_ns < sale.end_ns
    assert semconv.ERROR_TYPE not in sale.attributes
    assert refusal.attributes[semconv.ERROR_TYPE] == semconv.ERROR_TYPE_TOOL
    assert semconv.TOOL_CALL_ID not in refusal.attributes
    assert rollout.key not in repr(gateway.spans)
    assert rollout.infrastructure_error is None


async def test_tools_of_two_servers_are_prefixed_only_where_names_collide() -> None:
    class Desk(Till):
        def mcp(self):
            server = super().mcp()

            @server.tool()
            async def hire(name: str) -> str:
                """Hires somebody."""
                return f"hired {name}"

            return server

    async with serve(Till().app()) as till, serve(Desk("desk").app()) as desk, serve_gateway() as gateway:
        rollout = gateway.open(door(till), door(desk, "desk"))
        async with Client(gateway.mcp_url(rollout)) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            sold = await client.call_tool("desk__sell", {"item": "lamp"})
            hired = await client.call_tool("hire", {"name": "Ada"})
    shared = ["sell", "refuse", "wait"]
    assert names == [f"till__{name}" for name in shared] + [f"desk__{name}" for name in shared] + ["hire"]
    assert sold.content[0].text == "sold lamp as number 1"
    assert hired.content[0].text == "hired Ada"


async def test_a_tool_that_the_task_does_not_allow_is_neither_listed_nor_called() -> None:
    till = Till()
    async with serve(till.app()) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url), allowed=["refuse"])
        async with Client(gateway.mcp_url(rollout)) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["refuse"]
            with pytest.raises(MCPError, match="Unknown tool: sell"):
                await client.call_tool("sell", {"item": "lamp"})
    assert till.effects == []


async def test_two_rollouts_over_one_server_never_share_its_connection_or_headers() -> None:
    till = Till()
    async with serve(till.app()) as url, serve_gateway() as gateway:
        for number in (1, 2):
            own = ToolDoor("till", f"{url}/mcp", headers={"x-session": str(number)})
            rollout = gateway.open(own, rollout_id=f"r-{number}")
            async with Client(gateway.mcp_url(rollout)) as client:
                await client.call_tool("sell", {"item": "lamp"})
    assert {headers["x-session"] for headers in till.headers} == {"1", "2"}
    assert till.keys == ["r-1:1", "r-2:1"]


async def test_a_server_that_cannot_be_reached_fails_the_rollout_and_tells_the_agent() -> None:
    async with serve_gateway() as gateway, AsyncExitStack() as serving:
        rollout = gateway.open(door(await serving.enter_async_context(serve(Till().app()))))
        async with Client(gateway.mcp_url(rollout)) as client:
            await client.list_tools()
            await serving.aclose()
            result = await client.call_tool("sell", {"item": "lamp"})
    assert result.is_error
    assert "tool server 'till' failed" in result.content[0].text
    assert rollout.infrastructure_error is not None
    ending, detail = rollout.infrastructure_error
    assert ending is Ending.TOOL_ERROR
    assert "cannot connect" in detail
    assert gateway.spans[-1].attributes[semconv.ERROR_TYPE] == "unreachable"


async def test_a_call_over_its_time_limit_is_our_failure_and_not_the_agents() -> None:
    till = Till()
    async with serve(till.app()) as url, serve_gateway(call_timeout_s=0.3) as gateway:
        rollout = gateway.open(door(url))
        async with Client(gateway.mcp_url(rollout)) as client:
            result = await client.call_tool("wait", {})
        till.open.set()
    assert result.is_error
    assert "no answer in 0.3 s" in result.content[0].text
    assert rollout.infrastructure_error is not None
    assert rollout.infrastructure_error[0] is Ending.TOOL_ERROR


async def test_a_call_that_outlives_the_agent_fails_the_rollout_at_its_seal() -> None:
    till = Till()
    async with serve(till.app()) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url))
        async with Client(gateway.mcp_url(rollout)) as client:
            calling = asyncio.create_task(client.call_tool("wait", {}))
            await asyncio.wait_for(till.waiting.wait(), 10)
            await gateway.inner.close_rollout(rollout, timeout_s=0.1)
            with pytest.raises(MCPError, match="The rollout has ended"):
                await calling
        till.open.set()
    assert rollout.infrastructure_error is not None
    assert "1 tool calls still ran" in rollout.infrastructure_error[1]
