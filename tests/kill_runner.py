"""A process that runs groups of rollouts until it is killed, and goes on with what a killed one left. For tests.

Standard input's first line is JSON: store, gateway_url, admin_key, tools_url, control_url, control_key, and `drain`:
end the open groups and stop. One line of JSON on standard output for each group that is closed on disk.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from harness.agent import load_agent
from harness.gateway.client import attach_gateway
from harness.group import GroupPlan, run_group
from harness.policy import Limits, Policy
from harness.rollout import World
from harness.session import attach_tool_server
from harness.task import Task
from tests.conftest import REPO
from traces.store import Store

RUN = "kills"
SIZE = 2
AT_ONCE = 2
RETRIES = 12
"""Pauses between attempts grow to seconds: a part that was killed has the time to start again."""


async def main() -> None:
    told: dict[str, Any] = json.loads(sys.stdin.readline())
    async with (
        attach_gateway(told["gateway_url"], told["admin_key"]) as gateway,
        attach_tool_server("retail", told["tools_url"], told["control_url"], told["control_key"]) as server,
    ):
        with Store(Path(told["store"])) as store:
            store.abandon_open_rollouts(RUN)
            limits = Limits(turns=8, tokens=4096, wall_s=60)
            world = World(run_id=RUN, server=server, gateway=gateway, store=store, limits=limits)
            agent = load_agent(str(REPO / "agents" / "plain" / "agent.py"))
            task = await first_task(server)

            async def close_group(plan: GroupPlan) -> None:
                group = await run_group(task, agent, Policy("base", 3), world, plan)
                endings = {one.rollout_id: one.ending.value for one in group.trajectories}
                print(json.dumps(endings), flush=True)

            stopped = [plan_of(store, record.group_id) for record in store.open_groups(RUN)]
            await asyncio.gather(*map(close_group, stopped))
            while not told["drain"]:
                plans = [GroupPlan(size=SIZE, retries=RETRIES) for _ in range(AT_ONCE)]
                await asyncio.gather(*map(close_group, plans))


def plan_of(store: Store, group_id: str) -> GroupPlan:
    """What a killed process left of a group: the rollouts that ended are kept, the others made anew."""
    ended = store.rollouts(group_id=group_id, ended=True)
    kept = tuple(record.rollout_id for record in ended if record.ending and not record.ending.is_infrastructure)
    return GroupPlan(size=SIZE, group_id=group_id, kept=kept, retries=RETRIES)


async def first_task(server: Any) -> Task:
    """A task that the script solves, once the tool server answers."""
    tasks = await server.tasks("train", count=64)
    return next(task for task in tasks if task.kind == "cancel" and not task.is_refusal)


if __name__ == "__main__":
    asyncio.run(main())
