"""What every run stands on: the engine, the task's tool server and the gateway, started together and stopped together.

It knows nothing about rollouts, scores or training. The command line (`serve`, `rollout`, `eval`) and the training loop
open one; whichever part dies first is named by `watch`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from harness.config import Config, JudgeSection, ToolsSection, UserSection
from harness.engine import Engine, EngineConfig, attach, start_engine
from harness.errors import ConfigError, GatewayError
from harness.gateway.client import GatewayClient, attach_gateway
from harness.hosted import open_hosted
from harness.policy import Limits, Sampling
from harness.process import Process, ProcessSpec, ready_line, start_process
from harness.rollout import World, score_by_checks, score_later
from harness.scenarios.taskfile import TaskFileServer, read_tasks, third_party
from harness.session import CONTROL_KEY_VARIABLE, attach_tool_server, start_tool_server
from harness.task_server import NO_TOOLS, NoTools, TaskServer
from harness.user_door import UserDesk, open_user_desk
from traces.store import Store

ADMIN_KEY_VARIABLE = "HARNESS_ADMIN_KEY"
"""The gateway finds its admin key here: command lines can be read by everybody on the machine."""

STORE_FILE = "traces.db"
LOGS_FOLDER = "logs"
BASE_NAME = "base"

SERVED = "served"
"""As a judge's or a user's model: the base model that the engine serves."""
S = TypeVar("S", JudgeSection, UserSection)

NANO = Path(__file__).parent.parent / "training" / "nano" / "weights"
"""The shipped small policy. A path and not an import: this package may not import `training`."""


@dataclass(frozen=True, slots=True)
class Stack:
    """The running parts."""

    engine: Engine
    """Samples the policy."""
    server: TaskServer
    """Makes, isolates and grades the tasks."""
    gateway: GatewayClient
    """Opens and seals rollouts."""
    processes: tuple[Process, ...]
    """Every child that must stay alive; none for parts that were attached to."""
    users: UserDesk | None = None
    """Whom agents talk with; None where the configuration has no user."""

    async def watch(self) -> Process:
        """Wait until any of our processes ends; returns that one."""
        waits = {asyncio.create_task(process.wait()): process for process in self.processes}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return waits[next(iter(done))]

    @contextlib.asynccontextmanager
    async def ended_by_a_dead_part(self, fix: str) -> AsyncGenerator[None]:
        """Cancel the block when a part ends, and raise that part's ProcessError in place of the cancellation."""
        owner = asyncio.current_task()
        assert owner is not None
        watching = asyncio.create_task(self.watch())
        watching.add_done_callback(lambda watch: None if watch.cancelled() else owner.cancel())
        try:
            yield
        except asyncio.CancelledError:
            if watching.done() and not watching.cancelled():
                owner.uncancel()
                process = watching.result()
                raise process.error(f"it ended with code {process.returncode}", fix) from None
            raise
        finally:
            watching.cancel()

    def judge(self, config: Config) -> JudgeSection:
        """The judge of a configuration, with its address where it is the model that the engine serves."""
        return _addressed(config.judge, self.engine)

    def world(self, config: Config, store: Store, temperature: float) -> World:
        """What rollouts of this configuration run in, sampled at `temperature`."""
        section = config.rollout
        return World(
            run_id=config.run.name,
            server=self.server,
            gateway=self.gateway,
            store=store,
            # Nobody but a judge can say what work on a task of a file is worth.
            score=score_by_checks if config.tasks.file is None else score_later,
            sampling=Sampling(temperature=temperature, max_tokens=section.answer_tokens, top_p=section.top_p),
            limits=Limits(turns=section.turns, tokens=section.tokens, wall_s=config.agent.time_limit_s),
            slots=asyncio.Semaphore(section.concurrency),
            users=self.users,
        )


def _addressed(section: S, engine: Engine) -> S:
    """`served` as what LiteLLM understands; any other model as it is."""
    if section.model != SERVED:
        return section
    update = {"model": f"hosted_vllm/{engine.model_name}", "api_base": f"{engine.url}/v1"}
    return section.model_copy(update=update)


def model_folder(name: str) -> str:
    """`nano` as the folder of the shipped weights; anything else as it is."""
    return str(NANO) if name == "nano" else name


@contextlib.asynccontextmanager
async def start_stack(config: Config, run_dir: Path, *, adapter_slots: int = 4) -> AsyncGenerator[Stack]:
    """Start (or attach to) engine, tool server and gateway, all at once; stop them on leaving.

    Raises EngineError, ToolServerError, GatewayError or ProcessError for the part that doesn't come up.
    """
    logs = run_dir / LOGS_FOLDER
    async with contextlib.AsyncExitStack() as parts:
        engine_up = asyncio.create_task(parts.enter_async_context(open_engine(config, logs, adapter_slots)))
        server_up = asyncio.create_task(parts.enter_async_context(open_tool_server(config, logs)))
        started = await asyncio.gather(engine_up, server_up, return_exceptions=True)
        for outcome in started:
            if isinstance(outcome, BaseException):
                raise outcome
        engine, server = engine_up.result(), server_up.result()
        gateway, gateway_processes = await parts.enter_async_context(
            open_gateways(engine, run_dir, config.rollout.gateways, config.tools.call_timeout_s)
        )
        running = (engine.process, server.process, *gateway_processes)
        users = await parts.enter_async_context(open_user_desk(_addressed(config.user, engine)))
        yield Stack(engine, server, gateway, tuple(process for process in running if process is not None), users)


@contextlib.asynccontextmanager
async def open_engine(config: Config, logs: Path, adapter_slots: int) -> AsyncGenerator[Engine]:
    """The configured engine; `adapter_slots` policy versions can be served at once."""
    section = config.engine
    if section.hosted is not None:
        async with open_hosted(section.hosted, section.url, logs.parent, concurrency=section.max_num_seqs) as engine:
            yield engine
        return
    if section.url is not None:
        yield await attach(section.url)
        return
    settings = EngineConfig(
        model=model_folder(config.model.name),
        log_path=logs / "engine.log",
        served_name=BASE_NAME,
        dtype=section.dtype,
        max_model_len=section.max_model_len,
        max_num_seqs=section.max_num_seqs,
        max_loras=adapter_slots,
        max_lora_rank=max(8, config.training.lora_rank),
        tool_parser=section.tool_call_parser,
        reasoning_parser=section.reasoning_parser,
        cpu_kvcache_gib=max(1, round(section.kv_cache_gib)),
        gpu_memory_share=section.gpu_memory_utilization,
        startup_timeout_s=section.start_timeout_s,
        extra_args=section.extra_args,
    )
    async with start_engine(settings) as engine:
        yield engine


@contextlib.asynccontextmanager
async def open_tool_server(config: Config, logs: Path) -> AsyncGenerator[TaskServer]:
    """The configured tool server: started, or attached to; with a file of tasks, sessions of a server for those."""
    section = config.tools
    if config.tasks.file is not None:
        tasks = tuple(read_tasks(Path(config.tasks.file), server=section.server))
        if section.command is not None or section.url is not None:
            yield TaskFileServer(third_party(section, logs), tasks)
            return
        async with start_tool_server(section.server, logs, args=section.args) as source:
            yield TaskFileServer(source, tasks, source.process)
        return
    if section.server == NO_TOOLS:
        yield NoTools()
        return
    if section.cassette:
        args = cassette_arguments(section, logs)
        async with start_tool_server("cassettes", logs, module="harness.cassettes", args=args) as server:
            yield server
        return
    if section.url is None or section.control_url is None:
        async with start_tool_server(section.server, logs, args=section.args) as server:
            yield server
        return
    control_key = os.environ.get(CONTROL_KEY_VARIABLE)
    if not control_key:
        raise ConfigError(
            f"attach to the tool server at {section.url}",
            f"{CONTROL_KEY_VARIABLE} is not set",
            "set it to the control key that the server was started with",
        )
    async with attach_tool_server(section.server, section.url, section.control_url, control_key) as server:
        yield server


def cassette_arguments(section: ToolsSection, logs: Path) -> list[str]:
    """The command line of the cassette server that stands in for the configured one."""
    given = {"--on-miss": section.on_miss, "--logs": str(logs), "--simulator": section.simulator}
    given |= {"--simulator-api-base": section.simulator_api_base, "--live-url": section.live_url}
    if section.on_miss == "live" and section.live_url is None:
        given["--live"] = section.server
    flags = [f"{flag}={value}" for flag, value in given.items() if value is not None]
    return [*flags, *(f"--live-arg={arg}" for arg in section.args), str(section.cassette)]


@contextlib.asynccontextmanager
async def open_gateways(
    engine: Engine, run_dir: Path, count: int = 1, tool_timeout_s: float = 60.0
) -> AsyncGenerator[tuple[GatewayClient, list[Process]]]:
    """Gateway processes in front of `engine`, writing to the run's store; raises GatewayError without an address."""
    admin_key = secrets.token_urlsafe(24)
    argv = (sys.executable, "-m", "harness.gateway", "--engine-url", engine.url, "--model", engine.model_name)
    async with contextlib.AsyncExitStack() as stack:
        processes: list[Process] = []
        for number in range(count):
            name = "gateway" if number == 0 else f"gateway-{number + 1}"
            spec = ProcessSpec(
                (*argv, "--store", str(run_dir / STORE_FILE), "--tool-timeout-s", str(tool_timeout_s)),
                run_dir / LOGS_FOLDER / f"{name}.log",
                name=name,
                env={ADMIN_KEY_VARIABLE: admin_key},
                ready=ready_line('{"'),
            )
            processes.append(await stack.enter_async_context(start_process(spec)))
        urls = [_told_url(process) for process in processes]
        yield await stack.enter_async_context(attach_gateway(urls, admin_key)), processes


def _told_url(gateway: Process) -> str:
    said = json.loads(str(gateway.ready))
    if not isinstance(said, dict) or "url" not in said:
        raise GatewayError("the gateway's address", f"its ready line was {gateway.ready!r}", "see logs/gateway.log")
    return str(said["url"])  # pyright: ignore[reportUnknownArgumentType]
