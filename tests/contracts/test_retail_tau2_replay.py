"""Retail answers as the published τ² tools do: every train task and probe, over real MCP with the tau2 switch on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcp_servers.retail.server import retail_world
from mcp_servers.retail.tau2 import tau2_base
from mcp_servers.state import Base, State
from mcp_servers.world import World
from tests.served_worlds import serve_world
from tests.tau2_replay import replay, replay_tasks


@pytest.fixture(scope="module")
def base(shared_data: Path) -> Base:
    return tau2_base(shared_data / "tau2" / "retail" / "db.json")


@pytest.fixture(scope="module")
def world(base: Base) -> World:
    return retail_world(base, tau2=True)


async def test_every_published_train_task_replays_with_equal_answers_and_states(
    world: World, shared_data: Path
) -> None:
    golden = json.loads((shared_data / "tau2" / "retail" / "golden.train.json").read_text())["tasks"]
    assert len(golden) == 74
    async with serve_world(world) as served:
        assert not (wrong := await replay_tasks(served, golden)), wrong


async def test_every_published_retail_probe_answers_as_recorded(world: World, shared_data: Path) -> None:
    probes = json.loads((shared_data / "tau2" / "probes.json").read_text())
    retail = {name: probe["calls"] for name, probe in probes.items() if name.startswith("retail")}
    assert retail
    async with serve_world(world) as served:
        for name, calls in retail.items():
            assert not (wrong := await replay(served, calls)), f"{name}: {wrong}"


def test_no_replayed_call_touches_the_shared_base(base: Base, world: World, shared_data: Path) -> None:
    untouched = tau2_base(shared_data / "tau2" / "retail" / "db.json").fingerprint
    golden = json.loads((shared_data / "tau2" / "retail" / "golden.train.json").read_text())["tasks"]
    for task in golden:
        state = State(base)
        for call in task["calls"]:
            world.run(state, call["name"], call["arguments"])
            state.commit()
    assert (
        Base({kind: {key: base.get(kind, key) or {} for key in base.ids(kind)} for kind in KINDS}).fingerprint
        == untouched
    )


KINDS = ("products", "users", "orders")
