"""Sessions of a real tool server process: opened, reached over MCP, graded, closed, and agents told nothing of it."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from mcp import Client, MCPError

from harness.errors import JudgeError, ToolServerError
from harness.process import ProcessError
from harness.session import attach_tool_server, start_tool_server
from harness.session_process import ProcessPerSession
from harness.task import task_from_dict


async def test_a_started_server_lists_opens_grades_and_closes(tmp_path: Path) -> None:
    async with start_tool_server("retail", tmp_path) as server:
        tasks = await server.tasks("train", seed=1, count=3)
        assert [task.id for task in tasks] == [task.id for task in await server.tasks("train", seed=1, count=3)]
        narrow = await server.tasks("train", count=6, kinds=("cancel", "return"), difficulty=2)
        assert ({task.kind for task in narrow}, {task.difficulty for task in narrow}) == ({"cancel", "return"}, {2})
        task = next(task for task in tasks if not task.is_refusal)
        session = await server.open_session(task)
        async with Client(session.door.url) as client:
            assert len((await client.list_tools()).tools) == 16
        grade = await session.grade(task, "done")
        assert (grade["passed"], grade["value"]) == (False, 0)
        await session.close()
        with pytest.raises(ToolServerError) as gone:
            await session.grade(task, "done")
        assert session.id in gone.value.asked
        async with attach_tool_server("retail", server.url, server.control.url, "another key") as intruder:
            with pytest.raises(ToolServerError):
                await intruder.open_session(task)
        with pytest.raises((MCPError, ExceptionGroup)):
            async with Client(session.door.url) as client:
                await client.list_tools()
    assert "control" not in session.door.url
    assert server.control.key not in repr(server)


async def test_a_server_that_does_not_exist_is_named_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ProcessError) as refusal:
        async with start_tool_server("nowhere", tmp_path):
            pass
    assert "mcp_servers.nowhere" in refusal.value.asked
    assert "No module named" in refusal.value.found


def test_a_task_that_lacks_a_field_is_refused_by_its_name() -> None:
    with pytest.raises(ToolServerError) as refusal:
        task_from_dict({"id": "t-1", "split": "train", "kind": "cancel"}, server="retail")
    assert "'t-1'" in refusal.value.asked
    assert "user_message" in refusal.value.found


def test_fields_of_a_task_that_nobody_knows_go_back_to_their_server() -> None:
    raw = {"id": "t", "split": "train", "kind": "k", "user_message": "m", "world_seed": 7}
    task = task_from_dict(raw, server="retail")
    assert task.metadata == {"world_seed": 7}
    assert task.to_dict()["metadata"] == {"world_seed": 7}
    assert replace(task, expected={"a": 1}).for_agent().to_json().count("expected") == 0


SHOP = """
import sys
from mcp.server import MCPServer
shop, sold = MCPServer("shop"), []

@shop.tool()
def sell(item: str) -> str:
    "Sells an item."
    sold.append(item)
    return ", ".join(sold)

shop.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
"""


async def test_a_server_without_state_control_gets_a_process_for_every_session(tmp_path: Path) -> None:
    script = tmp_path / "shop.py"
    script.write_text(SHOP)
    server = ProcessPerSession("shop", (sys.executable, str(script), "{port}"), tmp_path)
    task = task_from_dict({"id": "t", "split": "train", "kind": "k", "user_message": "m"}, server="shop")
    sessions = await asyncio.gather(*(server.open_session(task) for _ in range(2)))
    sold: list[str] = []
    for session in sessions:
        async with Client(session.door.url) as client:
            sold.append((await client.call_tool("sell", {"item": "lamp"})).content[0].text)
    assert sold == ["lamp", "lamp"], "the second session saw the state of the first"
    with pytest.raises(JudgeError, match="--reward ruler"):
        await sessions[0].grade(task, "done")
    for session in sessions:
        await session.close()
        async with aiohttp.ClientSession() as http:
            with pytest.raises(aiohttp.ClientConnectorError):
                await http.get(session.door.url)


async def test_a_third_partys_server_that_dies_at_start_is_a_tool_server_error(tmp_path: Path) -> None:
    server = ProcessPerSession("broken", (sys.executable, "-c", "raise SystemExit('no licence')"), tmp_path)
    task = task_from_dict({"id": "t", "split": "train", "kind": "k", "user_message": "m"}, server="broken")
    with pytest.raises(ToolServerError) as refusal:
        await server.open_session(task)
    assert "no licence" in refusal.value.found
