"""Rollouts whose task has a user: agent and user take turns until it leaves, and its faults are never the agent's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from harness.agent import Agent, Door, load_agent
from harness.config import UserSection
from harness.errors import SimulatorError
from harness.rollout import run_rollout
from harness.task import AgentTask, Task
from harness.user import Said
from harness.user_door import LEAVING, UserDesk, open_user_desk
from tests.rollout_world import AGENTS, ORDER_ID, POLICY, RolloutWorld, open_rollout_world, tool_call
from traces import semconv
from traces.trajectory import Ending

FIRST = "May I have your email, or your name and zip code?<|im_end|>"


def heard(prompt: str) -> list[str]:
    """What the customer said, message by message."""
    return [part.split("<|im_end|>")[0] for part in prompt.split("<|im_start|>user\n")[1:]]


def confirming(prompt: str) -> str:
    """Asks who and what, looks, says what it will do until it hears a yes, cancels, says so."""
    said = heard(prompt)
    if len(said) < 3:
        return FIRST if len(said) == 1 else "Which order is it, and what is the reason?<|im_end|>"
    order_id = ORDER_ID.findall(" ".join(said))[0]
    if "cancelled" in prompt.split("<|im_start|>tool\n")[-1] and "cancel_pending_order" in prompt:
        return f"Order {order_id} is cancelled.<|im_end|>"
    if not prompt.count("<|im_start|>tool\n"):
        return tool_call("get_order_details", order_id=order_id)
    if not any(word in said[-1].lower() for word in ("yes", "confirm")):
        return f"I am going to cancel order {order_id}. Do you confirm?<|im_end|>"
    return cancel_call(order_id, said)


def hasty(prompt: str) -> str:
    """The same, but it cancels without asking."""
    said = heard(prompt)
    if len(said) < 3:
        return FIRST if len(said) == 1 else "Which order is it, and what is the reason?<|im_end|>"
    if "<|im_start|>tool\n" in prompt:
        return "It is cancelled.<|im_end|>"
    return cancel_call(ORDER_ID.findall(" ".join(said))[0], said)


def cancel_call(order_id: str, said: list[str]) -> str:
    reasons = [r for text in said[1:] for r in [reason_in(text.lower())] if r]
    return tool_call("cancel_pending_order", order_id=order_id, reason=reasons[-1])


def reason_in(text: str) -> str | None:
    if any(word in text for word in ("mistake", "accident")):
        return "ordered by mistake"
    unneeded = ("need it", "need for it", "needed", "use for it")
    return "no longer needed" if any(words in text for words in unneeded) else None


@asynccontextmanager
async def open_dialogs(
    folder: Path, answer: Any = confirming, **section: Any
) -> AsyncGenerator[tuple[RolloutWorld, UserDesk]]:
    """A world whose tasks have scripted users."""
    users = open_user_desk(UserSection(kind="scripted", **section))
    async with open_rollout_world(folder, answer) as here, users as desk:
        assert desk is not None
        here.world = replace(here.world, users=desk)
        yield here, desk


async def cancel_task(here: RolloutWorld, *, changes_mind: bool = False) -> Task:
    """A plain cancellation whose customer keeps to its word, or doesn't."""
    tasks = await here.server.tasks("train", count=64, kinds=["cancel"], difficulty=1)
    return next(task for task in tasks if ("'then'" in str(task.user)) == changes_mind)


@pytest.mark.parametrize("name", AGENTS)
async def test_an_agent_and_its_user_take_turns_until_the_user_leaves(name: str, tmp_path: Path) -> None:
    async with open_dialogs(tmp_path) as (here, _):
        task = await cancel_task(here)
        trajectory = await run_rollout(task, load_agent(AGENTS[name]), POLICY, here.world)
        spans = here.world.store.spans(trajectory.rollout_id)
    assert (trajectory.ending, trajectory.ending_detail) == (Ending.ANSWERED, "")
    assert [score.value for score in trajectory.scores] == [1.0]
    assert trajectory.metrics["user/left"] == 1.0
    assert trajectory.metrics["user/messages"] == 4.0
    assert (trajectory.metrics["drift_tokens"], trajectory.metrics["forks"]) == (0.0, 0.0)
    talk = [span for span in spans if span.name == "user"]
    assert talk[0].attributes[semconv.USER_HEARD] == FIRST.removesuffix("<|im_end|>")
    assert [span.parent_id for span in talk] == [next(s.span_id for s in spans if s.parent_id is None)] * 4
    assert trajectory.turns[-1].input_messages[-3]["role"] == "user"


@pytest.mark.parametrize(("policy", "score"), [(confirming, 1.0), (hasty, 0.0)])
async def test_a_changed_mind_is_followed_only_by_who_asks_before_writing(
    policy: Any, score: float, tmp_path: Path
) -> None:
    async with open_dialogs(tmp_path, policy) as (here, _):
        task = await cancel_task(here, changes_mind=True)
        trajectory = await run_rollout(task, load_agent(AGENTS["plain"]), POLICY, here.world)
    assert trajectory.ending is Ending.ANSWERED
    assert [score.value for score in trajectory.scores] == [score]


async def test_a_task_that_says_nothing_of_its_user_ends_as_the_simulators_failure(tmp_path: Path) -> None:
    async with open_dialogs(tmp_path) as (here, _):
        task = replace(await cancel_task(here), user={})
        trajectory = await run_rollout(task, load_agent(AGENTS["plain"]), POLICY, here.world)
        assert len(here.sessions) == 0
    assert trajectory.ending is Ending.SIMULATOR_ERROR
    assert "says nothing of a user" in trajectory.ending_detail
    assert trajectory.scores == []


class Failing:
    """A user that opens and then fails, or never answers."""

    def __init__(self, *, hangs: bool) -> None:
        self.hangs = hangs

    async def open(self) -> str:
        return "Hello."

    async def answer(self, message: str) -> Said:
        if self.hangs:
            await asyncio.Event().wait()
        raise SimulatorError("an answer", "nothing", "take a stronger model")

    def metrics(self) -> dict[str, float]:
        return {}


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_user_that_fails_or_hangs_gives_no_reward_of_zero(
    hangs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_dialogs(tmp_path) as (here, desk):
        monkeypatch.setattr(desk, "_user", lambda _: Failing(hangs=hangs))
        task = await cancel_task(here)
        world = here.limited(wall_s=3.0 if hangs else 60.0)
        trajectory = await run_rollout(task, load_agent(AGENTS["plain"]), POLICY, world)
    assert trajectory.ending is Ending.SIMULATOR_ERROR
    assert trajectory.scores == []


async def test_an_agent_that_never_speaks_to_its_user_has_answered_nobody(tmp_path: Path) -> None:
    async def silent(task: AgentTask, door: Door) -> str:
        return "done"

    async with open_dialogs(tmp_path) as (here, _):
        tasks = await here.server.tasks("train", count=32)
        refusal = next(task for task in tasks if task.is_refusal)
        trajectory = await run_rollout(refusal, Agent("silent", run=silent), POLICY, here.world)
    assert trajectory.ending is Ending.AGENT_ERROR
    assert [score.value for score in trajectory.scores] == [0.0]


async def test_the_user_door_takes_messages_only_and_closes_with_the_rollout(tmp_path: Path) -> None:
    statuses: list[int] = []
    seen: list[tuple[AgentTask, Door]] = []

    async def knock(task: AgentTask, door: Door) -> str:
        seen.append((task, door))
        async with aiohttp.ClientSession() as http:
            for body in (b"{", b'{"message": 3}', b'{"message": "Your email?"}', b'{"message": "Which order?"}'):
                async with http.post(door.user_url, data=body) as answer:
                    statuses.append(answer.status)
                    said = await answer.json()
        assert said == {"message": LEAVING.text, "done": True}
        return "done"

    async with open_dialogs(tmp_path, messages=2) as (here, _):
        task = await cancel_task(here)
        trajectory = await run_rollout(task, Agent("knocks", run=knock), POLICY, here.world)
        ((about, door),) = seen
        async with aiohttp.ClientSession() as http, http.post(door.user_url, json={"message": "?"}) as answer:
            statuses.append(answer.status)
    assert statuses == [400, 400, 200, 200, 404]
    assert trajectory.ending is Ending.ANSWERED
    assert door.environment(about)["HARNESS_USER_URL"] == door.user_url
    for secret in (task.user["goal"], *ORDER_ID.findall(task.user["goal"]), door.api_key):
        assert secret not in repr(about) + door.user_url
