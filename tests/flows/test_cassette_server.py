"""The cassette server: recorded tasks through the same doors as any server, misses answered by the chosen rule."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from harness.agent import load_agent
from harness.cassettes.__main__ import main
from harness.cassettes.app import CassetteApp
from harness.cassettes.deck import Deck, Misses, Refuse, grade_by_record
from harness.cassettes.live import LiveServer
from harness.cassettes.shelf import Shelf, split_of
from harness.cassettes.simulate import Simulate, simulation_prompt
from harness.errors import ToolServerError
from harness.rollout import run_rollout
from harness.scoring.judge import Judge
from harness.session import ToolServer, attach_tool_server, start_tool_server
from tests.flows.test_cli_stack import run
from tests.rollout_world import AGENTS, POLICY, cancel_expert, open_rollout_world, tool_call
from tests.scripted_engine import ScriptedEngine, serve_engine
from tests.scripted_judge import scripted_judge
from tests.tool_doors import serve
from traces.cassette import Cassette, RecordedCall, record_cassettes, save_cassettes
from traces.store import Store
from traces.trajectory import Ending

KEY = "control"
TOOL = {
    "type": "function",
    "function": {"name": "get_order", "description": "Reads.", "parameters": {"type": "object"}},
}
READ = RecordedCall(name="get_order", arguments='{"id": "#W1"}', result="pending")
WRITE = RecordedCall(name="cancel_order", arguments='{"id": "#W1"}', result="cancelled")


def cassette(task_id: str = "t", **changes: Any) -> Cassette:
    made = Cassette(
        task_id=task_id, system_prompt="rules", user_message="cancel #W1", tools=[TOOL], calls=[READ, WRITE],
        expected=[WRITE], writes=["cancel_order"], split="train",
    )  # fmt: skip
    return replace(made, **changes)


@asynccontextmanager
async def served(*cassettes: Cassette, misses: Misses | None = None) -> AsyncGenerator[ToolServer]:
    app = CassetteApp(Shelf(cassettes), misses or Refuse(), KEY)
    async with serve(app) as url, attach_tool_server("cassettes", url, url, KEY) as server:
        yield server


async def test_a_recorded_task_is_listed_played_and_graded_over_http() -> None:
    async with served(cassette()) as server:
        (task,) = await server.tasks("train")
        assert (task.id, task.system_prompt, task.user_message, task.expected) == ("t", "rules", "cancel #W1", None)
        session = await server.open_session(task)
        async with Client(session.door.url) as client:
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools] == ["get_order", "cancel_order"]
            assert tools[1].input_schema["properties"] == {"id": {}}
            said = await client.call_tool("get_order", {"id": "#w1"})
            assert (said.content[0].text, said.is_error) == ("pending", False)
            refused = await client.call_tool("get_order", {"id": "#W2"})
            assert refused.is_error
            assert not (await session.grade(task, "done"))["passed"]
            await client.call_tool("cancel_order", {"id": "#W1"})
        grade = await session.grade(task, "done")
        assert (grade["passed"], grade["components"]["calls_refused"]) == (True, 1.0)
        await session.close()
        with pytest.raises(ToolServerError, match="no session"):
            await session.grade(task, "done")


async def test_a_call_under_a_known_key_is_answered_once() -> None:
    recorded = [replace(READ, result="before"), replace(READ, result="after")]
    deck = Deck("d", cassette(calls=recorded), Refuse())
    answers = [(await deck.call("get_order", {"id": "#W1"}, key)).result for key in ("a", "a", "b")]
    assert answers == ["before", "before", "after"]


@pytest.mark.parametrize(
    ("made", "passed"),
    [
        ([READ, WRITE], True),
        ([WRITE], True),
        ([READ], False),
        ([WRITE, replace(WRITE, arguments='{"id": "#W2"}', is_error=True)], False),
        ([], False),
    ],
)
async def test_a_grade_wants_the_recorded_changes_and_no_other(made: list[RecordedCall], passed: bool) -> None:
    deck = Deck("d", cassette(), Refuse())
    for call in made:
        await deck.call(call.name, json.loads(call.arguments), None)
    assert grade_by_record(deck.cassette, deck.answered)["passed"] is passed


async def test_a_task_without_a_good_recording_passes_nobody_and_says_why() -> None:
    grade = await Deck("d", cassette(expected=None), Refuse()).grade("done")
    assert (grade["passed"], "ruler" in grade["reason"]) == (False, True)


def test_training_tasks_start_over_and_held_out_ones_do_not() -> None:
    names = [f"t{number}" for number in range(40)]
    shelf = Shelf([cassette(name, split="") for name in names])
    assert {split_of(cassette(name, split="")) for name in names} == {"train", "validation", "held_out"}

    def drawn(split: str, count: int) -> list[str]:
        return [task["id"] for task in shelf.tasks(split, seed=1, offset=0, count=count, kinds=())]

    train = drawn("train", 100)
    assert train[: len(set(train))] == train[len(set(train)) : 2 * len(set(train))]
    held_out = drawn("held_out", 100)
    assert 0 < len(held_out) == len(set(held_out))
    assert not set(held_out) & set(train)
    with pytest.raises(ValueError, match="refund"):
        shelf.tasks("train", seed=1, offset=0, count=1, kinds=("refund",))


async def test_a_miss_is_simulated_by_a_model_that_sees_the_record_and_the_session() -> None:
    async with scripted_judge(lambda call: "Error: no such order") as model:
        deck = Deck("d", cassette(), Simulate(Judge(model.spec())))
        await deck.call("get_order", {"id": "#W1"}, None)
        answer = await deck.call("get_order", {"id": "#W9"}, None)
    assert (answer.result, answer.is_error) == ("Error: no such order", True)
    shown = simulation_prompt(deck, "get_order", "{}")[1]["content"]
    assert "<session>\nget_order" in shown
    assert "cancel_order" in shown


async def test_a_rollout_runs_on_a_recording_as_it_did_on_the_server(tmp_path: Path) -> None:
    async with open_rollout_world(tmp_path) as rollouts:
        task = await rollouts.cancel_task()
        agent = load_agent(AGENTS["plain"])
        first = await run_rollout(task, agent, POLICY, rollouts.world)
        (made,) = record_cassettes([first], {first.rollout_id: task.to_dict()})
        async with served(made) as server:
            (recorded,) = await server.tasks(made.split)
            again = await run_rollout(recorded, agent, POLICY, replace(rollouts.world, server=server))
        assert again.ending is Ending.ANSWERED
        assert [call.result for call in again.tool_calls] == [call.result for call in first.tool_calls]
        assert [t.completion_ids_T.tolist() for t in again.turns] == [t.completion_ids_T.tolist() for t in first.turns]
        assert (first.score().value, again.score().value) == (1.0, 1.0)  # type: ignore[union-attr]


async def test_a_miss_goes_on_in_a_live_session_that_has_seen_what_came_before(tmp_path: Path) -> None:
    async with open_rollout_world(tmp_path, answer=looks_twice_after_cancelling()) as rollouts:
        task = await rollouts.cancel_task()
        agent = load_agent(AGENTS["plain"])
        first = await run_rollout(task, agent, POLICY, rollouts.world)
        (whole,) = record_cassettes([first], {first.rollout_id: task.to_dict()})
        made = replace(whole, calls=whole.calls[:-1])
        async with served(made, misses=LiveServer(rollouts.server)) as server:
            (recorded,) = await server.tasks(made.split)
            again = await run_rollout(recorded, agent, POLICY, replace(rollouts.world, server=server))
        assert [call.result for call in again.tool_calls] == [call.result for call in first.tool_calls]
        assert '"status": "cancelled"' in again.tool_calls[-1].result
        assert again.score().value == 1.0  # type: ignore[union-attr]
        assert len(rollouts.sessions) == 0


def looks_twice_after_cancelling() -> Callable[[str], str]:
    """Cancels as the expert does, then looks at what became of it."""

    def answer(prompt: str) -> str:
        if prompt.count("<|im_start|>tool\n") == 2:
            user = prompt.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
            order_id = next(word.strip(".,!?") for word in user.split() if word.startswith("#"))
            return tool_call("get_order_details", order_id=order_id)
        return "It is done.<|im_end|>" if prompt.count("<|im_start|>tool\n") == 3 else cancel_expert(prompt)

    return answer


async def test_rollouts_of_the_command_line_run_on_cassettes_by_one_setting(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    save_cassettes(file, [cassette()])
    script = {0: tool_call("cancel_order", id="#W1"), 1: "It is cancelled.<|im_end|>"}
    async with serve_engine(ScriptedEngine(lambda prompt: script[prompt.count("<|im_start|>tool\n")])) as url:
        settings = [f"engine.url={url}", f"tools.cassette={file}", "agent.spec=agents/plain/agent.py"]
        flags = [part for setting in settings for part in ("--set", setting)]
        done = await run("rollout", "--tasks", "2", *flags, folder=tmp_path)
    assert done.code == 0, done.err
    with Store(tmp_path / "rollout" / "traces.db", create=False) as store:
        made = [store.trajectory(record.rollout_id) for record in store.rollouts()]
    assert [(one.task_id, [call.result for call in one.tool_calls]) for one in made] == [("t", ["cancelled"])] * 2
    assert [one.score().value for one in made] == [1.0, 1.0]  # type: ignore[union-attr]


async def test_the_process_serves_the_tasks_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    save_cassettes(file, [cassette()])
    async with start_tool_server("cassettes", tmp_path, module="harness.cassettes", args=[str(file)]) as server:
        assert [task.id for task in await server.tasks("train", count=2)] == ["t", "t"]


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (("absent",), "No such file"),
        (("empty",), "the file is empty"),
        (("bad",), "line 1 is no cassette"),
        (("good", "--on-miss=live"), "no live server"),
        (("good", "--on-miss=simulate"), "no model that plays"),
    ],
)
def test_a_server_that_cannot_start_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], found: str
) -> None:
    save_cassettes(tmp_path / "good", [cassette()])
    (tmp_path / "empty").write_text("")
    (tmp_path / "bad").write_text("{}\n")
    assert main([str(tmp_path / args[0]), *args[1:]]) == 2
    assert found in capsys.readouterr().err
