"""The guide "your own server in 70 lines": its code is a file that runs, and is driven over real MCP here."""

from __future__ import annotations

import re
from pathlib import Path

from mcp import Client

from harness.session import start_tool_server

REPO = Path(__file__).resolve().parents[2]
SERVER, GUIDE = REPO / "examples" / "rooms.py", REPO / "docs" / "your-own-server.md"


def test_the_guide_shows_the_file_as_it_is_and_it_has_no_more_than_seventy_lines() -> None:
    code = SERVER.read_text(encoding="utf-8")
    shown = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.splitlines()) <= 70
    assert len(shown) >= 4
    assert [part for part in shown if part not in code] == []


async def test_the_guides_server_is_started_by_its_module_played_over_mcp_and_graded(tmp_path: Path) -> None:
    async with start_tool_server("examples.rooms", tmp_path) as server:
        (task,) = await server.tasks("held_out", seed=2, offset=1)
        assert (task.server, task.system_prompt[:26]) == ("rooms", "You book meeting rooms. Lo")
        words = re.match(r"I am (\w+)\. Please book (\w+) for me on (\w+)\.", task.user_message)
        assert words is not None
        person, room, day = words.groups()
        session, idle = [await server.open_session(task) for _ in range(2)]
        async with Client(session.door.url) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert tools["book"].input_schema["properties"]["day"]["description"].startswith("One of Monday")
            before = await client.call_tool("bookings", {"day": day})
            assert before.structured_content is not None
            assert before.structured_content[room] == "free"
            refused = await client.call_tool("book", {"day": "Sunday", "room": room, "person": person})
            assert refused.content[0].text.startswith("Error: There is no day 'Sunday'")  # pyright: ignore[reportAttributeAccessIssue]
            booked = await client.call_tool("book", {"day": day, "room": room, "person": person})
            assert not booked.is_error
            taken = await client.call_tool("book", {"day": day, "room": room, "person": "Zoe"})
            assert taken.is_error
        assert (await session.grade(task, "Booked."))["passed"]
        assert not (await idle.grade(task, "Booked."))["passed"]
