"""Airline answers as the published τ² tools do: each train task and probe, over real MCP with the tau2 switch on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcp_servers.airline.server import airline_world
from mcp_servers.airline.state import open_airline
from mcp_servers.airline.tau2 import tau2_base
from mcp_servers.airline.tools import call_tool
from mcp_servers.world import World
from tests.served_worlds import serve_world
from tests.tau2_replay import replay, replay_tasks


@pytest.fixture(scope="module")
def world(shared_data: Path) -> World:
    return airline_world(tau2_base(shared_data / "tau2" / "airline" / "db.json"), tau2=True)


async def test_every_published_train_task_replays_with_equal_answers_and_states(
    world: World, shared_data: Path
) -> None:
    golden = json.loads((shared_data / "tau2" / "airline" / "golden.train.json").read_text())["tasks"]
    assert len(golden) == 30
    before = world.base.fingerprint
    async with serve_world(world) as served:
        assert not (wrong := await replay_tasks(served, golden)), wrong
    kinds = {kind: {key: world.base.get(kind, key) or {} for key in world.base.ids(kind)} for kind in KINDS}
    assert type(world.base)(kinds).fingerprint == before


async def test_every_published_airline_probe_answers_as_recorded(world: World, shared_data: Path) -> None:
    probes = json.loads((shared_data / "tau2" / "probes.json").read_text())
    airline = {name: probe["calls"] for name, probe in probes.items() if name.startswith("air")}
    assert airline
    async with serve_world(world) as served:
        for name, calls in airline.items():
            assert not (wrong := await replay(served, calls)), f"{name}: {wrong}"


def test_library_words_in_published_errors_are_kept_too_where_the_library_is_the_same(
    world: World, shared_data: Path
) -> None:
    probes = json.loads((shared_data / "tau2" / "probes.json").read_text())
    spoken = [call for name in probes for call in probes[name]["calls"] if "pydantic.dev" in call["content"]]
    assert spoken
    for call in spoken:
        text = call_tool(open_airline(world.base, tau2=True), call["name"], call["arguments"]).text
        # The last line links to the documentation of the installed version.
        assert text.splitlines()[:-1] == call["content"].splitlines()[:-1]


KINDS = ("flights", "users", "reservations")
