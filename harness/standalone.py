"""What `harness serve`, `rollout`, `wrap` and `eval` do: open a stack, do one thing in it, close it.

It knows nothing about flags (cli_stack.py) or training: a policy version is what the run's store says it is.
Called by the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from harness.agent import Agent, Door, configured_agent
from harness.config import Config
from harness.errors import ConfigError
from harness.group import GroupPlan, run_group
from harness.live import Display
from harness.measure import Measurement, fetch_tasks
from harness.outcomes import Evaluation
from harness.policy import Policy
from harness.rollout import run_rollout
from harness.scoring.litellm_call import JudgeFailed
from harness.scoring.scorer import open_scorer
from harness.stack import STORE_FILE, Stack, start_stack
from harness.task import AgentTask, Task
from harness.wrap import Observation, observe
from traces.store import Store
from traces.trajectory import Trajectory

A_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Selection:
    """Which tasks of which split."""

    split: str
    """`train`, `validation` or `held_out`."""
    offset: int = 0
    """The first task."""
    count: int = 1
    """How many."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A running stack with the store of its run and the policy to sample."""

    stack: Stack
    """Engine, tool server, gateway."""
    store: Store
    """The run's store."""
    policy: Policy
    """The version that was asked for, loaded into the engine."""


@contextlib.asynccontextmanager
async def open_run(config: Config, run_dir: Path, version: int | None = None) -> AsyncGenerator[Opened]:
    """Start the parts for a run folder and load policy `version` (None: the newest, or the model itself).

    A part that dies while the block runs ends it with that part's error. Raises ConfigError for an unknown version.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    with Store(run_dir / STORE_FILE) as store:
        record_of = {record.version: record for record in store.policies(config.run.name)}
        if version is not None and version != 0 and version not in record_of:
            known = f"versions 0 to {max(record_of)}" if record_of else "no trained version"
            raise ConfigError(f"policy version {version} of {run_dir}", known, "leave --version out for the newest")
        record = record_of.get(max(record_of, default=0) if version is None else version)
        async with start_stack(config, run_dir) as stack:
            policy = Policy(stack.engine.model_name)
            if record is not None and record.adapter_path is not None:
                await stack.engine.load_adapter(record.model, Path(record.adapter_path))
                policy = Policy(record.model, record.version, record.adapter_path)
            async with stack.ended_by_a_dead_part("read its log, then try again"):
                yield Opened(stack, store, policy)


async def run_rollouts(
    config: Config, run_dir: Path, tasks: Selection, *, each: int, display: Display
) -> list[Trajectory]:
    """Run each of the tasks `each` times under the newest policy and return every trajectory, group after group."""
    agent = configured_agent(config)
    display.update(phase="start engine, tools, gateway")
    async with open_run(config, run_dir) as run:
        world = run.stack.world(config, run.store, config.rollout.temperature)
        found = await fetch_tasks(run.stack, config, tasks.split, tasks.offset, tasks.count)
        display.update(phase="rollouts", total=len(found) * each, unit="rollouts", policy_version=run.policy.version)
        made: list[Trajectory] = []
        async with open_scorer(config.reward, run.stack.judge(config), run.store, seed=config.run.seed) as judge:

            async def one(task: Task) -> Sequence[Trajectory]:
                plan = GroupPlan(size=each, retries=config.rollout.infrastructure_retries, judge=judge)
                try:
                    ended = (await run_group(task, agent, run.policy, world, plan)).trajectories
                except JudgeFailed as error:
                    display.update(note=f"a group is left unscored: {error.found}")
                    records = run.store.rollouts(group_id=plan.group_id, ended=True)
                    ended = [run.store.trajectory(record.rollout_id) for record in records]
                made.extend(ended)
                display.update(done=len(made), rollouts=len(made), reward=mean_reward(made))
                return ended

            groups = await asyncio.gather(*map(one, found))
    return [trajectory for group in groups for trajectory in group]


async def observe_one_rollout(config: Config, run_dir: Path, tasks: Selection) -> tuple[Task, Observation]:
    """Run the configured agent once on the first of the tasks; what the gateways saw of it."""
    agent = configured_agent(config)
    async with open_run(config, run_dir) as run:
        (task,) = await fetch_tasks(run.stack, config, tasks.split, tasks.offset, 1)
        world = run.stack.world(config, run.store, config.rollout.temperature)
        trajectory = await run_rollout(task, agent, run.policy, world)
        return task, observe(trajectory, run.store.spans(trajectory.rollout_id))


def mean_reward(trajectories: Sequence[Trajectory]) -> float | None:
    """Mean of the newest scores over trajectories that have one and are no infrastructure failure."""
    values = [score.value for one in trajectories if not one.ending.is_infrastructure and (score := one.score())]
    return sum(values) / len(values) if values else None


async def evaluate_version(
    config: Config, run_dir: Path, version: int | None, *, label: str, display: Display
) -> list[Evaluation]:
    """Measure a policy version on the configured split, sampled and (if configured) greedy; saved in the run folder."""
    display.update(phase="start engine, tools, gateway")
    async with open_run(config, run_dir, version) as run:
        measurement = Measurement(config, run.stack, run.store, run_dir)
        total = measurement.rollouts()
        display.update(phase="evaluate", total=total, unit="rollouts", policy_version=run.policy.version)
        return await measurement.policy(label, run.policy, lambda _: _one_more(display))


def _one_more(display: Display) -> None:
    done = display.progress.done + 1
    display.update(done=done, rollouts=int(done))


async def serve_one_rollout(
    config: Config, run_dir: Path, tasks: Selection, version: int | None, tell: Callable[[AgentTask, Door], None]
) -> Trajectory:
    """Open the two doors of one rollout, `tell` about them, and wait for a line on standard input: the agent's answer.

    Returns the graded trajectory. An empty line or end of input answers nothing.
    """
    patient = config.model_copy(update={"agent": config.agent.model_copy(update={"time_limit_s": A_DAY_S})})

    async def wait_for_answer(task: AgentTask, door: Door) -> str:
        tell(task, door)
        return await read_line(sys.stdin)

    async with open_run(patient, run_dir, version) as run:
        (task,) = await fetch_tasks(run.stack, patient, tasks.split, tasks.offset, 1)
        world = run.stack.world(patient, run.store, patient.rollout.temperature)
        return await run_rollout(task, Agent(name="served", run=wait_for_answer), run.policy, world)


async def read_line(stream: TextIO) -> str:
    """The next line of a terminal or pipe, without blocking the loop; waits for ever on what can't be waited for."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    try:
        pipe = os.fdopen(os.dup(stream.fileno()), "rb")
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    except (ValueError, PermissionError):  # a file or /dev/null: nobody will type there
        await asyncio.Event().wait()
        raise
    try:
        return (await reader.readline()).decode(errors="replace").strip()
    finally:
        transport.close()
