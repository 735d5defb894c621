"""What passes through the tool gateway and through the stdio bridge: all of MCP, changed nowhere, in both versions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mcp_types
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.server.lowlevel import Server

from harness.config import ToolsSection
from harness.gateway.keys import ToolDoor
from harness.scenarios.taskfile import third_party
from harness.task import task_from_dict
from tests.conftest import REPO
from tests.reference_server import Reference, accept, look_at_everything
from tests.tool_doors import Till, door, serve, serve_gateway
from traces import semconv

TASK = {"id": "t", "split": "train", "kind": "k", "user_message": "m"}
VERSIONS = {"auto": "2026-07-28", "legacy": "2025-11-25"}


def reference_app(reference: Reference) -> Any:
    return reference.mcp().streamable_http_app()


@pytest.mark.parametrize("mode", VERSIONS)
async def test_a_client_sees_through_the_gateway_what_it_sees_directly(mode: str) -> None:
    stateful = mode == "legacy"
    async with serve(reference_app(Reference())) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url, "reference", repeats_safely=False))
        async with Client(f"{url}/mcp", mode=mode, elicitation_callback=accept) as client:
            directly = await look_at_everything(client, stateful=stateful)
        async with Client(gateway.mcp_url(rollout), mode=mode, elicitation_callback=accept) as client:
            through = await look_at_everything(client, stateful=stateful)
    assert [name for name in directly if through[name] != directly[name]] == []
    assert through["progress"] == [(1, 3, "counted 1"), (2, 3, "counted 2"), (3, 3, "counted 3")]
    assert through["version"] == VERSIONS[mode]
    assert [span.attributes[semconv.TOOL_CALL_RESULT] for span in gateway.spans][:1] == ["counted to 3"]
    assert rollout.infrastructure_error is None


@pytest.mark.parametrize("mode", VERSIONS)
async def test_a_call_that_the_agent_takes_back_is_cancelled_at_the_server_and_is_no_failure(mode: str) -> None:
    reference = Reference()
    async with serve(reference_app(reference)) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url, "reference", repeats_safely=False))
        async with Client(gateway.mcp_url(rollout), mode=mode) as client:
            calling = asyncio.create_task(client.call_tool("endless", {}))
            await asyncio.wait_for(reference.started.wait(), 10)
            calling.cancel()
            await asyncio.wait_for(reference.stopped.wait(), 10)
            assert (await client.call_tool("count", {"to": 1})).content[0].text == "counted to 1"
        await gateway.inner.close_rollout(rollout)
    assert {span.attributes.get(semconv.ERROR_TYPE) for span in gateway.spans} == {None, "cancelled"}, gateway.spans
    assert rollout.infrastructure_error is None


async def test_a_subscription_hears_what_changes_at_the_server() -> None:
    async with serve(reference_app(Reference())) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url, "reference"))
        async with Client(gateway.mcp_url(rollout)) as client, client.listen(tools_list_changed=True) as changes:
            await client.call_tool("rename", {})
            async with asyncio.timeout(10):
                change = await anext(aiter(changes))
    assert type(change).__name__ == "ToolsListChanged"


def paged_server(count: int) -> Server[Any]:
    """A server that lists one tool a page."""

    async def list_tools(_: Any, params: mcp_types.PaginatedRequestParams | None) -> mcp_types.ListToolsResult:
        number = int(params.cursor) if params and params.cursor else 0
        tool = mcp_types.Tool(name=f"tool-{number}", input_schema={"type": "object"})
        following = str(number + 1) if number + 1 < count else None
        return mcp_types.ListToolsResult(tools=[tool], next_cursor=following)

    async def call_tool(_: Any, params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        return mcp_types.CallToolResult(content=[mcp_types.TextContent(type="text", text=params.name)])

    return Server("paged", on_list_tools=list_tools, on_call_tool=call_tool)


async def test_pages_stay_pages_of_one_server_and_are_gathered_of_several() -> None:
    paged = paged_server(3).streamable_http_app()
    async with serve(paged) as url, serve(Till().app()) as till, serve_gateway() as gateway:
        one = gateway.open(door(url, "paged"), allowed=["tool-1", "tool-2"])
        async with Client(gateway.mcp_url(one)) as client:
            first = await client.list_tools()
            second = await client.list_tools(cursor=first.next_cursor)
            third = await client.list_tools(cursor=second.next_cursor)
        several = gateway.open(door(url, "paged"), door(till), rollout_id="r-2")
        async with Client(gateway.mcp_url(several)) as client:
            gathered = await client.list_tools()
            called = await client.call_tool("tool-2", {})
    pages = [[tool.name for tool in page.tools] for page in (first, second, third)]
    assert pages == [[], ["tool-1"], ["tool-2"]]
    assert [tool.name for tool in gathered.tools] == ["tool-0", "tool-1", "tool-2", "sell", "refuse", "wait"]
    assert called.content[0].text == "tool-2"


@pytest.mark.parametrize("mode", VERSIONS)
async def test_several_servers_look_like_one_that_can_do_all_they_can(mode: str) -> None:
    other = Till("other")
    async with serve(reference_app(Reference())) as url, serve(other.app()) as till, serve_gateway() as gateway:
        rollout = gateway.open(door(till), door(url, "reference", repeats_safely=False))
        async with Client(gateway.mcp_url(rollout), mode=mode, elicitation_callback=accept) as client:
            seen = await look_at_everything(client, stateful=mode == "legacy")
            sold = await client.call_tool("sell", {"item": "lamp"})
            with pytest.raises(MCPError):
                await client.read_resource("note://nowhere")
    assert seen["note"].contents[0].text == "the first note"
    assert seen["any note"].contents[0].text == "note number 7"
    assert [prompt.name for prompt in seen["prompts"].prompts] == ["greet"]
    assert seen["instructions"] == "Ask me anything."
    assert seen["completion"].completion.values == ["Ada", "Adb"]
    assert len(seen["progress"]) == 3
    if mode == "legacy":
        assert seen["asked"].content[0].text == "accept True"
    assert sold.content[0].text == "sold lamp as number 1"
    assert rollout.infrastructure_error is None


BAD: list[tuple[bytes, dict[str, str], int]] = [
    (b"{", {}, -32700),
    (b'{"x": NaN}', {}, -32700),
    (b'[{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "sell"}}]', {}, -32600),
    (b"{}", {"host": "evil.example.com"}, -32600),
    (b"{}", {"origin": "http://evil.example.com"}, -32600),
]


@pytest.mark.parametrize(("body", "headers", "code"), BAD)
async def test_what_is_no_message_or_comes_from_another_site_reaches_no_server(
    body: bytes, headers: dict[str, str], code: int
) -> None:
    till = Till()
    async with serve(till.app()) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url))
        async with gateway.inner._http.post(gateway.mcp_url(rollout), data=body, headers=headers) as answer:
            assert answer.status in (400, 403)
            assert (await answer.json())["error"]["code"] == code
    assert till.headers == []


async def test_an_agents_credentials_stay_at_the_gateway_and_the_servers_go_to_the_server() -> None:
    till = Till()
    async with serve(till.app()) as url, serve_gateway() as gateway:
        rollout = gateway.open(ToolDoor("till", f"{url}/mcp", headers={"authorization": "Bearer the-servers"}))
        call = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        headers = {
            "authorization": "Bearer the-agents", "cookie": "the=agents", "content-type": "application/json",
            "accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25",
        }  # fmt: skip
        async with gateway.inner._http.post(gateway.mcp_url(rollout), json=call, headers=headers) as answer:
            assert (await answer.json())["result"] == {}
    assert till.headers[0]["authorization"] == "Bearer the-servers"
    assert till.headers[0]["mcp-protocol-version"] == "2025-11-25"
    assert "the-agents" not in str(till.headers)
    assert "the=agents" not in str(till.headers)


@pytest.mark.parametrize("mode", VERSIONS)
async def test_an_unmodified_stdio_server_is_a_session_of_its_own_behind_the_gateway(tmp_path: Path, mode: str) -> None:
    command = f"{sys.executable} -m tests.reference_server"
    source = third_party(ToolsSection(command=command, server="reference"), tmp_path)
    session = await source.open_session(task_from_dict(TASK, server="reference"))
    async with serve_gateway() as gateway:
        rollout = gateway.open(ToolDoor(session.door.name, session.door.url))
        async with Client(gateway.mcp_url(rollout), mode=mode) as client:
            seen = await look_at_everything(client, stateful=False)
    await session.close()
    async with Client(Reference().mcp()) as client:
        directly = await look_at_everything(client, stateful=False)
    alike = ("instructions", "note", "any note", "prompt", "call", "wrong", "progress")
    assert {name: seen[name] for name in alike} == {name: directly[name] for name in alike}
    assert seen["tools"].tools == directly["tools"].tools
    assert seen["completion"].completion.values == ["Ada", "Adb"]
    assert [span.attributes[semconv.TOOL_CALL_RESULT] for span in gateway.spans][:1] == ["counted to 3"]


def bridged(url: str) -> StdioServerParameters:
    return StdioServerParameters(command=sys.executable, args=["-m", "harness.bridge"], env={"MCP_URL": url}, cwd=REPO)


# Pinned, for a client that looks for the version itself waits only so long for a process to start.
@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
async def test_a_stdio_client_sees_through_the_bridge_what_the_server_offers(mode: str) -> None:
    stateful = mode == "legacy"
    async with serve(reference_app(Reference())) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url, "reference", repeats_safely=False))
        async with Client(f"{url}/mcp", mode=mode, elicitation_callback=accept) as client:
            directly = await look_at_everything(client, stateful=stateful)
        async with Client(bridged(gateway.mcp_url(rollout)), mode=mode, elicitation_callback=accept) as client:
            through = await look_at_everything(client, stateful=stateful)
    assert [name for name in directly if through[name] != directly[name]] == []


async def test_a_reply_lost_on_the_way_to_the_bridge_leaves_one_effect() -> None:
    till = Till()
    lose: list[Callable[[], bool]] = [lambda: True]
    async with serve(till.app()) as url, serve_gateway() as gateway:
        rollout = gateway.open(door(url))

        async def losing(scope: Any, receive: Any, send: Any) -> None:
            calls = b"sell" in [value for name, value in scope.get("headers", []) if name == b"mcp-name"]

            async def sometimes(message: Any) -> None:
                if calls and lose and message["type"] == "http.response.body":
                    lose.pop()
                    return
                await send(message)

            await gateway.inner.handle_mcp(rollout, scope, receive, sometimes)

        async with serve(losing) as front, Client(bridged(f"{front}/mcp"), mode="2026-07-28") as client:
            result = await client.call_tool("sell", {"item": "lamp"})
    assert result.content[0].text == "sold lamp as number 1"
    assert till.effects == ["lamp"]
    assert not lose, "no reply was lost"
