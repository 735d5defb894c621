"""Recorded τ² calls made again over real MCP, and what differs. Imported by the replay tests of both domains."""

from __future__ import annotations

import json
from typing import Any

from mcp import Client

from mcp_servers.state import normalise
from tests.served_worlds import Served

# Where Python or pydantic speak, only that the call fails is part of the contract, not the words.
LIBRARY_WORDS = ("RetailTools.", "AirlineTools.", "errors.pydantic.dev")


def parsed(text: str) -> Any:
    """The JSON in the text, numbers exact, null as missing; or the text itself."""
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
                word in call["content"] for word in LIBRARY_WORDS
            )
            if result.is_error != call["error"] or not same_words:
                wrong.append(f"call {number} {call['name']}: expected {call['content'][:300]}, got {text[:300]}")
    return wrong


async def replay_tasks(served: Served, golden: list[dict[str, Any]]) -> list[str]:
    """Differences in answers and in final states over the tasks of a golden.train.json."""
    wrong: list[str] = []
    for task in golden:
        wrong += [f"task {task['id']}: {found}" for found in await replay(served, task["calls"])]
        *_, session = served.sessions
        expected = {path: normalise(entity) for path, entity in task["changed_entities_after"].items()}
        found = entities_by_path(session.state.changes())
        if found != expected:
            paths = sorted(path for path in found | expected if found.get(path) != expected.get(path))
            wrong.append(f"task {task['id']}: the state differs in {paths}")
        served.sessions.drop(session.id)
    return wrong


def entities_by_path(changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """`kind/id` → entity."""
    return {f"{kind}/{key}": normalise(entity) for kind, members in changes.items() for key, entity in members.items()}
