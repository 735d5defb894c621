"""Whole rollouts: an agent, both gateways, the retail server and a store; every way of ending."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from harness.agent import Agent, Door, load_agent
from harness.errors import JudgeError
from harness.rollout import run_rollout
from harness.task import AgentTask
from tests.rollout_world import AGENTS, POLICY, cancel_expert, open_rollout_world, tool_call
from traces.trajectory import Ending


def agent_of(behaviour) -> Agent:
    return Agent("scripted", run=behaviour)


@pytest.mark.parametrize("name", AGENTS)
async def test_an_agent_of_each_kind_solves_a_task_and_leaves_exact_tokens(name: str, tmp_path: Path) -> None:
    async with open_rollout_world(tmp_path) as here:
        task = await here.cancel_task()
        trajectory = await run_rollout(task, load_agent(AGENTS[name]), POLICY, here.world)
        assert (trajectory.ending, trajectory.ending_detail) == (Ending.ANSWERED, "")
        assert trajectory.answer is not None
        assert trajectory.answer.endswith("is cancelled.")
        assert [score.value for score in trajectory.scores] == [1.0]
        assert [call.name for call in trajectory.tool_calls] == ["get_order_details", "cancel_pending_order"]
        assert [call.turn_index for call in trajectory.tool_calls] == [0, 1]
        assert [turn.policy_version for turn in trajectory.turns] == [3, 3, 3]
        assert all(turn.has_tokens for turn in trajectory.turns)
        for earlier, later in zip(trajectory.turns, trajectory.turns[1:], strict=False):
            sampled = [*earlier.prompt_ids_T, *earlier.completion_ids_T]
            assert list(later.prompt_ids_T[: len(sampled)]) == sampled
        assert trajectory.metrics["drift_tokens"] == 0
        assert trajectory.metrics["forks"] == 0
        assert here.world.store.trajectory(trajectory.rollout_id) == trajectory
        assert len(here.sessions) == 0


async def test_the_listing_of_tools_is_read_once_a_run(tmp_path: Path) -> None:
    async with open_rollout_world(tmp_path) as here:
        task = await here.cancel_task()
        trajectory = await run_rollout(task, load_agent(AGENTS["openai_agents"]), POLICY, here.world)
        assert len(trajectory.turns) == 3
        tools = [body["tools"] for path, body in here.engine.asked if body.get("tools")]
        assert {len(listed) for listed in tools} == {16}


async def test_an_agent_that_crashes_ends_by_its_own_fault_with_reward_zero(tmp_path: Path) -> None:
    async def crash(task: AgentTask, door: Door) -> str:
        raise ValueError(f"no idea what to do with {task.id}")

    async with open_rollout_world(tmp_path) as here:
        tasks = await here.server.tasks("train", count=64)
        refusal = next(task for task in tasks if task.is_refusal)
        trajectory = await run_rollout(refusal, agent_of(crash), POLICY, here.world)
    assert trajectory.ending is Ending.AGENT_ERROR
    assert trajectory.ending_detail == f"ValueError: no idea what to do with {refusal.id}"
    assert [score.value for score in trajectory.scores] == [0.0]


async def test_an_agent_that_hangs_ends_at_its_time_limit(tmp_path: Path) -> None:
    async def hang(task: AgentTask, door: Door) -> str:
        await asyncio.Event().wait()
        return "never"

    async with open_rollout_world(tmp_path) as here:
        trajectory = await run_rollout(await here.cancel_task(), agent_of(hang), POLICY, here.limited(wall_s=0.2))
        assert trajectory.ending is Ending.TIME_LIMIT
        assert [score.value for score in trajectory.scores] == [0.0]
        assert len(here.sessions) == 0


@pytest.mark.parametrize("name", AGENTS)
async def test_an_agent_that_never_stops_asking_ends_at_its_turn_limit(name: str, tmp_path: Path) -> None:
    def again(_: str) -> str:
        return tool_call("list_all_product_types")

    async with open_rollout_world(tmp_path, again) as here:
        trajectory = await run_rollout(
            await here.cancel_task(), load_agent(AGENTS[name]), POLICY, here.limited(turns=3)
        )
    assert trajectory.ending is Ending.TURN_LIMIT
    assert len(trajectory.turns) == 3
    assert [score.value for score in trajectory.scores] == [0.0]


async def test_an_agent_that_never_calls_a_tool_is_judged_by_the_state_it_left(tmp_path: Path) -> None:
    async with open_rollout_world(tmp_path, lambda _: "I will not.<|im_end|>") as here:
        trajectory = await run_rollout(await here.cancel_task(), load_agent(AGENTS["plain"]), POLICY, here.world)
    assert (trajectory.ending, trajectory.answer) == (Ending.ANSWERED, "I will not.")
    assert trajectory.tool_calls == []
    assert [score.value for score in trajectory.scores] == [0.0]


async def test_an_engine_that_fails_is_infrastructure_and_gives_no_reward(tmp_path: Path) -> None:
    async with open_rollout_world(tmp_path) as here:
        here.engine.fail_next += ["500"] * 50
        trajectory = await run_rollout(await here.cancel_task(), load_agent(AGENTS["plain"]), POLICY, here.world)
    assert trajectory.ending is Ending.ENGINE_ERROR
    assert trajectory.scores == []


async def test_a_session_that_vanishes_is_infrastructure_and_gives_no_reward(tmp_path: Path) -> None:
    async with open_rollout_world(tmp_path) as here:

        def lose_session(prompt: str) -> str:
            for session in list(here.sessions):
                here.sessions.drop(session.id)
            return cancel_expert(prompt)

        here.engine.answer = lose_session
        trajectory = await run_rollout(await here.cancel_task(), load_agent(AGENTS["plain"]), POLICY, here.world)
    assert trajectory.ending is Ending.TOOL_ERROR
    assert trajectory.scores == []


async def test_a_tool_server_that_is_gone_is_infrastructure_from_the_start(tmp_path: Path) -> None:
    async with open_rollout_world(tmp_path) as here:
        task = await here.cancel_task()
        gone = replace(here.server, control=replace(here.server.control, url="http://127.0.0.1:9"))
        trajectory = await run_rollout(task, load_agent(AGENTS["plain"]), POLICY, replace(here.world, server=gone))
    assert trajectory.ending is Ending.TOOL_ERROR
    assert "POST /control/sessions" in trajectory.ending_detail


async def test_a_gateway_that_is_gone_is_infrastructure_and_closes_the_session(tmp_path: Path) -> None:
    async with open_rollout_world(tmp_path) as here:
        task = await here.cancel_task()
        gone = replace(here.doors.admin, urls=["http://127.0.0.1:9"])
        trajectory = await run_rollout(task, load_agent(AGENTS["plain"]), POLICY, replace(here.world, gateway=gone))
        assert trajectory.ending is Ending.GATEWAY_ERROR
        assert len(here.sessions) == 0


async def test_a_judge_that_fails_gives_no_reward_of_zero(tmp_path: Path) -> None:
    async def broken_judge(*_: object) -> list[object]:
        raise JudgeError("a score", "nothing", "try later")

    async with open_rollout_world(tmp_path) as here:
        world = replace(here.world, score=broken_judge)
        trajectory = await run_rollout(await here.cancel_task(), load_agent(AGENTS["plain"]), POLICY, world)
    assert trajectory.ending is Ending.JUDGE_ERROR
    assert trajectory.scores == []


async def test_a_cancelled_rollout_is_interrupted_on_disk_with_its_doors_and_session_closed(tmp_path: Path) -> None:
    doors: list[Door] = []
    started = asyncio.Event()

    async def wait(task: AgentTask, door: Door) -> str:
        doors.append(door)
        started.set()
        await asyncio.Event().wait()
        return "never"

    async with open_rollout_world(tmp_path) as here:
        running = asyncio.create_task(run_rollout(await here.cancel_task(), agent_of(wait), POLICY, here.world))
        await asyncio.wait_for(started.wait(), 30)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        (record,) = here.world.store.rollouts()
        assert record.ending is Ending.INTERRUPTED
        assert len(here.sessions) == 0
        async with here.doors.http.get(f"{doors[0].base_url}/models") as answer:
            assert answer.status == 410


async def test_agents_see_nothing_of_what_the_grader_expects(tmp_path: Path) -> None:
    seen: list[str] = []

    async def look(task: AgentTask, door: Door) -> str:
        seen.append(repr(task) + str(door.environment(task)))
        return "done"

    async with open_rollout_world(tmp_path) as here:
        await run_rollout(await here.cancel_task(), agent_of(look), POLICY, here.world)
        control_key = here.server.control.key
    for secret in ("expected", "is_refusal", "cancel_pending_order", "metadata", control_key):
        assert secret not in seen[0]


async def test_spans_of_a_rollout_hang_under_its_root_and_hold_no_key(tmp_path: Path) -> None:
    doors: list[Door] = []

    async def answer(task: AgentTask, door: Door) -> str | None:
        doors.append(door)
        return await load_agent(AGENTS["plain"]).run(task, door)

    async with open_rollout_world(tmp_path) as here:
        trajectory = await run_rollout(await here.cancel_task(), agent_of(answer), POLICY, here.world)
        spans = here.world.store.spans(trajectory.rollout_id)
    root = next(span for span in spans if span.parent_id is None)
    assert root.name == "invoke_agent scripted"
    assert {span.parent_id for span in spans if span is not root} == {root.span_id}
    assert len({span.trace_id for span in spans}) == 1
    assert [event.name for event in root.events] == ["gen_ai.evaluation.result"]
    assert doors[0].api_key not in repr(spans)
