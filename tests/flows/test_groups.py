"""Groups of rollouts: bounded, retried for infrastructure, resumable, and no failure cancels anybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.agent import Agent, Door, load_agent
from harness.errors import JudgeError, ToolServerError
from harness.group import GroupPlan, run_group
from harness.rollout import run_rollout
from harness.task import AgentTask, Task
from tests.rollout_world import AGENTS, POLICY, open_rollout_world
from traces.trajectory import Ending, Score, Trajectory


async def done(task: AgentTask, door: Door) -> str:
    return "done"


class FlakySessions:
    """A server whose first sessions can't be opened."""

    def __init__(self, server, failures: int) -> None:
        self.name = server.name
        self.failures = failures
        self._server = server

    async def open_session(self, task: Task):
        if self.failures:
            self.failures -= 1
            raise ToolServerError("a session", "nothing", "wait")
        return await self._server.open_session(task)


async def test_a_group_is_closed_on_disk_with_every_trajectory_scored(tmp_path: Path) -> None:
    async with open_rollout_world(tmp_path) as here:
        plan = GroupPlan(size=4, position=7)
        group = await run_group(await here.cancel_task(), load_agent(AGENTS["plain"]), POLICY, here.world, plan)
        assert [t.ending for t in group.trajectories] == [Ending.ANSWERED] * 4
        assert [t.scores[0].value for t in group.scored] == [1.0] * 4
        assert (group.seq, group.position) == (1, 7)
        assert here.world.store.group(plan.group_id) == group
        assert len(here.sessions) == 0


async def test_no_more_rollouts_run_at_once_than_there_are_slots(tmp_path: Path) -> None:
    running, most = 0, 0

    async def count(task: AgentTask, door: Door) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return "done"

    async with open_rollout_world(tmp_path) as here:
        world = replace(here.world, slots=asyncio.Semaphore(2))
        task, agent = await here.cancel_task(), Agent("count", run=count)
        await asyncio.gather(*(run_group(task, agent, POLICY, world, GroupPlan(size=3)) for _ in range(2)))
    assert most <= 2


async def test_failures_of_infrastructure_are_tried_again_with_a_fresh_session(tmp_path: Path) -> None:
    async with open_rollout_world(tmp_path) as here:
        world = replace(here.world, server=FlakySessions(here.server, 2))
        group = await run_group(await here.cancel_task(), Agent("done", run=done), POLICY, world, GroupPlan(size=2))
        endings = [record.ending for record in here.world.store.rollouts()]
    assert [t.ending for t in group.trajectories] == [Ending.ANSWERED] * 2
    assert endings.count(Ending.TOOL_ERROR) == 2
    assert group.metrics["infrastructure_failures"] == 2


async def test_a_place_that_keeps_failing_is_given_up_and_left_out_of_the_scored(tmp_path: Path) -> None:
    async with open_rollout_world(tmp_path) as here:
        world = replace(here.world, server=FlakySessions(here.server, 3))
        plan = GroupPlan(size=1, retries=2)
        group = await run_group(await here.cancel_task(), Agent("done", run=done), POLICY, world, plan)
    assert [t.ending for t in group.trajectories] == [Ending.TOOL_ERROR]
    assert group.scored == []


async def test_agents_that_fail_leave_the_others_of_the_group_alone(tmp_path: Path) -> None:
    started: list[str] = []

    async def half(task: AgentTask, door: Door) -> str:
        started.append(door.api_key)
        if len(started) % 2:
            raise RuntimeError("half of them fail")
        return "done"

    async with open_rollout_world(tmp_path) as here:
        plan = GroupPlan(size=6)
        group = await run_group(await here.cancel_task(), Agent("half", run=half), POLICY, here.world, plan)
    endings = [t.ending for t in group.trajectories]
    assert endings.count(Ending.AGENT_ERROR) == endings.count(Ending.ANSWERED) == 3
    assert len(group.scored) == 6


async def test_a_group_goes_on_with_the_rollouts_that_had_ended(tmp_path: Path) -> None:
    async with open_rollout_world(tmp_path) as here:
        task, agent = await here.cancel_task(), Agent("done", run=done)
        plan = GroupPlan(size=3)
        kept = await run_rollout(task, agent, POLICY, here.world, group_id=plan.group_id)
        group = await run_group(task, agent, POLICY, here.world, replace(plan, kept=(kept.rollout_id,)))
        assert len(here.world.store.rollouts()) == 3
    assert group.trajectories[0].rollout_id == kept.rollout_id


async def test_a_cancelled_group_ends_every_rollout_before_it_lets_go(tmp_path: Path) -> None:
    started = asyncio.Semaphore(0)

    async def wait(task: AgentTask, door: Door) -> str:
        started.release()
        await asyncio.Event().wait()
        return "never"

    async with open_rollout_world(tmp_path) as here:
        plan = GroupPlan(size=3)
        group = run_group(await here.cancel_task(), Agent("wait", run=wait), POLICY, here.world, plan)
        running = asyncio.create_task(group)
        for _ in range(3):
            await asyncio.wait_for(started.acquire(), 30)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert [record.ending for record in here.world.store.rollouts()] == [Ending.INTERRUPTED] * 3
        assert [record.group_id for record in here.world.store.open_groups("run")] == [plan.group_id]
        assert len(here.sessions) == 0


async def test_a_judge_of_the_group_adds_its_scores_before_the_group_closes(tmp_path: Path) -> None:
    async def rank(_: Task, trajectories: Sequence[Trajectory]) -> dict[str, list[Score]]:
        return {t.rollout_id: [Score(value=place / 2, name="rank")] for place, t in enumerate(trajectories)}

    async with open_rollout_world(tmp_path) as here:
        plan = GroupPlan(size=2, judge=rank)
        group = await run_group(await here.cancel_task(), Agent("done", run=done), POLICY, here.world, plan)
    assert [t.score().value for t in group.trajectories] == [0.0, 0.5]


async def test_a_group_whose_judge_fails_stays_open_and_unscored_by_it(tmp_path: Path) -> None:
    async def broken(*_: object) -> dict[str, list[Score]]:
        raise JudgeError("a ranking", "nothing", "try later")

    async with open_rollout_world(tmp_path) as here:
        plan = GroupPlan(size=2, judge=broken)
        with pytest.raises(JudgeError):
            await run_group(await here.cancel_task(), Agent("done", run=done), POLICY, here.world, plan)
        assert [record.group_id for record in here.world.store.open_groups("run")] == [plan.group_id]
