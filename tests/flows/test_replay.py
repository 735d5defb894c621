"""`harness replay`: a stored rollout comes out again bit for bit, and whatever changed is found and named."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.agent import load_agent
from harness.config import Config
from harness.errors import ConfigError
from harness.replay import first_difference, replay_rollout
from harness.rollout import run_rollout
from tests.rollout_world import AGENTS, POLICY, open_rollout_world
from traces.store import Store
from traces.trajectory import Ending, Trajectory

CONFIG = Config()


@pytest.fixture
async def recorded(tmp_path: Path) -> AsyncGenerator[tuple[Store, Trajectory]]:
    """A solved task of the plain agent; engine and tool server are gone when it is used."""
    async with open_rollout_world(tmp_path) as rollouts:
        task = await rollouts.cancel_task()
        made = await run_rollout(task, load_agent(AGENTS["plain"]), POLICY, rollouts.world)
    assert (made.ending, len(made.turns), len(made.tool_calls)) == (Ending.ANSWERED, 3, 2)
    with Store(tmp_path / "traces.db", create=False) as store:
        yield store, made


async def test_a_stored_rollout_comes_out_again_bit_for_bit(recorded: tuple[Store, Trajectory]) -> None:
    store, made = recorded
    done = await replay_rollout(store, made.rollout_id, CONFIG, load_agent(AGENTS["plain"]))
    assert (done.difference, done.turns) == (None, 3)


async def test_an_agent_that_asks_otherwise_is_found_with_turn_and_message(recorded: tuple[Store, Trajectory]) -> None:
    store, made = recorded
    plain = load_agent(AGENTS["plain"])
    assert plain.run is not None
    run = plain.run

    async def politer(task: Any, door: Any) -> str | None:
        return await run(replace(task, system_prompt=task.system_prompt + " Be polite."), door)

    done = await replay_rollout(store, made.rollout_id, CONFIG, replace(plain, run=politer))
    assert done.difference is not None
    assert "turn 0, message 0 (system)" in done.difference
    assert "Be polite." in done.difference


async def test_an_agent_that_says_something_else_at_the_end_is_found(recorded: tuple[Store, Trajectory]) -> None:
    store, made = recorded
    plain = load_agent(AGENTS["plain"])
    assert plain.run is not None
    run = plain.run

    async def louder(task: Any, door: Any) -> str | None:
        return str(await run(task, door)).upper()

    done = await replay_rollout(store, made.rollout_id, CONFIG, replace(plain, run=louder))
    assert done.difference is not None
    assert done.difference.startswith("answer: recorded")


async def test_the_first_difference_is_named_for_every_part(recorded: tuple[Store, Trajectory]) -> None:
    _, made = recorded
    turn, call = made.turns[1], made.tool_calls[0]
    other = turn.completion_ids_T.copy()
    other[2] += 1
    changes: list[tuple[dict[str, Any], str]] = [
        (
            {"turns": [made.turns[0], replace(turn, completion_ids_T=other), made.turns[2]]},
            "turn 1, completion_ids_T: dif",
        ),
        ({"turns": [made.turns[0], replace(turn, logprobs_T=np.zeros(1, np.float32)), made.turns[2]]}, "logprobs_T"),
        ({"turns": made.turns[:2]}, "model calls: recorded 3, now 2"),
        ({"tool_calls": [replace(call, result="x"), made.tool_calls[1]]}, "tool call 0, result"),
        ({"tool_calls": made.tool_calls[:1]}, "tool calls: recorded 2, now 1"),
        ({"ending": Ending.AGENT_ERROR}, "ending: recorded 'answered', now 'agent_error'"),
    ]
    for changed, found in changes:
        said = first_difference(made, replace(made, **changed))
        assert said is not None, found
        assert found in said
    assert first_difference(made, made) is None


async def test_what_cannot_be_replayed_is_told(recorded: tuple[Store, Trajectory]) -> None:
    store, made = recorded
    user = CONFIG.user.model_copy(update={"kind": "llm", "model": "openai/x"})
    with pytest.raises(ConfigError, match="played by a model"):
        await replay_rollout(
            store, made.rollout_id, CONFIG.model_copy(update={"user": user}), load_agent(AGENTS["plain"])
        )
