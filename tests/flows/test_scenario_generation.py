"""Scenario generation as a person runs it: real MCP servers, real LiteLLM over HTTP, a model that answers by script."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from harness.config import ToolsSection
from harness.errors import HarnessError, ToolServerError
from harness.process import ProcessSpec, start_process
from harness.scenarios.generate import Wanted, generate_tasks
from harness.scenarios.listing import read_offer
from harness.scenarios.taskfile import read_tasks, third_party
from harness.scoring.judge import Judge
from tests.conftest import REPO
from tests.scripted_judge import Call, scripted_judge
from tests.tool_doors import Till, serve

STDIO = f"{sys.executable} -m mcp_servers.retail --stdio"
WISHES = (
    "Sell me whatever lamp is cheapest and tell me which number my purchase got.",
    "I would like to know if umbrellas can be bought here at all, please try one.",
    "Buy two bicycles one after the other, then report both numbers in order.",
    "Wait until you are told to go on, and only then buy the blue kettle over there.",
    "My neighbour wants a wheelbarrow; should the shop turn it down, say why it did.",
    "Get a chair, a table and a carpet, and list what came as which number.",
    "See whether a ticket to the moon is refused, and repeat the exact wording to me.",
    "Purchase one rope per climber for the four climbers of our Sunday tour, nobody twice.",
)


def row(request: str, **changes: Any) -> dict[str, Any]:
    return {
        "request": request,
        "kind": "buy",
        "difficulty": 2,
        "tools": ["sell"],
        "success": "A number is told.",
        **changes,
    }


class Author:
    """Writes wishes and repeats itself; as a reviewer it objects to one."""

    def __init__(self, objects_to: str = "moon") -> None:
        self.objects_to = objects_to
        self.asked: list[str] = []
        self._written = 0

    def __call__(self, call: Call) -> str:
        system, user = (message["content"] for message in call.body["messages"][:2])
        self.asked.append(user)
        if system.startswith("You check"):
            lines = [line for line in user.splitlines() if line[:1].isdigit()]
            verdicts = [
                {"number": n, "passes": self.objects_to not in line, "why": "seen"} for n, line in enumerate(lines, 1)
            ]
            return json.dumps({"verdicts": verdicts})
        fresh = [row(wish) for wish in WISHES[self._written : self._written + 4]]
        self._written += 4
        again = row(WISHES[0].replace("lamp", "candle"))
        return json.dumps(
            {"scenarios": [*fresh, again, row("Buy it from [shop name] for me."), row("Sell!", tools=["fly"])]}
        )


async def test_scenarios_are_written_checked_and_split_for_a_server_over_http() -> None:
    author = Author()
    async with serve(Till().app()) as url, scripted_judge(author) as model:
        offer = await read_offer(f"{url}/mcp")
        assert ([tool.name for tool in offer.tools], offer.name) == (["sell", "refuse", "wait"], "till")
        tasks, made = await generate_tasks(offer, Judge(model.spec()), Wanted(20), "till")
    assert sorted(task.user_message for task in tasks) == sorted(wish for wish in WISHES if "moon" not in wish)
    assert made.rejected["not possible as written"] == 1
    assert made.rejected["a placeholder where a value belongs"] == made.rounds
    assert made.rejected["a near repetition"] >= 1
    assert {task.split for task in tasks} == {"train", "validation", "held_out"}
    assert all(task.server == "till" and task.difficulty == 2 for task in tasks)
    assert "Sells an item." in model.calls[0].body["messages"][0]["content"]
    written = [user for user in author.asked if user.startswith("Write")]
    assert WISHES[1] in written[-1], "later rounds are shown what is there"


async def test_an_answer_that_cant_be_read_is_asked_for_again_with_the_fault_shown() -> None:
    def moody(call: Call) -> str:
        if len(call.body["messages"]) == 2:
            return "I had rather tell you a story."
        assert "no JSON object with a list" in call.body["messages"][-1]["content"]
        return json.dumps({"scenarios": [row(WISHES[0])]})

    async with serve(Till().app()) as url, scripted_judge(moody) as model:
        offer = await read_offer(f"{url}/mcp")
        tasks, _ = await generate_tasks(offer, Judge(model.spec()), Wanted(1, reviewed=False), "till")
        assert [task.user_message for task in tasks] == [WISHES[0]]
    async with scripted_judge(lambda _: "No.") as model:
        with pytest.raises(HarnessError, match="an answer that can't be read"):
            await generate_tasks(offer, Judge(model.spec()), Wanted(1), "till")


async def test_the_command_writes_a_file_that_a_run_takes(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    async with scripted_judge(Author()) as model:
        argv = (sys.executable, "-m", "harness", "tasks", "generate", "--mcp", STDIO, "--llm", "openai/scripted")
        argv += ("--llm-base", model.url, "--count", "2", "--into", str(file), "--no-review", "--name", "my shop")
        spec = ProcessSpec(argv, tmp_path / "log", cwd=REPO)
        async with start_process(spec) as process:
            code = await asyncio.wait_for(process.wait(), 200)
        # The script names a tool that the retail server doesn't have: nothing can be used, and that is said.
        assert code == 2, process.log_tail()
        assert "tools that the server doesn't have" in process.log_tail()
        assert not file.exists()


async def test_a_stdio_server_is_a_process_for_each_session(tmp_path: Path) -> None:
    source = third_party(ToolsSection(command=STDIO, server="shop"), tmp_path)
    (task,) = read_tasks(_one_task(tmp_path), server="shop")
    sessions = [await source.open_session(task) for _ in range(2)]
    try:
        async with Client(sessions[0].door.url) as client:
            assert len((await client.list_tools()).tools) == 16
            answer = await client.call_tool("get_order_details", {"order_id": "#nowhere"})
            assert answer.is_error
    finally:
        for session in sessions:
            await session.close()


def _one_task(folder: Path) -> Path:
    (folder / "tasks.jsonl").write_text('{"user_message": "Look an order up for me."}\n')
    return folder / "tasks.jsonl"


async def test_a_server_that_isnt_there_or_isnt_mcp_is_told_with_what_to_do() -> None:
    with pytest.raises(ToolServerError, match="no command 'no-such-server'"):
        await read_offer("no-such-server --stdio")
    with pytest.raises(ToolServerError, match="no answer as MCP gives it"):
        await read_offer("http://127.0.0.1:9/mcp")
    with pytest.raises(ToolServerError, match="no answer as MCP gives it"):
        await read_offer(f"{sys.executable} -c 'print(1)'")
