"""What `harness wrap` tells of an agent: what arrived at the gateways, and what to change where it did not."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from harness.agent import Agent, Door, load_agent
from harness.rollout import run_rollout
from harness.task import AgentTask
from harness.wrap import Observation, advice, find_addresses, findings, observe
from tests.rollout_world import AGENTS, POLICY, cancel_expert, open_rollout_world, tool_call
from tests.scripted_engine import ScriptedEngine, serve_engine


async def wrapped(folder: Path, agent: Agent, answer: Any = cancel_expert, **limits: float) -> tuple[Observation, str]:
    """An agent's rollout on the cancel task, observed, and the task's request."""
    async with open_rollout_world(folder, answer) as here:
        task = await here.cancel_task()
        trajectory = await run_rollout(task, agent, POLICY, here.limited(**limits))
        return observe(trajectory, here.world.store.spans(trajectory.rollout_id)), task.user_message


async def test_a_well_wrapped_agent_is_told_what_would_train_and_nothing_to_change(tmp_path: Path) -> None:
    seen, request = await wrapped(tmp_path, load_agent(AGENTS["plain"]))
    told = dict(findings(seen))
    assert told["ended"] == "answered"
    assert told["dialect"] == "chat"
    assert told["model calls"] == "3 answered"
    assert told["models asked for"] == "base × 3"
    assert told["tools"] == "16 offered, called get_order_details × 1, cancel_pending_order × 1"
    assert told["forks"] == "none"
    sampled = sum(len(turn.completion_ids_T) for turn in seen.trajectory.turns)
    assert told["tokens"] == f"{sampled} captured with ids and log-probabilities, drift 0"
    assert told["would train"] == f"{sampled} tokens in 1 row"
    assert told["score"] == "checks 1"
    assert advice(seen, request) == []


async def test_an_agent_that_calls_its_own_provider_is_told_where(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("client = dict(\n    base_url='https://api.example-provider.com/v1')\nprint('I did it')")
    spec = f"{sys.executable} {file}"
    seen, request = await wrapped(tmp_path, load_agent(spec))
    first, second = advice(seen, request, spec)
    assert "no model call reached the gateway" in first
    assert "OPENAI_BASE_URL" in first
    assert second == f"{file}:2 names https://api.example-provider.com/v1"
    assert dict(findings(seen))["would train"] == "0 tokens in 0 rows"
    assert seen.output == "I did it"


async def test_an_agent_without_tools_or_task_is_told_both(tmp_path: Path) -> None:
    async def chat(task: AgentTask, door: Door) -> str:
        async with AsyncOpenAI(base_url=door.base_url, api_key=door.api_key) as client:
            hello: Any = [{"role": "user", "content": "tell me a joke"}]
            return str(await client.chat.completions.create(model="gpt-5", messages=hello))

    seen, request = await wrapped(tmp_path, Agent("joker", chat), lambda _: "Knock knock.<|im_end|>")
    told = advice(seen, request)
    assert len(told) == 2
    assert "offered a tool" in told[0]
    assert "HARNESS_TASK" in told[1]
    assert dict(findings(seen))["models asked for"] == "gpt-5 × 1"


async def test_an_agent_that_runs_its_own_tools_and_rewrites_its_history_is_told(tmp_path: Path) -> None:
    tools: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]

    async def rewrite(task: AgentTask, door: Door) -> str:
        async with AsyncOpenAI(base_url=door.base_url, api_key=door.api_key) as client:
            messages: list[Any] = [{"role": "user", "content": task.user_message}]
            for clock in ("now", "later"):
                message = (
                    (await client.chat.completions.create(model="m", messages=messages, tools=tools)).choices[0].message
                )
                messages: list[Any] = [
                    {"role": "user", "content": f"{task.user_message} ({clock})"},
                    message.model_dump(),
                ]
                messages.append({"role": "tool", "tool_call_id": (message.tool_calls or [])[0].id, "content": "seen"})
        return ""

    seen, request = await wrapped(tmp_path, Agent("rewriter", rewrite), lambda _: tool_call("look"))
    told = advice(seen, request)
    assert "its answer is empty" in told[0]
    assert "none of these calls reached the tool gateway" in told[1]
    assert "turn 1 forks from turn 0 at message 0: your agent rewrites it" in told[2]


async def test_an_agent_whose_calls_fail_is_told_the_first_failure(tmp_path: Path) -> None:
    async def wrong(task: AgentTask, door: Door) -> str:
        async with AsyncOpenAI(base_url=door.base_url, api_key=door.api_key, max_retries=0) as client:
            return str(await client.chat.completions.create(model="m", messages=[]))

    seen, request = await wrapped(tmp_path, Agent("wrong", wrong))
    first, second = advice(seen, request)
    assert first.startswith("your agent failed: BadRequestError")
    assert second.startswith("every model call failed, the first with: messages is empty")


async def test_a_command_that_crashes_is_told_by_the_line_that_names_the_error(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("def look():\n    return {}['key']\nlook()")
    spec = f"{sys.executable} {file}"
    seen, request = await wrapped(tmp_path, load_agent(spec))
    assert dict(findings(seen))["ended"] == "agent_error: exit code 1: KeyError: 'key'"
    assert advice(seen, request, spec)[0] == "your agent failed: exit code 1: KeyError: 'key'"
    assert "line 2, in look" in seen.output


async def test_forks_for_one_reason_are_told_once_and_a_limit_by_its_setting(tmp_path: Path) -> None:
    async def ticking(task: AgentTask, door: Door) -> str:
        async with AsyncOpenAI(base_url=door.base_url, api_key=door.api_key, max_retries=0) as client:
            history: list[Any] = []
            for tick in range(10):
                messages: list[Any] = [{"role": "user", "content": f"{task.user_message} ({tick})"}, *history]
                answer = await client.chat.completions.create(model="m", messages=messages)
                history += [answer.choices[0].message.model_dump(), {"role": "user", "content": "Go on."}]
        return ""

    seen, request = await wrapped(tmp_path, Agent("ticking", ticking), lambda _: "Well.<|im_end|>", turns=4)
    told = advice(seen, request)
    assert told[0] == "it was cut off at the rollout's limit of turns: raise rollout.turns if a good answer needs more"
    assert [one.partition(":")[0] for one in told if "forks" in one] == [
        "turn 1 forks from turn 0 at message 0 (and 2 later ones alike)"
    ]


async def harness_wrap(spec: str, engine_url: str, folder: Path) -> tuple[int | None, str]:
    """Exit code and whole output of the command, in a process of its own."""
    settings = (f"engine.url={engine_url}", f"run.folder={folder}", 'tasks.kinds=["cancel"]')
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "harness", "wrap", spec, *(word for one in settings for word in ("--set", one))),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
    )
    told, _ = await running.communicate()
    return running.returncode, told.decode()


async def test_the_command_tells_a_person_all_of_it_and_ends_with_what_to_do_next(tmp_path: Path) -> None:
    lost = tmp_path / "lost.py"
    lost.write_text("print('I asked https://api.example-provider.com/v1')")
    async with serve_engine(ScriptedEngine(cancel_expert)) as url:
        code, told = await harness_wrap(AGENTS["plain"], url, tmp_path)
        lost_code, lost_told = await harness_wrap(f"{sys.executable} {lost}", url, tmp_path)
    assert code == 0, told
    rows = {line[:18].strip(): line[18:].strip() for line in told.splitlines()}
    assert rows["ended"] == "answered"
    assert rows["dialect"] == "chat"
    assert rows["model calls"] == "3 answered"
    assert rows["tools"] == "16 offered, called get_order_details × 1, cancel_pending_order × 1"
    assert rows["tokens"].endswith("captured with ids and log-probabilities, drift 0")
    assert rows["forks"] == "none"
    assert rows["would train"].endswith("tokens in 1 row")
    assert f"harness show {tmp_path / 'wrap'} last" in told
    assert f"harness train --agent {AGENTS['plain']}" in told
    assert lost_code == 1, lost_told
    assert "1. no model call reached the gateway" in lost_told
    assert f"2. {lost}:1 names https://api.example-provider.com/v1" in lost_told
    assert "harness train" not in lost_told


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("OpenAI(base_url='https://api.openai.com/v1')", "https://api.openai.com/v1"),
        ('url: "https://openrouter.ai/api"', "https://openrouter.ai/api"),
        ("docs = 'https://example.com/docs'", None),
    ],
)
def test_addresses_of_providers_are_found_in_the_files_of_a_spec(
    line: str, address: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "agent.mjs"
    file.write_text(f"\n{line}\n")
    assert find_addresses(f"node {file} --fast") == ([(f"{file}:2", address)] if address else [])
