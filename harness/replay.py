"""A stored rollout run again with no model and no servers: the agent and the gateways are real, all else is the record.

The model's answers come from a tape with their ids and log-probabilities, tool results from a cassette of the same
rollout. What comes out must be what is stored, bit for bit: a regression test of the agent, the gateways, and assembly.
It knows nothing about flags or printing. Called by the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import tempfile
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import uvicorn
from starlette.types import ASGIApp

from harness.agent import Agent
from harness.cassettes.app import CassetteApp
from harness.cassettes.deck import Refuse
from harness.cassettes.shelf import Shelf
from harness.config import Config
from harness.engine import attach
from harness.errors import ConfigError
from harness.policy import Policy
from harness.replay_engine import TapeEngine, difference
from harness.rollout import run_rollout, score_later
from harness.session import attach_tool_server
from harness.stack import STORE_FILE, Stack, open_gateways
from harness.task import task_from_dict
from harness.user_door import open_user_desk
from traces.cassette import record_cassette
from traces.records import RolloutRecord
from traces.store import Store
from traces.trajectory import Trajectory, Turn

_NAME = "recorded"


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of running a stored rollout again."""

    rollout_id: str
    """The stored rollout."""
    turns: int
    """Its model calls."""
    difference: str | None
    """The first thing that is not as it was, in words; None where all is."""


async def replay_rollout(store: Store, rollout_id: str, config: Config, agent: Agent) -> Replay:
    """Run a stored rollout again from its record; `config` is its run's.

    Raises ConfigError for a rollout that holds too little or whose user was played by a model, StoreError, and
    GatewayError where the gateway doesn't start.
    """
    record, old = store.rollout(rollout_id), store.trajectory(rollout_id)
    _require_replayable(record, old, config)
    engine = TapeEngine(old)
    key = secrets.token_urlsafe(24)
    # The task's own id names the cassette, whatever the stored turns say.
    cassette = replace(record_cassette(old), task_id=record.task_id)
    tools = CassetteApp(Shelf([cassette]), Refuse(), key)
    async with contextlib.AsyncExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="replay-")))
        engine_url = await parts.enter_async_context(_serve(engine.app()))
        tools_url = await parts.enter_async_context(_serve(tools))
        server = await parts.enter_async_context(attach_tool_server(_NAME, tools_url, tools_url, key))
        served = await attach(engine_url)
        gateway, (process,) = await parts.enter_async_context(
            open_gateways(served, folder, tool_timeout_s=config.tools.call_timeout_s)
        )
        users = await parts.enter_async_context(open_user_desk(config.user))
        fresh = parts.enter_context(Store(folder / STORE_FILE))
        stack = Stack(served, server, gateway, (process,), users)
        world = replace(stack.world(config, fresh, config.rollout.temperature), score=score_later)
        policy = Policy(engine.model, record.policy_version)
        new = await run_rollout(task_from_dict(record.task), agent, policy, world)
    return Replay(rollout_id, len(old.turns), engine.departure or first_difference(old, new))


def _require_replayable(record: RolloutRecord, old: Trajectory, config: Config) -> None:
    asked = f"replay rollout {record.rollout_id!r}"
    if old.ending.is_infrastructure:
        raise ConfigError(asked, f"it ended as {old.ending.value}: a failure of ours", "choose one that ended itself")
    if not old.turns or not all(turn.has_tokens for turn in old.turns):
        found = "turns without token ids" if old.turns else "no answered model call"
        raise ConfigError(asked, f"it holds {found}", "choose one that this program recorded")
    if not record.task:
        raise ConfigError(asked, "its task was not kept: it was imported", "train on it: harness traces cassettes")
    if config.user.kind == "llm":
        fix = "replay rollouts of a scripted user, or of none"
        raise ConfigError(asked, "its user was played by a model, whose words are not on record", fix)


@contextlib.asynccontextmanager
async def _serve(app: ASGIApp) -> AsyncGenerator[str]:
    """An app on a free port of this machine; its base URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, lifespan="on", log_level="error", access_log=False, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


def first_difference(old: Trajectory, new: Trajectory) -> str | None:
    """The first thing in which two records of a rollout differ, in words; times, ids and scores don't count."""
    return next(_differences(old, new), None)


def _differences(old: Trajectory, new: Trajectory) -> Iterator[str]:
    for was, now in zip(old.turns, new.turns, strict=False):
        yield from _turn_differences(was, now)
    if len(old.turns) != len(new.turns):
        yield f"model calls: recorded {len(old.turns)}, now {len(new.turns)} ({new.ending.value}: {new.ending_detail})"
    for index, (was, now) in enumerate(zip(old.tool_calls, new.tool_calls, strict=False)):
        for name in ("name", "arguments", "result", "is_error", "turn_index"):
            if getattr(was, name) != getattr(now, name):
                yield f"tool call {index}, {name}: {difference(getattr(was, name), getattr(now, name))}"
    if len(old.tool_calls) != len(new.tool_calls):
        yield f"tool calls: recorded {len(old.tool_calls)}, now {len(new.tool_calls)}"
    for name in ("ending", "answer"):
        if getattr(old, name) != getattr(new, name):
            yield f"{name}: {difference(getattr(old, name), getattr(new, name))} {new.ending_detail}".rstrip()


def _turn_differences(was: Turn, now: Turn) -> Iterator[str]:
    for index, (left, right) in enumerate(zip(was.input_messages, now.input_messages, strict=False)):
        if left != right:
            yield f"turn {was.index}, message {index}: {difference(left, right)}"
    if len(was.input_messages) != len(now.input_messages):
        yield f"turn {was.index}: recorded {len(was.input_messages)} messages, now {len(now.input_messages)}"
    for name in ("tools", "output_message", "finish_reason", "policy_version"):
        if getattr(was, name) != getattr(now, name):
            yield f"turn {was.index}, {name}: {difference(getattr(was, name), getattr(now, name))}"
    for name in ("prompt_ids_T", "completion_ids_T", "logprobs_T"):
        left, right = getattr(was, name), getattr(now, name)
        if not np.array_equal(left, right):
            same = int(np.argmin(left[: len(right)] == right[: len(left)])) if len(left) and len(right) else 0
            yield f"turn {was.index}, {name}: differs from token {same} ({len(left)} recorded, {len(right)} now)"
