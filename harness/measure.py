"""Measure a policy version in a running stack: the same tasks, sampled and greedy, and an agent that does nothing.

It knows nothing about training: its numbers go to files and reports and steer nothing (law 10).
The training loop measures before and after, `harness eval` any version at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.agent import Agent, configured_agent, load_agent
from harness.config import Config, RewardSection
from harness.evaluate import do_nothing, evaluate, load_evaluations, save_evaluation
from harness.group import GroupPlan, run_group
from harness.outcomes import Evaluation, EvaluationSpec, Outcome
from harness.policy import Policy
from harness.run_facts import DO_NOTHING
from harness.scoring.scorer import open_scorer
from harness.stack import Stack
from harness.task import Task
from traces.store import Store
from traces.trajectory import Trajectory

_TASKS_A_REQUEST = 64

OnOutcome = Callable[[Outcome], None]


async def fetch_tasks(stack: Stack, config: Config, split: str, offset: int, count: int) -> list[Task]:
    """Tasks `offset` to `offset + count` of a split, in a few requests; the seed of the configuration fixes them."""
    tasks: list[Task] = []
    for start in range(offset, offset + count, _TASKS_A_REQUEST):
        size = min(_TASKS_A_REQUEST, offset + count - start)
        drawn = config.tasks
        tasks += await stack.server.tasks(
            split, seed=drawn.seed, offset=start, count=size, kinds=drawn.kinds, difficulty=drawn.difficulty
        )
    return tasks


class Measurement:
    """Evaluations of one run under way, each made once: one whose file is there is not made again."""

    def __init__(self, config: Config, stack: Stack, store: Store, folder: Path) -> None:
        self._config = config
        self._stack = stack
        self._store = store
        self._folder = folder

    async def policy(self, label: str, policy: Policy, on_outcome: OnOutcome) -> list[Evaluation]:
        """Evaluate a policy version at temperature 1, and greedily if the configuration says so."""
        agent = configured_agent(self._config)
        made = [await self._evaluate(label, agent, policy, (1.0, self._config.evaluation.samples), on_outcome)]
        if self._config.evaluation.greedy:
            made.append(await self._evaluate(label, agent, policy, (0.0, 1), on_outcome))
        return made

    async def doing_nothing(self, policy: Policy, on_outcome: OnOutcome) -> Evaluation:
        """The floor: an agent that answers at once and calls nothing."""
        return await self._evaluate(DO_NOTHING, load_agent(do_nothing), policy, (0.0, 1), on_outcome)

    def rollouts(self, greedy: bool = True) -> int:
        """How many rollouts `policy` will make."""
        section = self._config.evaluation
        return section.tasks * (section.samples + (1 if greedy and section.greedy else 0))

    async def _evaluate(
        self, label: str, agent: Agent, policy: Policy, sampling: tuple[float, int], on_outcome: OnOutcome
    ) -> Evaluation:
        temperature, repeats = sampling
        section = self._config.evaluation
        spec = EvaluationSpec(
            label=label,
            model=policy.model,
            policy_version=policy.version,
            split=section.split,
            temperature=temperature,
            repeats=repeats,
            seed=self._config.run.seed,
        )
        for found in await asyncio.to_thread(load_evaluations, self._folder):
            if found.spec == spec:
                return found
        world = self._stack.world(self._config, self._store, temperature)
        tasks = await fetch_tasks(self._stack, self._config, section.split, 0, section.tasks)
        # Tasks of a file have no checks: a judge scores each rollout by itself, so that groups of one can be measured.
        reward = RewardSection(kind="checks" if self._config.tasks.file is None else "independent")
        scoring = open_scorer(reward, self._stack.judge(self._config), self._store, seed=self._config.run.seed)
        async with scoring as judge:

            async def run(task: Task, size: int) -> Sequence[Trajectory]:
                plan = GroupPlan(size=size, retries=self._config.rollout.infrastructure_retries, judge=judge)
                return (await run_group(task, agent, policy, world, plan)).trajectories

            # All at once: the world's slots bound what runs at a time.
            evaluation = await evaluate(spec, tasks, run, groups_at_once=len(tasks), on_outcome=on_outcome)
        await asyncio.to_thread(save_evaluation, self._folder, evaluation)
        return evaluation
