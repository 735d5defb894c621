"""Everything a rollout runs in, small and real: retail server, both gateways, a store; the engine is scripted."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.policy import Limits, Policy
from harness.rollout import World
from harness.session import ToolServer, attach_tool_server
from harness.task import Task
from mcp_servers.retail.server import retail_world
from mcp_servers.sessions import Sessions
from tests.conftest import REPO
from tests.model_doors import Doors, serve_doors
from tests.scripted_engine import ScriptedEngine, serve_engine
from tests.served_worlds import CONTROL_KEY, serve_world

POLICY = Policy("base", 3)
AGENTS = {name: str(REPO / "agents" / name / "agent.py") for name in ("plain", "openai_agents")}
ORDER_ID = re.compile(r"#[A-Z]\d+")


def tool_call(name: str, **arguments: Any) -> str:
    """A tool call as a model would sample it, with spacing of its own."""
    return f'<tool_call>{{"name":"{name}",  "arguments": {json.dumps(arguments)}}}</tool_call><|im_end|>'


def cancel_expert(prompt: str) -> str:
    """Looks at the order, cancels it, says so."""
    user = prompt.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
    order_id = ORDER_ID.findall(user)[0]
    reason = "ordered by mistake" if "mistake" in user else "no longer needed"
    answers = (
        tool_call("get_order_details", order_id=order_id),
        tool_call("cancel_pending_order", order_id=order_id, reason=reason),
        f"Order {order_id} is cancelled.<|im_end|>",
    )
    return answers[prompt.count("<|im_start|>tool\n")]


@dataclass
class RolloutWorld:
    """A world for rollouts, and a look behind its parts."""

    world: World
    """What `run_rollout` takes."""
    server: ToolServer
    """The retail server's client."""
    sessions: Sessions
    """The retail server's sessions."""
    doors: Doors
    """The gateway."""
    engine: ScriptedEngine
    """The engine."""

    async def cancel_task(self) -> Task:
        """A task that `cancel_expert` solves."""
        tasks = await self.server.tasks("train", count=64)
        return next(task for task in tasks if task.kind == "cancel" and not task.is_refusal)

    def limited(self, **limits: float) -> World:
        """The same world with other limits."""
        return replace(self.world, limits=replace(self.world.limits, **limits))


@asynccontextmanager
async def open_rollout_world(
    folder: Path, answer: Callable[[str], str] = cancel_expert
) -> AsyncGenerator[RolloutWorld]:
    """All parts in this event loop, over real HTTP."""
    engine = ScriptedEngine(answer)
    async with (
        serve_engine(engine) as engine_url,
        serve_doors(engine_url, folder) as doors,
        serve_world(retail_world()) as served,
        attach_tool_server("retail", served.url, served.url, CONTROL_KEY) as server,
    ):
        limits = Limits(turns=8, tokens=4096, wall_s=60)
        world = World(run_id="run", server=server, gateway=doors.admin, store=doors.store, limits=limits)
        yield RolloutWorld(world, server, served.sessions, doors, engine)
