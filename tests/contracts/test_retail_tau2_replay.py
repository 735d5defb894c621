"""Retail answers as the published τ² tools do: every train task and probe, over real MCP with the tau2 switch on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from mcp_servers.retail.server import retail_world
from mcp_servers.retail.tau2 import tau2_base
from mcp_servers.state import Base, State, normalise
from mcp_servers.world import World
from tests.served_worlds import Served, serve_world

# Python's own complaints about arguments: only that the call fails is part of the contract, not the words.
PYTHON_WORDS = ("RetailTools.",)


@pytest.fixture(scope="module")
def base(shared_data: Path) -> Base:
    return tau2_base(shared_data / "tau2" / "retail" / "db.json")


@pytest.fixture(scope="module")
def world(base: Base) -> World:
    return retail_world(base, tau2=True)


def parsed(text: str) -> Any:
    try:
        return normalise(json.loads(text))
    except ValueError:
        return text


async def replay(served: Served, calls: list[dict[str, Any]]) -> list[str]:
    """Differences between what was recorded and what is answered, on a fresh session; the session is the last one."""
    session = served.sessions.create()
    wrong: list[str] = []
    async with Client(served.door(session)) as client:
        for number, call in enumerate(calls):
            result = await client.call_tool(call["name"], call["arguments"])
            text = result.content[0].text  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
            same_words = parsed(text) == parsed(call["content"]) or any(
                word in call["content"] for word in PYTHON_WORDS
            )
            if result.is_error != call["error"] or not same_words:
                wrong.append(f"call {number} {call['name']}: expected {call['content'][:300]}, got {text[:300]}")
    return wrong


def entities_by_path(changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {f"{kind}/{key}": normalise(entity) for kind, members in changes.items() for key, entity in members.items()}


async def test_every_published_train_task_replays_with_equal_answers_and_states(
    world: World, shared_data: Path
) -> None:
    golden = json.loads((shared_data / "tau2" / "retail" / "golden.train.json").read_text())["tasks"]
    assert len(golden) == 74
    async with serve_world(world) as served:
        for task in golden:
            wrong = await replay(served, task["calls"])
            assert not wrong, f"task {task['id']}: {wrong}"
            *_, session = served.sessions
            expected = {path: normalise(entity) for path, entity in task["changed_entities_after"].items()}
            assert entities_by_path(session.state.changes()) == expected, f"task {task['id']}"
            served.sessions.drop(session.id)


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
