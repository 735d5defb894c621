"""The trainer against real vLLM: both see the same probabilities, before training and with a published adapter."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from harness.engine import Engine
from tests.contracts.conftest import ADAPTER_RANK, NANO
from tests.recorded_runs import Recorder, write_run
from traces.span import Tokens
from traces.store import Store

pytest.importorskip("trl")
pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

GROUPS, GROUP_SIZE = 4, 4


async def sampled(engine: Engine, model: str, prompt: list[int]) -> list[list[Tokens]]:
    """Answers to one prompt, one rollout each, as the engine sampled them."""
    body = {
        "model": model, "prompt": prompt, "n": GROUP_SIZE, "temperature": 1.0, "max_tokens": 48, "logprobs": 0,
        "return_token_ids": True,
    }  # fmt: skip
    async with aiohttp.ClientSession() as http, http.post(f"{engine.url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        choices: list[dict[str, Any]] = (await response.json())["choices"]
    return [
        [
            Tokens(
                np.array(prompt, np.int32),
                np.array(choice["token_ids"], np.int32),
                np.array(choice["logprobs"]["token_logprobs"], np.float32),
            )
        ]
        for choice in choices
    ]


async def record_step(engine: Engine, recorder: Recorder, model: str, version: int) -> None:
    draw = np.random.default_rng(version)
    prefix = draw.integers(2, 2000, 60).tolist()
    for _ in range(GROUPS):
        turns_G = await sampled(engine, model, prefix + draw.integers(2, 2000, 10).tolist())
        recorder.record_turns(turns_G, (1.0, 0.0) * (GROUP_SIZE // 2), version)


async def version_published(store: Store, version: int, trainer: threading.Thread) -> None:
    deadline = time.monotonic() + 300
    while (policy := store.latest_policy("run")) is None or policy.version < version:
        assert trainer.is_alive(), "the trainer ended too early"
        assert time.monotonic() < deadline, f"version {version} was never published"
        await asyncio.sleep(0.05)


async def test_trainer_and_engine_agree_before_training_and_on_a_published_adapter(
    engine: Engine, tmp_path: Path
) -> None:
    from training.trainer import train

    rows = GROUPS * GROUP_SIZE
    run = write_run(tmp_path / "run", NANO, engine.url, steps=2, batch_rows=rows, lora_rank=ADAPTER_RANK, lr=1e-3,
                    max_staleness=0, group_timeout_s=300.0)  # fmt: skip
    with Store(run / "traces.db") as store:
        recorder = Recorder(store, "run")
        await record_step(engine, recorder, engine.model_name, 0)
        trainer = threading.Thread(target=train, args=(run,), daemon=True)
        trainer.start()
        try:
            await version_published(store, 1, trainer)
            await record_step(engine, recorder, "policy-v1", 1)
            await version_published(store, 2, trainer)
            await asyncio.to_thread(trainer.join, 60)
        finally:
            for name in ("policy-v1", "policy-v2"):
                await engine.unload_adapter(name)
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for step in steps:
        assert step["ratio"] == pytest.approx(1.0, abs=1e-3), step["step"]
        assert abs(step["kl"]) < 1e-4, step["step"]
    assert steps[0]["grad_norm"] > 0
