"""Agents of three kinds, well-behaved and not: each ends for its own reason and leaves no process behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from harness.agent import KEPT_OUTPUT_BYTES, Agent, Door, load_agent, run_agent
from harness.errors import AgentError
from harness.task import AgentTask
from tests.conftest import REPO

needs_node = pytest.mark.skipif(shutil.which("npm") is None, reason="Node.js with npm is not installed")
TASK = AgentTask("task-1", "retail", "be kind", "cancel #W1", ["cancel"])
DOOR = Door("http://gateway/r/k/v1", "k", "http://gateway/r/k/mcp", "policy-v1", 5, "00-a-b-01")


def script(folder: Path, source: str) -> Agent:
    file = folder / "script.py"
    file.write_text(source)
    return load_agent(f"{sys.executable} {file}")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_python_file_is_loaded_once_and_awaited_in_this_process(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text(
        "import os\nLOADED = []\nasync def run(task, door):\n    return f'{task.user_message} {os.getpid()}'"
    )
    agent = load_agent(str(file))
    results = await asyncio.gather(*(run_agent(agent, TASK, DOOR, time_limit_s=10) for _ in range(3)))
    assert {result.answer for result in results} == {f"cancel #W1 {os.getpid()}"}
    assert agent.name == tmp_path.name


async def test_a_python_file_runs_in_a_process_of_its_own_under_the_same_contract(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text(
        "import os, json\n"
        "async def run(task, door):\n"
        "    print('noise that is no answer')\n"
        "    return json.dumps([os.getpid(), task.user_message, task.allowed_tools, door.base_url, door.mcp_url,\n"
        "                       door.model, door.max_turns, door.traceparent])\n"
    )
    result = await run_agent(load_agent(str(file), runs_in="process"), TASK, DOOR, time_limit_s=60)
    assert result.error is None
    pid, *told = json.loads(result.answer or "")
    assert pid != os.getpid()
    assert told == ["cancel #W1", ["cancel"], DOOR.base_url, DOOR.mcp_url, "policy-v1", 5, "00-a-b-01"]
    assert "noise that is no answer" in result.output


async def test_a_command_finds_everything_in_its_environment_and_no_key_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_CONTROL_KEY", "opens-everything")
    monkeypatch.setenv("WANDB_API_KEY", "also-secret")
    monkeypatch.setenv("MY_SEARCH_KEY", "the agent's own")
    agent = script(tmp_path, "import json, os, sys\nprint(json.dumps([dict(os.environ), sys.stdin.read()]))")
    result = await run_agent(agent, TASK, DOOR, time_limit_s=60)
    seen, stdin = json.loads(result.answer or "")
    assert stdin == ""
    assert seen["OPENAI_BASE_URL"] == DOOR.base_url
    assert seen["OPENAI_API_KEY"] == seen["ANTHROPIC_API_KEY"] == "k"
    assert seen["ANTHROPIC_BASE_URL"] == "http://gateway/r/k"
    assert seen["MCP_URL"] == DOOR.mcp_url
    assert seen["TRACEPARENT"] == "00-a-b-01"
    assert seen["MY_SEARCH_KEY"] == "the agent's own"
    assert json.loads(seen["HARNESS_TASK"])["user_message"] == "cancel #W1"
    assert "opens-everything" not in str(seen)
    assert "also-secret" not in str(seen)


async def test_a_command_gets_task_and_door_in_its_words_whatever_they_hold(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))")
    agent = load_agent(f"{sys.executable} {file} --ask={{user_message}} {{mcp_url}} {{unknown}}")
    task = AgentTask("task-1", "retail", "be kind", "cancel '#W1' {model}; rm -rf $HOME")
    result = await run_agent(agent, task, DOOR, time_limit_s=60)
    assert json.loads(result.answer or "") == [f"--ask={task.user_message}", DOOR.mcp_url, "{unknown}"]


async def test_a_command_that_fails_says_its_code_and_its_last_words(tmp_path: Path) -> None:
    result = await run_agent(script(tmp_path, "raise SystemExit('out of ideas')"), TASK, DOOR, time_limit_s=60)
    assert result.answer is None
    assert result.error == "exit code 1: out of ideas"


async def test_a_command_that_hangs_is_ended_with_all_its_children_at_the_limit(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    agent = script(
        tmp_path,
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)",
    )
    running = asyncio.create_task(run_agent(agent, TASK, DOOR, time_limit_s=8))
    result = await asyncio.wait_for(running, 60)
    assert result.timed_out
    assert result.error is None
    assert [pid for pid in map(int, pids.read_text().split()) if is_alive(pid)] == []


async def test_a_command_that_leaves_children_behind_is_cleaned_up_after(tmp_path: Path) -> None:
    agent = script(
        tmp_path,
        "import subprocess\nprint(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, end='')",
    )
    result = await asyncio.wait_for(run_agent(agent, TASK, DOOR, time_limit_s=60), 60)
    assert result.answer
    assert not is_alive(int(result.answer))


async def test_a_command_that_floods_its_output_is_read_and_cut(tmp_path: Path) -> None:
    agent = script(tmp_path, "import sys\nfor _ in range(400): sys.stdout.write('x' * 65536)\nprint('the end')")
    result = await asyncio.wait_for(run_agent(agent, TASK, DOOR, time_limit_s=60), 60)
    assert result.answer is not None
    assert result.answer.endswith("the end")
    assert len(result.answer) <= KEPT_OUTPUT_BYTES


async def test_a_cancelled_run_of_a_command_leaves_no_process_behind(tmp_path: Path) -> None:
    pipe = tmp_path / "pid"
    os.mkfifo(pipe)
    source = f"import os, time\nopen({str(pipe)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    running = asyncio.create_task(run_agent(script(tmp_path, source), TASK, DOOR, time_limit_s=600))
    pid = int(await asyncio.wait_for(asyncio.to_thread(pipe.read_text), 60))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not is_alive(pid)


async def test_an_agent_in_this_process_that_ignores_its_cancellation_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.agent._CANCEL_GRACE_S", 0.1)
    release = asyncio.Event()

    async def stubborn(task: AgentTask, door: Door) -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    result = await asyncio.wait_for(run_agent(Agent("stubborn", stubborn), TASK, DOOR, time_limit_s=0.1), 30)
    release.set()
    assert result.timed_out


async def test_a_function_that_is_not_async_fails_like_any_other_agent() -> None:
    result = await run_agent(Agent("sync", lambda task, door: "text"), TASK, DOOR, time_limit_s=10)  # type: ignore[arg-type, return-value]
    assert result.error is not None
    assert result.error.startswith("TypeError")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("async def ran(task, door): ...", "no function `run` in it; it defines annotations, ran"),
        ("import a_package_nobody_has", "it needs a_package_nobody_has"),
        ("1 / 0", "it raised ZeroDivisionError"),
    ],
)
def test_a_file_that_is_no_agent_is_refused_with_what_to_do(content: str, found: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text("from __future__ import annotations\n" + content)
    with pytest.raises(AgentError) as refusal:
        load_agent(str(file))
    assert found in refusal.value.found
    assert refusal.value.fix


def test_a_file_for_another_process_is_tried_there_before_anything_is_started(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text("async def ran(task, door): ...")
    with pytest.raises(AgentError, match="no function `run` in it"):
        load_agent(str(file), runs_in="process")


def test_an_interpreter_that_is_not_there_is_refused_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text("async def run(task, door): ...")
    with pytest.raises(AgentError, match=r"'python9\.9'"):
        load_agent(str(file), python="python9.9")


async def test_a_file_with_requirements_gets_an_environment_of_its_own_once(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "agent.py").write_text("import sys\nasync def run(task, door): return sys.prefix")
    (folder / "requirements.txt").write_text("# nothing beyond Python\n")
    venvs = tmp_path / "venvs"
    agent = load_agent(str(folder / "agent.py"), venvs=venvs)
    (made,) = (path for path in venvs.iterdir() if path.is_dir())
    before = made.stat().st_ino
    assert load_agent(str(folder / "agent.py"), venvs=venvs) == agent
    assert made.stat().st_ino == before
    result = await run_agent(agent, TASK, DOOR, time_limit_s=60)
    assert result.answer == str(made)


def test_requirements_that_can_not_be_installed_are_told_and_leave_no_half_environment(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("async def run(task, door): ...")
    (tmp_path / "requirements.txt").write_text("./a_folder_nobody_has\n")
    with pytest.raises(AgentError) as refusal:
        load_agent(str(tmp_path / "agent.py"), venvs=tmp_path / "venvs")
    assert "a_folder_nobody_has" in refusal.value.found
    assert refusal.value.fix
    assert [path for path in (tmp_path / "venvs").iterdir() if path.is_dir()] == []


def node_folder(home: Path, **files: str) -> Path:
    """A folder of an agent for Node, whose package asks for a greeter that lies elsewhere on this machine."""
    greeter = home / "greeter"
    greeter.mkdir()
    (greeter / "package.json").write_text('{"name": "greeter", "version": "1.0.0", "main": "index.js"}')
    (greeter / "index.js").write_text("exports.greet = (name) => `hello ${name}`;")
    folder = home / "shop"
    folder.mkdir()
    asks_for = {"greeter": f"file:{greeter}"}
    (folder / "package.json").write_text(json.dumps({"name": "shop", "private": True, "dependencies": asks_for}))
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


@needs_node
async def test_a_file_for_node_gets_what_its_package_asks_for_once(tmp_path: Path) -> None:
    source = (
        "import greeter from 'greeter';\nimport { shout } from './voice.mjs';\n"
        "console.log(shout(greeter.greet(JSON.parse(process.env.HARNESS_TASK).user_message)));"
    )
    folder = node_folder(tmp_path, agent_mjs=source, voice_mjs="export const shout = (text) => text + '!';")
    before = sorted(folder.iterdir())
    agent = load_agent(str(folder / "agent.mjs"), venvs=tmp_path / "venvs")
    (made,) = (path for path in (tmp_path / "venvs").iterdir() if path.is_dir())
    first = made.stat().st_ino
    assert load_agent(str(folder / "agent.mjs"), venvs=tmp_path / "venvs") == agent
    assert made.stat().st_ino == first
    result = await run_agent(agent, TASK, DOOR, time_limit_s=60)
    assert (result.answer, result.error) == ("hello cancel #W1!", None)
    assert agent.name == "shop"
    assert sorted(folder.iterdir()) == before


@needs_node
def test_a_package_that_can_not_be_installed_is_told_and_leaves_no_half_environment(tmp_path: Path) -> None:
    folder = node_folder(tmp_path, agent_mjs="")
    (folder / "package-lock.json").write_text('{"name": "shop", "lockfileVersion": 3, "packages": {}}')
    with pytest.raises(AgentError) as refusal:
        load_agent(str(folder / "agent.mjs"), venvs=tmp_path / "venvs")
    assert "greeter" in refusal.value.found
    assert "npm ci" in refusal.value.asked
    assert [path for path in (tmp_path / "venvs").iterdir() if path.is_dir()] == []


@needs_node
def test_a_file_for_node_beside_its_modules_or_without_a_package_needs_no_environment(tmp_path: Path) -> None:
    folder = node_folder(tmp_path, agent_mjs="")
    (folder / "node_modules").mkdir()
    (tmp_path / "alone.mjs").write_text("")
    for file in (folder / "agent.mjs", tmp_path / "alone.mjs"):
        assert load_agent(str(file), venvs=tmp_path / "venvs").command[1:] == (str(file),)
    assert not (tmp_path / "venvs").exists()


def test_a_file_for_node_is_refused_in_this_process_and_without_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "agent.ts"
    file.write_text("")
    with pytest.raises(AgentError, match="it is no Python"):
        load_agent(str(file), runs_in="here")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AgentError, match="'node'"):
        load_agent(str(file))


@pytest.mark.parametrize("spec", ["missing/agent.py", "missing/agent.ts", "no-such-command-anywhere --flag", " "])
def test_an_agent_that_is_not_there_is_refused_by_its_name(spec: str) -> None:
    with pytest.raises(AgentError) as refusal:
        load_agent(spec)
    assert repr(spec) in refusal.value.asked


def test_the_folder_of_agents_never_hides_the_sdk_of_the_same_name() -> None:
    assert not (REPO / "agents" / "__init__.py").exists()
    import agents

    assert agents.__file__ is not None
    assert "site-packages" in agents.__file__
