"""Every shipped agent on a whole task: real SDK, real gateways, scripted engine. Nothing is installed for it here."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harness.agent import Agent, load_agent
from harness.agent_venv import VENVS
from harness.rollout import run_rollout
from harness.wrap import advice, observe
from tests.agent_table import AGENTS, agent_spec, differing_lines, sdk_expert, shipped_agents
from tests.conftest import REPO
from tests.rollout_world import POLICY, open_rollout_world
from traces.tokens import cut_rows
from traces.trajectory import Ending
from traces.turn_filter import TurnFilter

ENVIRONMENT_FILES = ("requirements.txt", "package.json")
OWN_ENVIRONMENT = [
    name for name in shipped_agents() if any((AGENTS / name / file).is_file() for file in ENVIRONMENT_FILES)
]
HERE = [name for name in shipped_agents() if name not in OWN_ENVIRONMENT]
DIALECTS = {"anthropic_client": "messages", "claude_agent_sdk": "messages", "openai_responses": "responses"}
FORKS = {"smolagents", "triage"}
"""Agents that fork: one writes its history as prose, one hands over to a sub-agent with a prompt of its own."""


@pytest.mark.parametrize("name", HERE)
async def test_an_agent_of_each_sdk_solves_a_task_and_leaves_exact_tokens(name: str, tmp_path: Path) -> None:
    await solve_a_task(name, load_agent(agent_spec(name)), tmp_path)


@pytest.mark.parametrize("name", OWN_ENVIRONMENT)
async def test_an_agent_with_an_environment_of_its_own_solves_a_task_as_well(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install(*_: object) -> None:
        pytest.skip(f"its environment is not made yet: python -m tests.agent_table --scripted {name}")

    for maker in ("agent_venv", "agent_node"):
        monkeypatch.setattr(f"harness.{maker}.install", install)
    await solve_a_task(name, await asyncio.to_thread(load_agent, agent_spec(name), venvs=REPO / VENVS), tmp_path)


async def solve_a_task(name: str, agent: Agent, folder: Path) -> None:
    """Run one rollout, and look at everything that it left."""
    async with open_rollout_world(folder, sdk_expert) as here:
        task = await here.cancel_task()
        trajectory = await run_rollout(task, agent, POLICY, here.limited(wall_s=240))
        seen = observe(trajectory, here.world.store.spans(trajectory.rollout_id))
    assert (trajectory.ending, trajectory.ending_detail) == (Ending.ANSWERED, "")
    assert [score.value for score in trajectory.scores] == [1.0]
    assert [call.name for call in trajectory.tool_calls] == ["get_order_details", "cancel_pending_order"]
    assert all(call.turn_index is not None for call in trajectory.tool_calls)
    assert seen.dialects[0].startswith(DIALECTS.get(name, "chat"))
    assert all(turn.has_tokens for turn in trajectory.turns)
    sampled = sum(len(turn.completion_ids_T) for turn in trajectory.turns)
    assert (seen.trained_tokens, seen.cut.drift_tokens) == (sampled, 0)
    assert bool(seen.cut.forks) == (name in FORKS)
    assert [one for one in advice(seen, task.user_message) if "forks from" not in one] == []


async def test_the_agents_of_one_program_train_apart_by_the_model_they_ask_for(tmp_path: Path) -> None:
    async with open_rollout_world(tmp_path, sdk_expert) as here:
        agent = load_agent(agent_spec("triage"))
        trajectory = await run_rollout(await here.cancel_task(), agent, POLICY, here.world)
    assert [turn.asked_model for turn in trajectory.turns] == ["triage", "specialist", "specialist", "specialist"]
    for model, turns in (("triage", [0]), ("specialist", [1, 2, 3])):
        cut = cut_rows(trajectory, TurnFilter(models=(model,)))
        assert sorted(index for row in cut.rows for index in row.turn_indices) == turns


@pytest.mark.parametrize("name", shipped_agents())
def test_every_shipped_agent_differs_from_a_hosted_one_in_three_lines_at_most(name: str) -> None:
    assert 0 < differing_lines(name) <= 3
    assert len(Path(agent_spec(name)).read_text().splitlines()) <= 80
    assert f"[`{name}/`]" in (AGENTS / "README.md").read_text()
