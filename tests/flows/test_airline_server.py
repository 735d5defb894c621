"""The airline server as a process: tasks over its control API, solved over MCP, graded; a τ² folder in its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mcp import Client

from tests.served_worlds import Running, run_server


def opened(server: Running, query: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The first task of a query, and a session for it."""
    with server.control() as control:
        task = control.get(f"/control/tasks?{query}").json()["tasks"][0]
        return task, control.post("/control/sessions", json={"task": task}).json()


def graded(server: Running, task: dict[str, Any], session: dict[str, str], answer: str) -> dict[str, Any]:
    with server.control() as control:
        body = {"task": task, "answer": answer}
        return control.post(f"/control/sessions/{session['session_id']}/grade", json=body).json()


async def test_a_task_is_listed_solved_over_mcp_and_graded_by_a_process_of_its_own() -> None:
    with run_server(name="airline") as server:
        task, session = opened(server, "split=held_out&kind=book&difficulty=2")
        assert not graded(server, task, session, "")["passed"]
        async with Client(f"{server.ready['url']}/s/{session['session_key']}/mcp") as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert len(tools) == 14
            passenger = tools["book_reservation"].input_schema["$defs"]["Passenger"]
            assert passenger["required"] == ["first_name", "last_name", "dob"]
            for action in task["expected"]["actions"]:
                assert not (await client.call_tool(action["name"], action["arguments"])).is_error
        answer = f"It is {' and '.join(task['expected']['communicate'])} dollars."
        assert graded(server, task, session, answer) == {
            "passed": True,
            "value": 1,
            "components": dict.fromkeys(
                ("entities_right", "nothing_else_changed", "fields_right", "communicated"), 1.0
            ),
            "reason": "the state is as expected",
        }


def test_a_tau2_folder_is_served_with_its_own_tasks_and_policy(tmp_path: Path) -> None:
    (tmp_path / "db.json").write_text(json.dumps({"flights": {}, "users": {}, "reservations": {}}), encoding="utf-8")
    scenario = {"instructions": {"reason_for_call": "You want a flight.", "task_instructions": "Give up at once."}}
    task = {"id": "9", "user_scenario": scenario, "evaluation_criteria": {"actions": []}}
    (tmp_path / "tasks.json").write_text(json.dumps([task]), encoding="utf-8")
    (tmp_path / "policy.md").write_text("Be kind.", encoding="utf-8")
    with run_server("--tau2-folder", str(tmp_path), name="airline") as server:
        task, session = opened(server, "split=held_out")
        assert (task["id"], task["system_prompt"], task["is_refusal"]) == ("airline-tau2-9", "Be kind.", True)
        assert graded(server, task, session, "I am sorry.")["passed"]
