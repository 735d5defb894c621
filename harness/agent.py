"""Start an agent of any kind and bring back what it answered: a Python callable, a Python file, or a command line.

An agent gets a task and a door (two URLs and a key), and nothing else of ours; it is not patched, imported or watched
inside. It knows nothing about sessions, gateways or scores. Called by rollout.py.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from harness import agent_node, guardian
from harness.agent_venv import REQUIREMENTS, VENVS, agent_python, find_python
from harness.config import Config, RunsIn
from harness.errors import AgentError
from harness.task import AgentTask

KEPT_OUTPUT_BYTES = 64 * 2**10
"""How much of an agent's output is kept: its end. The rest is read and dropped, so that a flood blocks nobody."""

_CHILD = Path(__file__).with_name("agent_child.py")
_OURS = ("HARNESS_", "OPENAI_", "ANTHROPIC_", "WANDB_", "HF_TOKEN", "HUGGING_FACE_")
_FILLED_IN = re.compile(r"\{(?:user_message|system_prompt|base_url|api_key|mcp_url|model)\}")
_CANCEL_GRACE_S = 5.0
_STOP_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class Door:
    """What an agent is handed besides its task."""

    base_url: str
    """Model gateway: an OpenAI base URL of this rollout, ending in `/v1`."""
    api_key: str
    """The rollout's key, as API key for clients that want one."""
    mcp_url: str
    """Tool gateway: an MCP server (streamable HTTP) of this rollout."""
    model: str
    """Model name to ask for; the gateway serves the rollout's policy whatever is asked."""
    max_turns: int
    """Model calls that the gateway will answer."""
    traceparent: str = ""
    """W3C trace context, for agents that are instrumented."""
    otlp_endpoint: str = ""
    """Where an instrumented agent's spans are received; empty where nobody does."""
    user_url: str = ""
    """Where to post what the agent says to its user (user_door.py); empty where the task's message holds everything."""

    def environment(self, task: AgentTask) -> dict[str, str]:
        """The same for another process: the variables that clients of the field read, and the task as JSON."""
        variables = {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.api_key,
            "MCP_URL": self.mcp_url,
            "TRACEPARENT": self.traceparent,
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.otlp_endpoint,
            "HARNESS_MODEL": self.model,
            "HARNESS_MAX_TURNS": str(self.max_turns),
            "HARNESS_USER_URL": self.user_url,
            "HARNESS_TASK": task.to_json(),
        }
        return {name: value for name, value in variables.items() if value}


@dataclass(frozen=True, slots=True)
class AgentResult:
    """How an agent's run went."""

    answer: str | None
    """What it returned; None where it did not get that far."""
    error: str | None = None
    """Why it failed, in words; None after an answer and after a time-out."""
    timed_out: bool = False
    """True where the time limit ended it."""
    output: str = ""
    """The end of what it wrote to standard output and error; empty for agents in this process."""


Run = Callable[[AgentTask, Door], Awaitable[str | None]]
"""The contract of a Python agent: `async def run(task, door) -> answer`."""


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent ready to be started any number of times."""

    name: str
    """How traces call it."""
    run: Run | None = None
    """Runs in this process; None for a command."""
    command: tuple[str, ...] = ()
    """Runs in a process of its own; its standard output is the answer."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to a command's environment."""


def load_agent(spec: str | Run, *, runs_in: RunsIn = "auto", python: str | None = None, venvs: Path = VENVS) -> Agent:
    """Make an agent from a callable, a Python file with `run`, a file for Node, or a command line.

    `python` is the interpreter for Python files that don't run in this process; None takes our own. A file for Node is
    short for the command that runs it. An environment that a file needs is made in `venvs` at the first call (minutes).
    In the words of a command line `{user_message}` and the like are filled in: `{system_prompt}`, `{base_url}`,
    `{api_key}`, `{mcp_url}`, `{model}`.
    Raises AgentError for a file or command that isn't there, a file that doesn't import, one without `run`, an
    interpreter or Node that isn't there, and requirements that can't be installed.
    """
    if not isinstance(spec, str):
        return Agent(name=getattr(spec, "__module__", "agent"), run=spec)
    words = _words(spec)
    if len(words) == 1 and words[0].endswith(".py"):
        return _load_file(Path(words[0]), runs_in, python, venvs)
    if len(words) == 1 and words[0].endswith(agent_node.SUFFIXES):
        return _load_node_file(Path(words[0]), runs_in, venvs)
    if not words or shutil.which(words[0]) is None:
        found = "no such command on the PATH" if words else "it is empty"
        raise AgentError(f"agent command {spec!r}", found, "give a Python file with `run(task, door)`, or a command")
    return Agent(name=Path(words[0]).name, command=words)


def configured_agent(config: Config) -> Agent:
    """The agent of a run's configuration; its environment is kept beside the runs. Raises AgentError."""
    section = config.agent
    venvs = Path(config.run.folder) / VENVS.name
    return load_agent(section.spec, runs_in=section.runs_in, python=section.python, venvs=venvs)


def _words(spec: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(spec))
    except ValueError as error:
        found = f"it can't be split into words: {error}"
        raise AgentError(f"agent command {spec!r}", found, "close the quote") from error


def _load_file(path: Path, runs_in: RunsIn, python: str | None, venvs: Path) -> Agent:
    name = _name(path)
    if runs_in == "auto":
        own = path.with_name(REQUIREMENTS).is_file()
        runs_in = "venv" if own else "process" if python else "here"
    if runs_in == "here":
        return Agent(name=name, run=_load_run(path))
    interpreter = find_python(python or sys.executable)
    if runs_in == "venv":
        interpreter = agent_python(path, venvs, python=interpreter)
    command = (interpreter, str(_CHILD), str(path.resolve()))
    _check_file(command)
    return Agent(name=name, command=command)


def _load_node_file(path: Path, runs_in: RunsIn, venvs: Path) -> Agent:
    name = _name(path)
    if runs_in == "here":
        raise AgentError(
            f"agent.runs_in = 'here' for {str(path)!r}", "it is no Python", "leave agent.runs_in at 'auto'"
        )
    return Agent(name=name, command=agent_node.node_command(path, venvs))


def _name(path: Path) -> str:
    """How traces call the agent of a file that is there."""
    if not path.is_file():
        raise AgentError(
            f"agent file {str(path)!r}", f"no such file in {Path.cwd()}", "give the path of the agent's file"
        )
    return path.parent.resolve().name if path.stem == "agent" else path.stem


@functools.cache
def _check_file(command: tuple[str, ...]) -> None:
    """Have the child import the file once, so that a file that is no agent is told before anything is started."""
    looked = subprocess.run(
        (*command, "--check"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_inherited(),
    )
    if looked.returncode != 0:
        found = f"exit code {looked.returncode}: {looked.stdout[-800:].strip()}"
        fix = "make the file importable on its own there, with `async def run(task, door) -> str` in it"
        raise AgentError(f"agent file {command[-1]!r} under {command[0]}", found, fix)


def _load_run(path: Path) -> Run:
    name = f"agent_file_{abs(hash(path.resolve()))}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise AgentError(f"agent file {str(path)!r}", "Python can't import it", "give a file that ends in .py")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except ImportError as error:
        needs = path.with_name("requirements.txt")
        fix = f"pip install -r {needs}" if needs.exists() else "install what it imports into this environment"
        raise AgentError(f"agent file {str(path)!r}", f"it needs {error.name or error}: {error}", fix) from error
    except Exception as error:
        found = f"it raised {type(error).__name__}: {error}"
        raise AgentError(f"agent file {str(path)!r}", found, "make the file importable on its own") from error
    run = getattr(module, "run", None)
    if not callable(run):
        names = ", ".join(sorted(n for n in vars(module) if not n.startswith("_"))) or "nothing"
        found = f"no function `run` in it; it defines {names}"
        raise AgentError(f"agent file {str(path)!r}", found, "add `async def run(task, door) -> str`")
    return cast("Run", run)


async def run_agent(agent: Agent, task: AgentTask, door: Door, *, time_limit_s: float) -> AgentResult:
    """Run an agent once, to its answer, its failure or its time limit; nothing of it is left running after that.

    Never raises for what the agent does. An in-process agent that won't be cancelled is given up after 5 s.
    """
    if agent.run is not None:
        return await _run_here(agent.run, task, door, time_limit_s)
    return await _run_command(agent, task, door, time_limit_s)


async def _run_here(run: Run, task: AgentTask, door: Door, time_limit_s: float) -> AgentResult:
    running = asyncio.ensure_future(_awaited(run, task, door))
    try:
        done, _ = await asyncio.wait({running}, timeout=time_limit_s)
    except asyncio.CancelledError:
        await _cancel(running)
        raise
    if not done:
        await _cancel(running)
        return AgentResult(None, timed_out=True)
    if running.cancelled():
        return AgentResult(None, error="the agent cancelled itself")
    error = running.exception()
    if error is not None:
        return AgentResult(None, error=describe_error(error))
    answer = running.result()
    return AgentResult("" if answer is None else str(answer))


async def _awaited(run: Run, task: AgentTask, door: Door) -> str | None:
    """A coroutine of our own, so that an agent that raises at once or isn't async fails like any other."""
    return await run(task, door)


async def _cancel(running: asyncio.Future[Any]) -> None:
    running.cancel()
    await asyncio.wait({running}, timeout=_CANCEL_GRACE_S)
    if running.done() and not running.cancelled():
        running.exception()


async def _run_command(agent: Agent, task: AgentTask, door: Door, time_limit_s: float) -> AgentResult:
    guarded = (sys.executable, "-I", "-S", guardian.__file__)
    read_end, write_end = os.pipe()
    try:
        # The guardian ends the command's whole family when it ends, when we close the pipe, and when we die.
        process = await asyncio.create_subprocess_exec(
            *(*guarded, str(read_end), str(_STOP_GRACE_S), "--", *_filled(agent, task, door)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**_inherited(), **agent.environment, **door.environment(task)},
            pass_fds=(read_end,),
            start_new_session=True,
        )
    except OSError as error:
        os.close(write_end)
        return AgentResult(None, error=f"the command could not be started: {error}")
    finally:
        os.close(read_end)
    reading = asyncio.gather(_tail(process.stdout), _tail(process.stderr), process.wait())
    try:
        done, _ = await asyncio.wait({reading}, timeout=time_limit_s)
    finally:
        os.close(write_end)
        await asyncio.shield(asyncio.wait({reading}, timeout=_STOP_GRACE_S + _CANCEL_GRACE_S))
    stdout, stderr, code = reading.result() if reading.done() else ("", "", None)
    output = f"{stdout}\n{stderr}".strip()
    if not done:
        return AgentResult(None, timed_out=True, output=output)
    if code != 0:
        return AgentResult(None, error=f"exit code {code}: {(stderr or stdout)[-500:].strip()}", output=output)
    return AgentResult(stdout.strip(), output=output)


def _inherited() -> dict[str, str]:
    """Our environment without our keys, and without what would lead a client elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}


def _filled(agent: Agent, task: AgentTask, door: Door) -> list[str]:
    """A command's words with what stands for task and door filled in; each stays one word, whatever it holds."""
    values = {
        "{user_message}": task.user_message,
        "{system_prompt}": task.system_prompt,
        "{base_url}": door.base_url,
        "{api_key}": door.api_key,
        "{mcp_url}": door.mcp_url,
        "{model}": door.model,
    }
    return [_FILLED_IN.sub(lambda found: values[found[0]], word) for word in agent.command]


async def _tail(stream: asyncio.StreamReader | None) -> str:
    kept = bytearray()
    while stream is not None and (chunk := await stream.read(2**16)):
        kept += chunk
        del kept[:-KEPT_OUTPUT_BYTES]
    return kept.decode(errors="replace")


def describe_error(error: BaseException) -> str:
    """An exception in one line; of a group, its first."""
    if isinstance(error, BaseExceptionGroup):
        return describe_error(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return f"{type(error).__name__}: {error}"[:2000]
