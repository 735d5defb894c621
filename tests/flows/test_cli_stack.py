"""The commands that start something, as a person runs them: real processes and gateways, a scripted engine."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import AsyncOpenAI, OpenAIError

from tests.conftest import REPO
from tests.scripted_engine import ScriptedEngine, serve_engine

WITHIN_S = 300


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


@pytest.fixture
async def engine_url() -> AsyncGenerator[str]:
    async with serve_engine(ScriptedEngine(lambda prompt: "I can't help with that.<|im_end|>")) as url:
        yield url


async def start(*args: str, folder: Path) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    argv = (sys.executable, "-m", "harness", *args, "--set", f"run.folder={folder}")
    return await asyncio.create_subprocess_exec(*argv, cwd=REPO, stdin=pipe, stdout=pipe, stderr=pipe, limit=2**20)


async def run(*args: str, folder: Path) -> Done:
    process = await start(*args, folder=folder)
    out, err = await asyncio.wait_for(process.communicate(), WITHIN_S)
    return Done(process.returncode or 0, out.decode(), err.decode())


async def show(*args: str) -> str:
    pipe = asyncio.subprocess.PIPE
    argv = (sys.executable, "-m", "harness", "show", *args)
    process = await asyncio.create_subprocess_exec(*argv, cwd=REPO, stdout=pipe, stderr=pipe)
    out, err = await asyncio.wait_for(process.communicate(), WITHIN_S)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_rollout_runs_an_agent_on_tasks_and_show_prints_one(tmp_path: Path, engine_url: str) -> None:
    agent = ("--agent", "agents/plain/agent.py")
    done = await run("rollout", "--tasks", "2", *agent, "--set", f"engine.url={engine_url}", folder=tmp_path)
    assert done.code == 0, done.err
    assert done.out.count("answered") == 2
    folder = tmp_path / "rollout"
    assert (folder / "config.toml").is_file()
    assert "2 of 2 rollouts" in await show(str(folder))
    shown = await show(str(folder), "last", "--tokens")
    for part in ("I can't help with that.", "sampled tokens", "training rows", "drift 0", "score checks"):
        assert part in shown


async def test_serve_opens_both_doors_and_grades_what_was_done(tmp_path: Path, engine_url: str) -> None:
    process = await start("serve", "--json", "--set", f"engine.url={engine_url}", folder=tmp_path)
    assert process.stdout is not None
    door = json.loads(await asyncio.wait_for(process.stdout.readline(), WITHIN_S))
    assert json.loads(door["HARNESS_TASK"])["user_message"]
    assert door["MCP_URL"].endswith("/mcp")
    client = AsyncOpenAI(base_url=door["OPENAI_BASE_URL"], api_key=door["OPENAI_API_KEY"], max_retries=0)
    hello = {"role": "user", "content": "hello"}
    answer = await client.chat.completions.create(model=door["HARNESS_MODEL"], messages=[hello])  # type: ignore[list-item]
    assert answer.choices[0].message.content == "I can't help with that."
    out, err = await asyncio.wait_for(process.communicate(b"that is all\n"), WITHIN_S)
    summary = json.loads(out)
    assert (process.returncode, summary["ending"], summary["turns"]) == (0, "answered", 1), err.decode()
    assert summary["score"] in (0.0, 1.0)
    with pytest.raises(OpenAIError):
        await client.models.list()


async def test_eval_measures_a_model_and_writes_the_report(tmp_path: Path, engine_url: str) -> None:
    settings = (f"engine.url={engine_url}", "evaluation.greedy=false", "evaluation.samples=2")
    flags = [part for setting in settings for part in ("--set", setting)]
    done = await run("eval", "--tasks", "3", "--agent", "agents/plain/agent.py", *flags, folder=tmp_path)
    assert done.code == 0, done.err
    report = (tmp_path / "eval" / "report.md").read_text()
    assert "| eval | base (v0) | held_out | 1 |" in report
    (file,) = (tmp_path / "eval" / "evaluations").glob("*.json")
    assert len(json.loads(file.read_text())["outcomes"]) == 6


async def test_an_unknown_version_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = await run("eval", "--version", "7", "--agent", "agents/plain/agent.py", folder=tmp_path)
    assert done.code == 2
    assert "no trained version" in done.err


async def test_a_missing_agent_file_is_told_and_no_run_is_left(tmp_path: Path) -> None:
    for command in ("rollout", "eval", "train"):
        done = await run(command, "--agent", "agents/nobody/agent.py", folder=tmp_path)
        assert done.code == 2, command
        assert "agents/nobody/agent.py" in done.err
        assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


async def test_an_engine_that_does_not_answer_is_named_with_its_address(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9"
    done = await run("rollout", "--agent", "agents/plain/agent.py", "--set", f"engine.url={url}", folder=tmp_path)
    assert done.code == 2
    assert url in done.err
    assert "Traceback" not in done.err


async def test_a_tool_server_that_is_not_there_is_named(tmp_path: Path, engine_url: str) -> None:
    flags = ("--agent", "agents/plain/agent.py", "--tools", "nowhere", "--set", f"engine.url={engine_url}")
    done = await run("rollout", *flags, folder=tmp_path)
    assert done.code == 2
    assert "nowhere" in done.err
    assert "Traceback" not in done.err


async def test_a_model_that_does_not_exist_is_told_before_a_server_starts(tmp_path: Path) -> None:
    done = await run("rollout", "--agent", "agents/plain/agent.py", "--model", "./no/such/model", folder=tmp_path)
    assert done.code == 2
    assert "no/such/model" in done.err
    assert "Traceback" not in done.err
