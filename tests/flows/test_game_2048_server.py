"""2048 as the harness meets it: started by name, begun where the task says, played over MCP, graded by the board."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp

from harness.session import start_tool_server
from tests.served_worlds import post_call


async def test_the_harness_starts_2048_by_name_and_a_game_played_over_mcp_is_graded(tmp_path: Path) -> None:
    async with start_tool_server("game_2048", tmp_path) as server, aiohttp.ClientSession() as http:
        (task,) = await server.tasks("train", seed=1, kinds=["reach"], difficulty=1)
        session = await server.open_session(task)
        begun = await session.state("hash")
        assert not (await session.grade(task, "I won."))["passed"]
        for action in task.expected["actions"]:
            answer = await post_call(http, session.door.url, action["name"], action["arguments"])
            assert not answer["isError"], answer
        position: dict[str, Any] = json.loads(answer["content"][0]["text"])
        assert position == answer["structuredContent"]
        assert (position["status"], position["best_tile"]) == ("won", 16)
        over = await post_call(http, session.door.url, "move", {"direction": "left"})
        assert over["content"][0]["text"].startswith("Error: The game is over: won with ")
        grade = await session.grade(task, None)
        assert (grade["passed"], grade["value"], grade["components"]["win"]) == (True, 1, 1.0)
        assert grade["components"]["score"] == position["score"]
        again = await server.open_session(task)
        assert await again.state("hash") == begun != await session.state("hash")
