"""Demonstrations show what they say: experts solve their tasks, careless agents don't, and only train users appear."""

from __future__ import annotations

import argparse
import json
from typing import Any

from mcp_servers.retail.data import generated_base
from mcp_servers.retail.demonstrations import Table, demonstrations
from mcp_servers.retail.state import open_retail
from mcp_servers.retail.tasks import KINDS, generate_tasks
from mcp_servers.retail.tools import call_tool
from mcp_servers.state import canonical

BASE = generated_base()


def shown(count: int, sloppy: float) -> list[dict[str, Any]]:
    given = argparse.Namespace(
        split="train", seed=3, offset=0, count=count, sloppy=sloppy, kinds=",".join(KINDS), levels=""
    )
    return list(demonstrations(BASE, given))


def solves(record: dict[str, Any], number: int) -> bool:
    task = generate_tasks("train", 3, number, 1, base=BASE)[0]
    retail = open_retail(BASE)
    for message in record["messages"]:
        for call in message.get("tool_calls", []):
            call_tool(retail, call["function"]["name"], json.loads(call["function"]["arguments"]))
    return canonical(retail.state.changes()) == canonical(task["expected"]["changes"])


def test_every_expert_conversation_solves_its_own_task() -> None:
    assert all(solves(record, number) for number, record in enumerate(shown(80, 0.0)))


def test_every_careless_conversation_leaves_a_wrong_state() -> None:
    records = shown(80, 1.0)
    assert sum(record["careless"] for record in records) > 60
    assert not any(solves(record, number) for number, record in enumerate(records) if record["careless"])


def test_each_assistant_turn_is_one_call_or_the_closing_text() -> None:
    for record in shown(60, 0.5):
        written = [message for message in record["messages"] if message["role"] == "assistant"]
        assert all(len(message["tool_calls"]) == 1 for message in written[:-1])
        assert written[-1]["content"]
        assert "tool_calls" not in written[-1]


def test_demonstrations_never_name_a_user_of_the_other_splits() -> None:
    others = {*BASE.meta["splits"]["validation"], *BASE.meta["splits"]["held_out"]}
    for record in shown(80, 0.3):
        text = json.dumps(record["messages"])
        assert not any(user_id in text for user_id in others)


def test_a_task_played_over_pipes_is_graded_by_its_final_state() -> None:
    table = Table()
    tasks = table.do({"do": "open", "split": "train", "seed": 3, "offset": 0, "count": 3})
    assert [task["expected"] for task in tasks] == [None] * 3
    for number, task in enumerate(generate_tasks("train", 3, 0, 3, base=BASE)):
        before = table.do({"do": "grade", "seat": number})
        for action in task["expected"]["actions"]:
            table.do({"do": "call", "seat": number, **action})
        assert table.do({"do": "grade", "seat": number})
        assert before == task["is_refusal"]
