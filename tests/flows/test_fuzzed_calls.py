"""Malformed calls to every server, through the whole ASGI app: none crashes or changes anything, each is told why.

`FUZZED_CALLS` sets how many are made to each server (100,000 take some minutes).
"""

from __future__ import annotations

import inspect
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

import pytest

from mcp_servers.serve import WorldApp
from mcp_servers.sessions import Sessions
from mcp_servers.world import World
from tests.served_worlds import CLIENT_META, SERVERS, make_world, post_in_memory

CALLS = int(os.environ.get("FUZZED_CALLS", "500"))
NOT_TEXT = (None, True, 7, -1.5, float("nan"), float("-inf"), 10**400, [], ["a"], {}, {"a": {"b": [None]}})
NOT_A_NUMBER = (None, True, [], [1], {}, {"a": 1}, float("nan"), "twelve", "", "\ud800")
NOT_A_LIST = (None, False, 3, 2.5, float("inf"), "a", {}, {"0": "a"}, [None], [3.5, [[]]], [["a"]])
SPECIAL = (
    "",
    " ",
    "\x00",
    "null",
    "../../etc/passwd",
    "'; DROP TABLE orders; --",
    "{{7*7}}",
    "#W0",
    "💥" * 9,
    "\ud800",
    "ａ",
)
VERSIONS = ("2026-07-28", "2025-11-25")
PLAIN_HEADERS = (
    ("host", "127.0.0.1"),
    ("content-type", "application/json"),
    ("accept", "application/json, text/event-stream"),
)


@dataclass(slots=True)
class Made:
    """One malformed call."""

    kind: str
    body: bytes
    headers: dict[str, str]
    key: str | None = None
    may_answer: bool = False


class Maker:
    """Makes malformed calls to one world from a seed."""

    def __init__(self, world: World, seed: int) -> None:
        self.rng = random.Random(seed)
        self.writes = set(world.toolbox.writes)
        self.tools = {name: parameters(tool) for name, tool in world.toolbox.tools.items()}
        self.kinds: dict[Callable[[], Made], int] = {
            self.wrong_type: 40,
            self.nonsense: 25,
            self.wrong_names: 10,
            self.unknown_tool: 8,
            self.foreign_key: 8,
            self.no_protocol: 8,
            self.huge: 1,
        }

    def next(self) -> Made:
        return self.rng.choices(list(self.kinds), list(self.kinds.values()))[0]()

    def text(self) -> str:
        if self.rng.random() < 0.3:
            return self.rng.choice(SPECIAL)
        return "".join(chr(self.rng.choice((32, 48, 97, 0x4E00, 0x1F600)) + self.rng.randrange(26)) for _ in range(12))

    def fitting(self, wanted: str) -> Any:
        """A value of the right type that means nothing."""
        if wanted == "number":
            return self.rng.choice((-1, 0, 10**6, -(10**9), 3))
        return self.text() if wanted == "text" else [self.text() for _ in range(self.rng.randrange(1, 4))]

    def call(self, kind: str, name: str, arguments: Any, **more: Any) -> Made:
        version = self.rng.choice(VERSIONS)
        meta = {"_meta": CLIENT_META} if version == VERSIONS[0] else {}
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        request["params"] = {"name": name, "arguments": arguments} | meta
        headers = {"mcp-protocol-version": version}
        if version == VERSIONS[0]:
            headers |= {"mcp-method": "tools/call", "mcp-name": name}
        return Made(kind, json.dumps(request).encode(), headers, **more)

    def wrong_type(self) -> Made:
        name = self.rng.choice([name for name, wanted in self.tools.items() if wanted])
        wanted = self.tools[name]
        wrong = {"text": NOT_TEXT, "number": NOT_A_NUMBER, "list": NOT_A_LIST}
        broken = self.rng.choice(list(wanted))
        values = {given: self.fitting(kind) for given, kind in wanted.items()}
        return self.call("wrong type", name, values | {broken: self.rng.choice(wrong[wanted[broken]])})

    def nonsense(self) -> Made:
        name = self.rng.choice(list(self.tools))
        values = {given: self.fitting(kind) for given, kind in self.tools[name].items()}
        # A tool that only reads may have an answer to anything.
        return self.call("nonsense", name, values, may_answer=name not in self.writes)

    def wrong_names(self) -> Made:
        name = self.rng.choice(list(self.tools))
        values = {given: self.fitting(kind) for given, kind in self.tools[name].items()}
        if values and self.rng.random() < 0.5:
            del values[self.rng.choice(list(values))]
        else:
            values[self.text() + "?"] = self.text()
        return self.call("wrong names", name, values)

    def unknown_tool(self) -> Made:
        name = "".join(self.rng.choice("abcdefgh_/.: ") for _ in range(self.rng.randrange(1, 30))).strip() + "z"
        return self.call("unknown tool", name, self.rng.choice(({}, {"a": 1}, {"a": self.text()})))

    def foreign_key(self) -> Made:
        made = self.call("foreign key", self.rng.choice(list(self.tools)), {})
        made.key = "".join(self.rng.choice("abcDEF019_-.%~") for _ in range(self.rng.randrange(1, 60)))
        return made

    def no_protocol(self) -> Made:
        made = self.call("no protocol", self.rng.choice(list(self.tools)), {})
        cut = self.rng.randrange(len(made.body))
        request = json.loads(made.body)
        broken = (
            made.body[:cut],
            made.body[:cut] + bytes([self.rng.randrange(128, 256)]) + made.body[cut:],
            b"[" * self.rng.randrange(1, 20_000),
            json.dumps([request]).encode(),
            json.dumps(request | {"jsonrpc": "3"}).encode(),
            json.dumps(request | {"id": None}).encode(),
            json.dumps(request | {"id": [1]}).encode(),
            json.dumps(request | {"params": self.rng.choice((None, 1, "a", [1]))}).encode(),
            json.dumps(request | {"params": {"name": self.rng.choice((None, 5, {}, []))}}).encode(),
            json.dumps(request | {"params": request["params"] | {"arguments": [1]}}).encode(),
            json.dumps(request | {"params": request["params"] | {"_meta": "x"}}).encode(),
            json.dumps(request | {"method": self.text()}).encode(),
        )
        made.body = self.rng.choice(broken)
        return made

    def huge(self) -> Made:
        name = self.rng.choice([name for name, wanted in self.tools.items() if wanted])
        size = self.rng.choice((20_000, 200_000))
        return self.call("huge", name, dict.fromkeys(self.tools[name], "x" * size))


def parameters(tool: Callable[..., Any]) -> dict[str, str]:
    hints = get_type_hints(tool)
    names = list(inspect.signature(tool).parameters)[1:]
    return {name: {str: "text", int: "number", float: "number"}.get(hints[name], "list") for name in names}


def complaint(status: int, body: bytes) -> str:
    """The error that an answer tells; empty where it tells none."""
    if status == 202:
        return "taken for a notification, which is never answered"
    answer = json.loads(body)
    if "error" in answer:
        return str(answer["error"]["message"]) if status < 500 else ""
    result = answer["result"]
    text = result["content"][0]["text"]
    return text.removeprefix("Error: ") if result["isError"] and text.startswith("Error: ") else ""


@pytest.mark.parametrize("name", SERVERS)
async def test_malformed_calls_crash_nothing_change_nothing_and_are_told_what_is_wrong(name: str) -> None:
    world = make_world(name)
    sessions = Sessions(world.base, world.run)
    app, maker = WorldApp(world, sessions, "control-key"), Maker(world, seed=11)
    session = sessions.create()
    untouched = session.state.hash()
    made_by_kind: Counter[str] = Counter()
    async with app.running():
        for _ in range(CALLS):
            made = maker.next()
            path = f"/s/{made.key or session.key}/mcp"
            status, body = await post_in_memory(app, path, made.body, [*PLAIN_HEADERS, *made.headers.items()])
            made_by_kind[made.kind] += 1
            assert status < 500, (made, status, body)
            told = complaint(status, body)
            assert made.may_answer or len(told) > 3, (made, status, body)
            assert len(told) < 2000, (made, status, body)
            assert not session.state.changed(), made
            assert not session.state.draft(), made
    assert session.state.hash() == untouched
    assert len(sessions) == 1
    assert len(made_by_kind) == len(maker.kinds) or CALLS < 300
    print(f"\n{name}: {CALLS:,} malformed calls, 0 crashes, 0 changes: {dict(made_by_kind)}")
