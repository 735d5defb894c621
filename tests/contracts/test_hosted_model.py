"""A hosted model in the engine's place: the same agents, gateways and checks, over real HTTP and real LiteLLM."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from harness.agent import load_agent
from harness.engine import Engine
from harness.hosted import open_hosted
from harness.policy import Limits, Policy
from harness.rollout import World, run_rollout
from harness.run_facts import read_run
from harness.session import attach_tool_server
from mcp_servers.retail.server import retail_world
from tests.model_doors import serve_doors
from tests.rollout_world import AGENTS, ORDER_ID
from tests.scripted_judge import Call, ScriptedJudge, completion, failure, scripted_judge
from tests.served_worlds import CONTROL_KEY, serve_world
from traces.trajectory import Ending

pytest.importorskip("litellm")

MODEL = "openai/scripted"


def cancels(call: Call) -> Any:
    """Looks at the order, cancels it, says so; by the results that the messages hold."""
    messages = call.body["messages"]
    said = next(message["content"] for message in messages if message["role"] == "user")
    order_id = ORDER_ID.findall(said)[0]
    reason = "ordered by mistake" if "mistake" in said or "accident" in said else "no longer needed"
    calls = [("get_order_details", {"order_id": order_id})]
    calls += [("cancel_pending_order", {"order_id": order_id, "reason": reason})]
    done = sum(message["role"] == "tool" for message in messages)
    if done == len(calls):
        return f"Order {order_id} is cancelled."
    name, arguments = calls[done]
    function = {"name": name, "arguments": json.dumps(arguments)}
    called = [{"id": f"call-{done}", "type": "function", "function": function}]
    return completion(None, finish_reason="tool_calls", tool_calls=called)


@asynccontextmanager
async def hosted(folder: Path, script: Callable[[Call], Any]) -> AsyncGenerator[tuple[Engine, ScriptedJudge]]:
    async with (
        scripted_judge(script) as provider,
        open_hosted(MODEL, provider.url, folder, concurrency=8) as engine,
    ):
        yield engine, provider


@pytest.mark.parametrize("name", AGENTS)
async def test_a_hosted_model_works_a_task_through_the_same_doors_at_a_known_cost(name: str, tmp_path: Path) -> None:
    async with (
        hosted(tmp_path, cancels) as (engine, provider),
        serve_doors(engine.url, tmp_path) as doors,
        serve_world(retail_world()) as served,
        attach_tool_server("retail", served.url, served.url, CONTROL_KEY) as server,
    ):
        (task,) = await server.tasks("train", count=1, kinds=["cancel"], difficulty=1)
        world = World(run_id="run", server=server, gateway=doors.admin, store=doors.store, limits=Limits(turns=8))
        trajectory = await run_rollout(task, load_agent(AGENTS[name]), Policy(engine.model_name), world)
    assert (trajectory.ending, trajectory.ending_detail) == (Ending.ANSWERED, "")
    assert [score.value for score in trajectory.scores] == [1.0]
    assert [call.name for call in trajectory.tool_calls] == ["get_order_details", "cancel_pending_order"]
    assert "no_token_ids" in trajectory.evidence_gaps
    assert "return_token_ids" not in provider.calls[0].body
    spent = read_run(tmp_path).hosted
    assert (spent["hosted/calls"], spent["hosted/prompt_tokens"]) == (3.0, 300.0)


@pytest.mark.parametrize(
    ("answers", "status"),
    [([failure(401)], 503), ([failure(400)], 400), ([failure(503), "fine"], 200), ([failure(429), "fine"], 200)],
)
async def test_what_the_provider_fails_at_is_never_the_agents_fault(
    answers: list[Any], status: int, tmp_path: Path
) -> None:
    body = {"model": "any", "messages": [{"role": "user", "content": "Hi."}], "return_token_ids": True}

    def script(call: Call) -> Any:
        return answers[min(call.number, len(answers) - 1)]

    async with hosted(tmp_path, script) as (engine, _), aiohttp.ClientSession() as http:
        url = f"{engine.url}/v1/chat/completions"
        async with http.post(url, json=body) as answer:
            assert answer.status == status
            told = await answer.json()
        async with http.post(url, json={**body, "stream": True}) as streamed:
            assert ("data: [DONE]" in await streamed.text()) == (status == 200)
    assert ("error" in told) == (status != 200)
