"""A judge or a simulated user that is dead stops training after a few groups; what was made is judged on resuming."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.config import (
    AgentSection,
    Config,
    JudgeSection,
    RewardSection,
    RolloutSection,
    RunSection,
    TasksSection,
    TrainingSection,
    UserSection,
)
from harness.engine import Engine, ServedBase
from harness.errors import JudgeError, TrainingError
from harness.group import ScoreGroup
from harness.scoring.scorer import open_scorer
from harness.session import ToolServer
from harness.stack import Stack
from harness.task import Task
from harness.user_door import UserDesk, open_user_desk
from tests.rollout_world import AGENTS, RolloutWorld, open_rollout_world
from tests.scripted_judge import honest, scripted_judge
from training.config import trainer_config
from training.groups import GroupMaker, GroupSource

pytest.importorskip("litellm")

CONFIG = Config(
    run=RunSection(name="run"),
    agent=AgentSection(spec=AGENTS["plain"]),
    tasks=TasksSection(kinds=("cancel",), difficulty=1),
    rollout=RolloutSection(give_up_after=2, infrastructure_retries=0, turns=8, tokens=4096),
    training=TrainingSection(group_size=2, batch_rows=2),
)


def maker_of(
    here: RolloutWorld,
    judge: ScoreGroup | None = None,
    users: UserDesk | None = None,
    tell: Callable[..., None] = lambda **_: None,
) -> GroupMaker:
    engine = Engine(here.doors.url, ServedBase("base", "model"))
    stack = Stack(engine, here.server, here.doors.admin, (), users)
    trainer = trainer_config(CONFIG, "model", None)
    return GroupMaker(GroupSource(CONFIG, stack, judge), here.world.store, trainer, tell)


async def test_users_that_always_fail_stop_training_which_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def without_users(*_: object, **__: object) -> list[Task]:
        return [replace(task, user={})] * 64

    async with open_rollout_world(tmp_path) as here, open_user_desk(UserSection(kind="scripted")) as desk:
        task = await here.cancel_task()
        monkeypatch.setattr(ToolServer, "tasks", without_users)
        with pytest.raises(TrainingError, match="2 groups in a row failed whole, the last as simulator_error"):
            await asyncio.wait_for(maker_of(here, users=desk).make_groups(), 60)


async def test_a_dead_judge_stops_training_and_its_groups_are_judged_first_on_resuming(tmp_path: Path) -> None:
    async with open_rollout_world(tmp_path) as here:
        store = here.world.store
        async with scripted_judge(lambda _: "?") as endpoint:
            judge = JudgeSection(model="openai/scripted", api_base=endpoint.url, give_up_after=2)
            async with open_scorer(RewardSection(kind="ruler"), judge, store) as scorer:
                with pytest.raises(JudgeError, match="2 groups in a row"):
                    await asyncio.wait_for(maker_of(here, scorer).make_groups(), 60)
        left_open = {record.group_id for record in store.open_groups("run")}
        made = {record.rollout_id for record in store.rollouts(ended=True)}
        assert len(left_open) >= 2
        closed = asyncio.Event()
        async with scripted_judge(honest) as endpoint:
            judge = JudgeSection(model="openai/scripted", api_base=endpoint.url)
            async with open_scorer(RewardSection(kind="ruler"), judge, store) as scorer:
                going = asyncio.create_task(maker_of(here, scorer, tell=lambda **_: closed.set()).make_groups())
                await asyncio.wait_for(closed.wait(), 60)
                going.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await going
        (first, *_) = store.groups("run")
        assert first.group_id in left_open
        assert set(first.rollout_ids) <= made
