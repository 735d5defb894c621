"""Whatever an agent sends to its tool door, and whatever its tool server sends back: JSON-RPC's error shape, a span
where a tool was called, and a rollout that ends as ours where the server was at fault."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from starlette.types import Receive, Scope, Send

from harness.gateway.keys import ToolDoor
from tests.tool_doors import serve, serve_gateway

CALL: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "f", "arguments": {}}}


def server_that_says(body: bytes) -> Any:
    """A tool server that answers everything with this."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


async def ask(url: str, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    given = {"content-type": "application/json", "accept": "application/json, text/event-stream", **headers}
    async with aiohttp.ClientSession() as http, http.post(url, data=body, headers=given) as response:
        return response.status, json.loads(await response.read())


def answer(**fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, **fields}).encode()


FINE = answer(result={"content": [{"type": "text", "text": "fine"}]})
NO_CALL = {
    "broken JSON": (b'{"jsonrpc": "2.0"', 400),
    "a list": (b"[]", 400),
    "nesting without end": (b'{"x": ' + b"[" * 100_000, 400),
    "metadata that is text": (json.dumps({**CALL, "params": {"name": "f", "_meta": "x"}}).encode(), 200),
}


async def test_what_is_no_call_is_told_so_and_reaches_no_server() -> None:
    async with serve(server_that_says(FINE)) as url, serve_gateway() as gateway:
        rollout = gateway.open(ToolDoor("other", url))
        for case, (body, status) in NO_CALL.items():
            told = await ask(gateway.mcp_url(rollout), body)
            assert (told[0], "message" in told[1]["error"]) == (status, True), case
        key = {"_meta": {"harness/idempotency-key": ["x"], "traceparent": 5}}
        odd = json.dumps({**CALL, "params": {**CALL["params"], **key}}).encode()
        assert (await ask(gateway.mcp_url(rollout), odd))[1]["result"]["content"][0]["text"] == "fine"
        assert (await ask(gateway.mcp_url(rollout), odd, host="[half"))[0] == 403
    assert [span.attributes.get("error.type") for span in gateway.spans] == [None]
    assert rollout.infrastructure_error is None


ANSWERS = {
    "no JSON": b"<html>",
    "a list": b"[]",
    "a result that is a list": answer(result=[1]),
    "a result that is text": answer(result="x"),
    "nesting without end": b'{"result": ' + b"[" * 100_000,
}


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("case", ANSWERS)
async def test_a_server_that_sends_garbage_fails_its_own_rollout_and_is_a_span(case: str, servers: int) -> None:
    async with serve(server_that_says(ANSWERS[case])) as url, serve_gateway() as gateway:
        rollout = gateway.open(*(ToolDoor(f"s{number}", url) for number in range(servers)))
        status, told = await ask(gateway.mcp_url(rollout), json.dumps(CALL).encode())
        if servers > 1:  # what a single server says of itself passes unchanged
            _, listed = await ask(gateway.mcp_url(rollout), json.dumps({**CALL, "method": "tools/list"}).encode())
            assert "error" in listed
    assert (status, told["result"]["isError"]) == (200, True)
    (span,) = gateway.spans
    assert span.attributes["error.type"] == "refused"
    assert rollout.infrastructure_error is not None


ODD = {
    "content that is no list": {"content": 5},
    "parts that are no objects": {"content": [5, None]},
    "a text without text": {"content": [{"type": "text"}]},
    "no content": {},
}


@pytest.mark.parametrize("case", ODD)
async def test_an_odd_result_is_passed_on_as_it_is_and_recorded(case: str) -> None:
    async with serve(server_that_says(answer(result=ODD[case]))) as url, serve_gateway() as gateway:
        rollout = gateway.open(ToolDoor("other", url))
        assert (await ask(gateway.mcp_url(rollout), json.dumps(CALL).encode()))[1]["result"] == ODD[case]
    assert len(gateway.spans) == 1


LISTS = {"no list": {"tools": 5}, "no objects": {"tools": [5]}, "no names": {"tools": [{"name": 5}, {}]}}


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("case", LISTS)
async def test_an_odd_list_of_tools_has_none_that_may_be_called(case: str, servers: int) -> None:
    async with serve(server_that_says(answer(result=LISTS[case]))) as url, serve_gateway() as gateway:
        rollout = gateway.open(*(ToolDoor(f"s{number}", url) for number in range(servers)), allowed=["f"])
        _, listed = await ask(gateway.mcp_url(rollout), json.dumps({**CALL, "method": "tools/list"}).encode())
    assert listed["result"]["tools"] == []
