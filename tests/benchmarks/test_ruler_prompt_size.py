"""How long RULER's prompts are beside a dump of all messages, on recorded retail groups of 8: tokens by our estimate.

Eight rollouts of a task take the right way, a careless one, or a detour, through real gateways and the real server; the
engine is scripted. Run by `make bench`.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from harness.agent import load_agent
from harness.group import GroupPlan, run_group
from harness.scoring.heats import Question, RulerOptions, plan_vote
from harness.scoring.rubric import load_rubric
from harness.scoring.ruler_prompt import estimate_tokens
from harness.scoring.transcript import transcript_of
from harness.task import Task
from mcp_servers.generator import expert_actions
from mcp_servers.retail.tasks import sloppy_actions
from tests.rollout_world import AGENTS, POLICY, open_rollout_world, tool_call
from traces.trajectory import Group

TASKS = 12
GROUP_SIZE = 8
DETOUR = ("list_all_product_types", {})

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]


class Mixed:
    """Samples for each task the right actions, or a detour and then a careless agent's."""

    def __init__(self) -> None:
        self.ways: dict[str, tuple[list[Any], list[Any]]] = {}
        self._number = itertools.count()

    def knows(self, task: Task) -> None:
        raw = task.to_dict()
        right = expert_actions(raw)
        self.ways[task.user_message] = (right, [DETOUR, *(sloppy_actions(raw) or right)])

    def __call__(self, prompt: str) -> str:
        right, careless = self.ways[prompt.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]]
        number, done = next(self._number), prompt.count("<|im_start|>tool\n")
        strays = number % 3 == 0 if done == 0 else DETOUR[0] in prompt.split("<|im_start|>assistant\n", 1)[1]
        actions = careless if strays else right
        return tool_call(actions[done][0], **actions[done][1]) if done < len(actions) else f"Done, {number}.<|im_end|>"


def prompt_tokens(group: Group) -> int:
    distinct = {transcript.fingerprint: transcript for transcript in map(transcript_of, group.trajectories)}
    (heat,) = plan_vote(Question(distinct, load_rubric(None), 100_000, RulerOptions(twin_share=0.0)), 0)
    return heat.prompt.estimated_tokens


def dump_tokens(group: Group) -> int:
    last = [trajectory.turns[-1] for trajectory in group.trajectories]
    return estimate_tokens(json.dumps([[*turn.input_messages, turn.output_message] for turn in last]))


async def test_prompts_of_recorded_retail_groups_are_a_third_of_a_dump(tmp_path: Path) -> None:
    mixed = Mixed()
    async with open_rollout_world(tmp_path, mixed) as here:
        world = here.limited(turns=16, tokens=100_000)
        pairs: list[tuple[int, int]] = []
        for task in await here.server.tasks("train", count=TASKS):
            mixed.knows(task)
            plan = GroupPlan(size=GROUP_SIZE)
            group = await run_group(task, load_agent(AGENTS["plain"]), POLICY, world, plan)
            pairs.append((dump_tokens(group), prompt_tokens(group)))
    dumped, asked = (sum(side) for side in zip(*pairs, strict=True))
    ratios = sorted(dump / ask for dump, ask in pairs)
    print(f"\n{TASKS} groups: {dumped} tokens dumped, {asked} asked, {dumped / asked:.2f} times fewer, each {ratios}")
    assert dumped >= 3 * asked
