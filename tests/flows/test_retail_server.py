"""`python -m mcp_servers.retail` as people, harness and agents meet it: it starts, serves, refuses, stops, survives."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters

from mcp_servers.generator import expert_actions
from mcp_servers.retail.__main__ import run
from mcp_servers.retail.data import generated_base
from mcp_servers.retail.server import retail_world
from mcp_servers.retail.tasks import generate_tasks
from mcp_servers.session_server import SessionServer
from mcp_servers.sessions import Sessions
from mcp_servers.state import Base, State
from tests.served_worlds import CONTROL_KEY, Running, run_server

CANCEL = "cancel_pending_order"


@pytest.fixture(scope="module")
def running() -> Generator[Running]:
    with run_server() as server:
        yield server


def open_session(server: Running, **body: Any) -> dict[str, str]:
    with server.control() as control:
        response = control.post("/control/sessions", json=body)
    assert response.status_code == 201, response.text
    return response.json()


def a_task(server: Running, kind: str, index: int = 0) -> dict[str, Any]:
    query: dict[str, Any] = {"split": "train", "seed": 1, "offset": index, "count": 1, "kind": kind, "difficulty": 1}
    with server.control() as control:
        return control.get("/control/tasks", params=query).json()["tasks"][0]


def door(server: Running, session: dict[str, str]) -> str:
    return f"{server.ready['url']}/s/{session['session_key']}/mcp"


def call(
    server: Running, session: dict[str, str], name: str, arguments: dict[str, Any], key: str = ""
) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
    response = httpx2.post(
        door(server, session), json=body, headers=headers | ({"x-idempotency-key": key} if key else {})
    )
    assert response.status_code == 200, response.text
    return response.json()["result"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_agent_solves_a_task_over_either_protocol_and_the_grade_says_so(running: Running, mode: Any) -> None:
    task = a_task(running, "cancel", 1 if mode == "auto" else 2)
    session = open_session(running, task=task)
    async with Client(door(running, session), mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        for name, arguments in expert_actions(task):
            assert not (await client.call_tool(name, arguments)).is_error
        refused = await client.call_tool(CANCEL, {"order_id": "#A000", "reason": "no longer needed"})
    assert len(tools) == 16
    assert tools[CANCEL].annotations is not None
    assert (tools[CANCEL].annotations.read_only_hint, tools["calculate"].annotations.read_only_hint) == (False, True)  # pyright: ignore[reportOptionalMemberAccess]
    assert "description" in tools[CANCEL].input_schema["properties"]["reason"]
    assert (refused.is_error, refused.content[0].text) == (True, "Error: Order not found")  # pyright: ignore[reportAttributeAccessIssue]
    with running.control() as control:
        body = {"task": task, "answer": "Done."}
        grade = control.post(f"/control/sessions/{session['session_id']}/grade", json=body).json()
    assert (grade["passed"], grade["value"]) == (True, 1)


async def test_structured_answers_fit_the_output_schema_that_clients_check(running: Running) -> None:
    session = open_session(running)
    task = a_task(running, "exchange")
    async with Client(door(running, session)) as client:
        for name, arguments in expert_actions(task):
            result = await client.call_tool(name, arguments)
            text = result.content[0].text  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
            assert result.structured_content is None or result.structured_content == json.loads(text)
        policy = await client.read_resource("policy://retail")
    assert "Cancel: only pending orders" in policy.contents[0].text  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("output_schemas", [True, False])
async def test_structured_answers_and_their_schemas_can_be_left_out_together(output_schemas: bool) -> None:
    world = retail_world()
    sessions = Sessions(world.base, world.run)
    server = SessionServer(world, sessions, output_schemas=output_schemas, only=sessions.create())
    async with Client(server) as client:
        listed = (await client.list_tools()).tools
        answer = await client.call_tool("get_order_details", {"order_id": next(iter(world.base.ids("orders")))})
    assert any(tool.output_schema for tool in listed) == output_schemas
    assert (answer.structured_content is not None) == output_schemas
    assert json.loads(answer.content[0].text)["status"]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType]


def test_sessions_fork_snapshot_restore_and_hash_through_the_control_api(running: Running) -> None:
    task = a_task(running, "cancel")
    name, arguments = expert_actions(task)[-1]
    session = open_session(running)
    path = f"/control/sessions/{session['session_id']}"
    with running.control() as control:
        untouched = control.get(f"{path}/hash").json()["hash"]
        snapshot = control.post(f"{path}/snapshot").json()
        call(running, session, name, arguments)
        cancelled = control.get(f"{path}/hash").json()["hash"]
        fork = control.post(f"{path}/fork").json()
        assert control.post(f"{path}/restore", json=snapshot).json()["hash"] == untouched != cancelled
        assert control.get(f"/control/sessions/{fork['session_id']}/hash").json()["hash"] == cancelled
        diff = control.get(f"/control/sessions/{fork['session_id']}/diff").json()["diff"]
        order = diff["orders"][arguments["order_id"]]
        assert (order["before"]["status"], order["after"]["status"]) == ("pending", "cancelled")
        one = {"kind": "orders", "entity": arguments["order_id"]}
        assert control.get(f"{path}/state", params=one).json()["entity"]["status"] == "pending"
        assert control.delete(path).status_code == 204
        assert control.get(f"{path}/hash").status_code == 404


def test_a_repeated_call_with_its_key_in_the_header_takes_effect_once(running: Running) -> None:
    session = open_session(running)
    name, arguments = expert_actions(a_task(running, "cancel"))[-1]
    first, again = (call(running, session, name, arguments, "key-1") for _ in range(2))
    assert first == again
    other = call(running, session, name, arguments, "key-2")
    assert other["content"][0]["text"] == "Error: Non-pending order cannot be cancelled"


async def test_a_repeated_call_with_its_key_in_the_meta_takes_effect_once(running: Running) -> None:
    session = open_session(running)
    name, arguments = expert_actions(a_task(running, "cancel"))[-1]
    async with Client(door(running, session)) as client:
        meta: Any = {"harness/idempotency-key": "key-1"}
        results = [await client.call_tool(name, arguments, meta=meta) for _ in range(2)]
    assert [result.is_error for result in results] == [False, False]
    assert results[0].content == results[1].content


@pytest.mark.parametrize("key", ["", "wrong", CONTROL_KEY[:-1]])
@pytest.mark.parametrize("path", ["/control/tasks", "/control/sessions", "/control/anything", "/nothing"])
def test_without_the_control_key_the_control_api_looks_like_nothing_at_all(
    running: Running, path: str, key: str
) -> None:
    response = httpx2.get(running.ready["url"] + path, headers={"authorization": f"Bearer {key}"} if key else {})
    assert (response.status_code, response.json()) == (404, {"error": "not found"})


def test_an_answer_does_not_wait_for_a_delayed_acknowledgement(running: Running) -> None:
    session = open_session(running)
    with httpx2.Client() as client:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
        taken: list[float] = []
        for _ in range(20):
            start = time.perf_counter()
            assert client.post(door(running, session), json=body, headers=headers).status_code == 200
            taken.append(time.perf_counter() - start)
    # With Nagle's algorithm on, every one takes 40 ms; without, the fastest shows it however busy the machine is.
    assert min(taken) < 0.035


async def test_an_unknown_session_key_is_refused_in_words_and_shows_no_more_of_the_key(running: Running) -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        async with Client(f"{running.ready['url']}/s/some-long-secret-key/mcp"):
            pass
    found = raised.value
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, MCPError)
    assert "'some-l…'" in str(found)
    assert "no such session here, or it has expired" in str(found)


def test_a_request_that_names_another_host_is_refused_on_loopback(running: Running) -> None:
    session = open_session(running)
    headers = {"host": "evil.example", "accept": "application/json", "mcp-protocol-version": "2025-11-25"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert httpx2.post(door(running, session), json=body, headers=headers).status_code == 421


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "/control/tasks?split=x", None, 422, "unknown split 'x'"),
        ("GET", "/control/tasks?count=many", None, 422, "not a whole number: 'many'"),
        ("GET", "/control/tasks?count=-1", None, 422, "count must be 0 to 10000"),
        ("POST", "/control/sessions", b"[1]", 422, "must be a JSON object, got list"),
        ("POST", "/control/sessions", b"{", 422, "the body is not JSON"),
        ("POST", "/control/sessions", b'{"durable": true}', 409, "keeps no journal"),
        ("POST", "/control/sessions", b'{"task": {"server": "airline"}}', 422, "the task is of the server 'airline'"),
        ("GET", "/control/sessions/nobody/hash", None, 404, "no such session here"),
        ("PUT", "/control/sessions", None, 405, "no PUT /control/sessions here"),
    ],
)
def test_what_the_control_api_can_not_do_it_says_with_the_value(
    running: Running, method: str, path: str, body: bytes | None, status: int, words: str
) -> None:
    with running.control() as control:
        response = control.request(method, path, content=body)
    assert response.status_code == status
    assert words in response.json()["error"]


def test_grading_without_the_task_is_refused_with_what_was_given(running: Running) -> None:
    session = open_session(running)
    with running.control() as control:
        response = control.post(f"/control/sessions/{session['session_id']}/grade", json={"task": None})
    assert (response.status_code, "got NoneType" in response.text) == (422, True)


def test_health_says_which_server_answers(running: Running) -> None:
    health = httpx2.get(f"{running.ready['url']}/health").json()
    assert (health["status"], health["server"]) == ("ok", "retail")


def test_a_port_in_use_is_one_clear_message_and_an_exit_code(running: Running) -> None:
    port = running.ready["url"].rsplit(":", 1)[1]
    argv = [sys.executable, "-m", "mcp_servers.retail", "--port", port]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=170, check=False)
    assert ended.returncode != 0
    assert len(ended.stderr.strip().splitlines()) == 1
    assert f"listen on 127.0.0.1:{port}" in ended.stderr
    assert "--port" in ended.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--db", "none.db"], r"'none\.db'; found: no such file"),
        (["--db", "broken.json"], r"'broken\.json'"),
        (["--host", "0.0.0.0"], "no control key; give --control-key"),
        (["--sessions", "no/such/folder/sessions.db"], "keep sessions in 'no/such/folder/sessions.db'"),
    ],
)
def test_what_it_can_not_start_with_is_one_message_that_names_it(
    options: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HARNESS_CONTROL_KEY", raising=False)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(SystemExit, match=words) as ended:
        run(options)
    assert "\n" not in str(ended.value.code)


def test_terminating_the_server_ends_it_cleanly_and_frees_its_port(tmp_path: Path) -> None:
    with run_server("--ready-file", str(tmp_path / "ready.json")) as server:
        assert json.loads((tmp_path / "ready.json").read_text()) == server.ready
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=30) == 0
        port = int(server.ready["url"].rsplit(":", 1)[1])
        socket.create_server(("127.0.0.1", port)).close()


def test_durable_sessions_survive_a_kill_and_answered_calls_are_not_repeated(tmp_path: Path) -> None:
    options = ("--sessions", str(tmp_path / "sessions.db"))
    with run_server(*options) as server:
        session = open_session(server)
        name, arguments = expert_actions(a_task(server, "cancel"))[-1]
        answered = call(server, session, name, arguments, "key-1")
        with server.control() as control:
            before = control.get(f"/control/sessions/{session['session_id']}/hash").json()
        server.process.kill()
        server.process.wait(timeout=30)
    with run_server(*options) as server:
        with server.control() as control:
            assert control.get(f"/control/sessions/{session['session_id']}/hash").json() == before
        assert call(server, session, name, arguments, "key-1") == answered


def test_a_written_base_makes_the_same_world_as_the_generated_one(tmp_path: Path) -> None:
    run(["--write-db", str(tmp_path / "base.db")])
    opened, generated = Base.open(tmp_path / "base.db"), generated_base()
    assert State(opened).hash() == State(generated).hash()
    assert generate_tasks("train", 1, 0, 20, base=opened) == generate_tasks("train", 1, 0, 20, base=generated)


async def test_over_stdio_a_server_has_one_session_and_the_same_tools() -> None:
    parameters = StdioServerParameters(command=sys.executable, args=["-m", "mcp_servers.retail", "--stdio"])
    async with Client(parameters) as client:
        assert len((await client.list_tools()).tools) == 16
        result = await client.call_tool("calculate", {"expression": "2 + 3"})
    assert result.content[0].text == "5.0"  # pyright: ignore[reportAttributeAccessIssue]
