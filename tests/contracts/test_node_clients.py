"""The official Node clients of OpenAI and Anthropic at the model door; skipped where they aren't installed."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tests.model_doors import serve_doors
from tests.scripted_engine import ScriptedEngine, serve_engine

NODE = Path(__file__).resolve().parents[1] / "node"
CALLS = (
    'Looking.<tool_call>{"name":"get_order",   "arguments": {"order_id":"#W1", "share": 1.0 }}</tool_call>'
    '<tool_call>{"name":"cancel_order","arguments":{"order_id":"#W2"}}</tool_call><|im_end|>'
)

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
    pytest.mark.skipif(not (NODE / "node_modules").is_dir(), reason="run: npm install --prefix tests/node"),
]


async def test_node_clients_are_continued_token_for_token_in_every_dialect(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda prompt: "Done.<|im_end|>" if "<|im_start|>tool\n" in prompt else CALLS)
    async with serve_engine(engine) as url, serve_doors(url, tmp_path) as doors:
        opened = await doors.open()
        running = await asyncio.create_subprocess_exec(
            "node", str(NODE / "clients.mjs"), opened.model_url, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(running.communicate(), 120)
        seal = await doors.admin.seal("r-1")
    assert running.returncode == 0
    found = json.loads(out)
    assert found.pop("refused") == [400, "BadRequestError"]
    assert len(found) == 6
    for talk in found.values():
        calls = [(name, arguments) for _, name, arguments in talk["calls"]]
        assert calls == [("get_order", {"order_id": "#W1", "share": 1}), ("cancel_order", {"order_id": "#W2"})]
        assert talk["text"] == "Done."
    # JavaScript writes 1.0 as 1: the turn is continued as it was sampled all the same.
    assert (seal.turns, seal.drift_tokens, dict(seal.forks)) == (12, 0, {})
