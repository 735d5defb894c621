"""Plain tool calls are answered as the SDK would have answered them, and what isn't plain is left to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from mcp import Client

from mcp_servers import serve
from mcp_servers.game_2048.server import game_2048_world
from mcp_servers.plain_calls import plain_call, plain_headers
from mcp_servers.serve import LOOPBACK_HOSTS, WorldApp
from mcp_servers.sessions import Sessions
from mcp_servers.world import World
from tests.served_worlds import CLIENT_META, post_in_memory, serve_world

META = "io.modelcontextprotocol/"
LATEST, HANDSHAKE = "2026-07-28", "2025-11-25"
Headers = list[tuple[str, str]]


@pytest.fixture(scope="module")
def world() -> World:
    return game_2048_world()


def params(version: str, name: str = "look", arguments: Any = None, **more: Any) -> dict[str, Any]:
    meta = {"_meta": dict(CLIENT_META)} if version == LATEST else {}
    return {"name": name, "arguments": arguments if arguments is not None else {}} | meta | more


def body(version: str, request_id: Any = 7, **changes: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params(version)} | changes


def with_meta(**changes: Any) -> dict[str, Any]:
    """A call of 2026-07-28 whose `_meta` differs; None leaves a field out."""
    meta = {**CLIENT_META, **{f"{META}{name}": value for name, value in changes.items()}}
    return body(LATEST, params=params(LATEST, _meta={name: value for name, value in meta.items() if value is not None}))


def headers_for(request: Any, version: str, changes: Mapping[str, str | None]) -> Headers:
    """What a client sends with a request; a change of None leaves a header out."""
    asked = request.get("params") if isinstance(request, dict) else None
    called = asked.get("name", "") if isinstance(asked, dict) else "look"
    sent: dict[str, str | None] = {
        "host": "127.0.0.1:8000",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": version,
        **({"mcp-method": "tools/call", "mcp-name": str(called)} if version == LATEST else {}),
        **changes,
    }
    return [(name, value) for name, value in sent.items() if value is not None]


async def ask(world: World, payload: bytes, headers: Headers, *, sdk_only: bool, spans: list[Any]) -> tuple[Any, ...]:
    """Status, body and what came of one request to an app of its own."""
    sessions = Sessions(world.base, world.run)
    app = WorldApp(world, sessions, "key", sdk_only=sdk_only)

    async def watch(ctx: Any, call_next: Any) -> Any:
        spans.append((ctx.method, ctx.request_id, ctx.protocol_version, dict(ctx.params)))
        return await call_next(ctx)

    app._server._lowlevel_server.middleware.insert(0, watch)  # pyright: ignore[reportPrivateUsage]
    session = sessions.create()
    async with app.running():
        status, text = await post_in_memory(app, f"/s/{session.key}/mcp", payload, headers, parts=2)
    return status, json.loads(text) if text.startswith(b"{") else text, session.state.hash(), sorted(session.calls)


PLAIN: dict[str, tuple[Any, str, dict[str, str | None]]] = {
    f"{name}, {version}": (request(version), version, headers)
    for version in (LATEST, HANDSHAKE)
    for name, request, headers in (
        ("a read", lambda v: body(v), {}),
        ("a write", lambda v: body(v, params=params(v, "move", {"direction": "left"})), {}),
        ("a refusal", lambda v: body(v, params=params(v, "move", {"direction": "nowhere"})), {}),
        ("a wrong type", lambda v: body(v, params=params(v, "move", {"direction": 1.5})), {}),
        ("an unknown tool", lambda v: body(v, params=params(v, "drop_tables")), {}),
        ("NaN", lambda v: body(v, params=params(v, "move", {"direction": float("nan")})), {}),
        ("an id that is text", lambda v: body(v, "seven"), {}),
        ("an idempotency key", lambda v: body(v), {"x-idempotency-key": "k1"}),
        ("loopback by name", lambda v: body(v), {"host": "localhost"}),
        ("space around headers", lambda v: body(v), {"mcp-protocol-version": f" {version} \t"}),
    )
}
PLAIN |= {
    "no client info": (with_meta(clientInfo=None), LATEST, {}),
    "a key in the meta": (
        body(LATEST, params=params(LATEST, _meta={**CLIENT_META, "harness/idempotency-key": "k2"})),
        LATEST,
        {},
    ),
    "no arguments": (body(HANDSHAKE, params={"name": "look"}), HANDSHAKE, {}),
}
NOT_PLAIN: dict[str, tuple[Any, str, dict[str, str | None]]] = {
    "another method": (body(LATEST, method="tools/list"), LATEST, {"mcp-method": "tools/list"}),
    "an unknown method": (body(LATEST, method="tools/drop"), LATEST, {"mcp-method": "tools/drop"}),
    "an unknown prompt": (body(HANDSHAKE, method="prompts/get", params={"name": "x"}), HANDSHAKE, {}),
    "header and method differ": (body(LATEST), LATEST, {"mcp-method": "tools/list"}),
    "header and name differ": (body(LATEST), LATEST, {"mcp-name": "move"}),
    "no method header": (body(LATEST), LATEST, {"mcp-method": None}),
    "an encoded name": (body(LATEST), LATEST, {"mcp-name": "=?base64?bG9vaw==?="}),
    "no meta": (body(LATEST, params={"name": "look", "arguments": {}}), LATEST, {}),
    "another version in the meta": (with_meta(protocolVersion=HANDSHAKE), LATEST, {}),
    "an unknown version": (body(HANDSHAKE), "1999-01-01", {}),
    "capabilities of no object": (with_meta(clientCapabilities=[]), LATEST, {}),
    "capabilities that are none": (with_meta(clientCapabilities={"roots": 5}), LATEST, {}),
    "client info of no object": (with_meta(clientInfo={"name": 5}), LATEST, {}),
    "a progress token": (body(HANDSHAKE, params=params(HANDSHAKE, _meta={"progressToken": 1})), HANDSHAKE, {}),
    "more members": (body(LATEST, extra=1), LATEST, {}),
    "more params": (body(LATEST, params=params(LATEST, inputResponses={})), LATEST, {}),
    "an id of null": (body(LATEST, None), LATEST, {}),
    "an id of true": (body(LATEST, True), LATEST, {}),
    "no id": ({key: value for key, value in body(LATEST).items() if key != "id"}, LATEST, {}),
    "a name of no text": (body(LATEST, params=params(LATEST, name=5)), LATEST, {}),
    "arguments of no object": (body(HANDSHAKE, params={"name": "look", "arguments": [1]}), HANDSHAKE, {}),
    "params of no object": (body(HANDSHAKE, params=[1]), HANDSHAKE, {"mcp-name": "look"}),
    "JSON-RPC 1.0": (body(LATEST, jsonrpc="1.0"), LATEST, {}),
    "a batch": ([body(LATEST)], LATEST, {}),
    "another host": (body(LATEST), LATEST, {"host": "evil.example"}),
    "another origin": (body(LATEST), LATEST, {"origin": "http://evil.example"}),
    "another content type": (body(LATEST), LATEST, {"content-type": "text/plain"}),
    "no accept": (body(LATEST), LATEST, {"accept": "text/html"}),
    "lone surrogates": (body(LATEST, params=params(LATEST, "move", {"direction": "\ud800"})), LATEST, {}),
    "lone surrogates before": (
        body(HANDSHAKE, params=params(HANDSHAKE, "move", {"direction": "\udfff"})),
        HANDSHAKE,
        {},
    ),
    "arguments in headers": (body(LATEST), LATEST, {"mcp-param-x": "1"}),
}


@pytest.mark.parametrize("case", [*PLAIN, *NOT_PLAIN])
async def test_a_request_is_answered_as_the_sdk_answers_it(world: World, case: str) -> None:
    request, version, changes = (PLAIN | NOT_PLAIN)[case]
    payload, headers = json.dumps(request).encode(), headers_for(request, version, changes)
    stripped = [(name.encode(), value.strip().encode()) for name, value in headers]
    scope = {"method": "POST", "headers": [*stripped, (b"content-length", str(len(payload)).encode())]}
    plain = plain_headers(scope, LOOPBACK_HOSTS)
    assert (plain is not None and plain_call(plain, payload) is not None) == (case in PLAIN)
    spans: tuple[list[Any], list[Any]] = ([], [])
    ours = await ask(world, payload, headers, sdk_only=False, spans=spans[0])
    theirs = await ask(world, payload, headers, sdk_only=True, spans=spans[1])
    assert ours == theirs
    assert repr(spans[0]) == repr(spans[1])
    assert (ours[0] == 200 and "result" in ours[1]) or case not in PLAIN


@pytest.mark.parametrize("payload", [b"", b"{", b"[" * 100_000, b'{"id": ' + b"9" * 5000 + b"}", b"\xff\xfe", b"null"])
async def test_what_is_no_json_is_answered_as_the_sdk_answers_it(world: World, payload: bytes) -> None:
    for version in (LATEST, HANDSHAKE):
        headers = headers_for({}, version, {})
        ours = await ask(world, payload, headers, sdk_only=False, spans=[])
        assert ours == await ask(world, payload, headers, sdk_only=True, spans=[])
        assert ours[0] == 400


@pytest.mark.parametrize("sdk_only", [False, True])
async def test_a_defect_of_a_tool_is_the_servers_failure_and_no_answer_to_the_agent(
    world: World, sdk_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(game: Any) -> Any:
        raise ZeroDivisionError("a secret of the server")

    monkeypatch.setitem(world.toolbox.tools, "look", broken)
    payload, headers = json.dumps(body(LATEST)).encode(), headers_for(body(LATEST), LATEST, {})
    status, answer, _, calls = await ask(world, payload, headers, sdk_only=sdk_only, spans=[])
    assert (status, calls) == (503, [])
    assert "a defect of the tool: ZeroDivisionError" in answer["error"]
    assert "secret" not in answer["error"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_calls_of_the_official_client_are_plain(
    world: World, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []

    def watched(headers: dict[str, str], body: bytes) -> Any:
        call = plain_call(headers, body)
        found.append(call is not None)
        return call

    monkeypatch.setattr(serve, "plain_call", watched)
    async with serve_world(world) as served, Client(served.door(served.sessions.create()), mode=mode) as client:
        for name, arguments in (("look", {}), ("move", {"direction": "nowhere"})):
            await client.call_tool(name, arguments)
    assert found.count(True) == 2
