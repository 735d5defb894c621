"""Everything a rollout runs in, small and real: retail server, both gateways, a store; the engine is scripted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from harness.policy import Limits, Policy
from harness.rollout import World
from harness.session import ToolServer, attach_tool_server
from harness.task import Task
from mcp_servers.retail.server import retail_world
from mcp_servers.sessions import Sessions
from tests.conftest import REPO
from tests.model_doors import Doors, serve_doors
from tests.retail_expert import ORDER_ID as ORDER_ID
from tests.retail_expert import cancel_expert as cancel_expert
from tests.retail_expert import tool_call as tool_call
from tests.scripted_engine import ScriptedEngine, serve_engine
from tests.served_worlds import CONTROL_KEY, serve_world

POLICY = Policy("base", 3)
AGENTS = {name: str(REPO / "agents" / name / "agent.py") for name in ("plain", "openai_agents")}


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
