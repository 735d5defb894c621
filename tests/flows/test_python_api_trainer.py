"""The trainer process of the Python API: a call is a step, whatever its size; what teaches nothing makes none."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import harness.api as art
from tests.recorded_runs import GroupPlan, Recorder, make_model, write_run
from tests.scripted_engine import ScriptedEngine
from tests.tool_doors import serve
from traces.store import Store
from training.batch import ENDS_CALL, BatchRules, GroupRows, group_rows, plan_call
from training.config import load_trainer_config
from training.rollouts import StoreRollouts

pytest.importorskip("trl")


def call_rows(run: Path, *plans: GroupPlan) -> list[GroupRows]:
    """Groups of one call, the last one marked as its end."""
    with Store(run / "traces.db") as store:
        recorder = Recorder(store, run.name)
        groups = [store.group(recorder.record(plan)) for plan in plans]
    groups[-1] = replace(groups[-1], metrics={ENDS_CALL: 1.0})
    return [group_rows(group, BatchRules(rows=99)) for group in groups]


def test_a_call_is_one_batch_whatever_its_size_and_a_call_cut_short_goes_with_the_next(tmp_path: Path) -> None:
    same = GroupPlan(rewards=(1.0, 1.0))
    rows = call_rows(write_run(tmp_path / "run", tmp_path), GroupPlan(), same, GroupPlan())
    rules = BatchRules(rows=99)
    batch = plan_call(rows, 0, rules)
    assert batch is not None
    assert (len(batch.rows), len(batch.group_ids)) == (8, 3)
    assert plan_call(rows[:2], 0, rules) is None, "the call is not complete"
    stale = plan_call(rows, 5, rules)
    assert stale is not None
    assert (stale.rows, len(stale.group_ids)) == ((), 3)


def test_a_call_that_teaches_nothing_is_used_up_by_the_step_that_stands(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tmp_path)
    with Store(run / "traces.db") as store:
        recorder = Recorder(store, "run")
        nothing, something = recorder.record(GroupPlan(rewards=(1.0, 1.0))), recorder.record(GroupPlan())
        by_call = load_trainer_config(run).model_copy(update={"by_call": True})
        rollouts = StoreRollouts(store, by_call, lambda row, advantage: (row.rollout_id, advantage))
        marked = [replace(rows, ends_call=True) for rows in _pending(store, by_call.rules)]
        rollouts._rows.update({rows.group_id: rows for rows in marked})
        batch = rollouts.next_batch()
        assert batch.group_ids == (something,)
        assert store.consumed("run") == {0: [nothing], 1: [something]}
        assert rollouts.rollout_buffer.qsize() == 4


def _pending(store: Store, rules: BatchRules) -> list[GroupRows]:
    return [group_rows(store.group(record.group_id), rules) for record in store.unconsumed_groups("run")]


def test_a_resumed_run_takes_the_learning_rate_that_is_configured_now(tmp_path: Path) -> None:
    import json

    from training.trainer import train

    model = make_model(tmp_path / "model")
    run = write_run(tmp_path / "run", model, steps=1, checkpoint_every=1, lr=1e-2, warmup_steps=0)
    with Store(run / "traces.db") as store:
        recorder = Recorder(store, "run")
        for _ in range(4):
            recorder.record(GroupPlan())
    train(run)
    write_run(run, model, steps=2, checkpoint_every=1, lr=5e-4, warmup_steps=0)
    train(run)
    rates = [json.loads(line)["learning_rate"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rates == pytest.approx([1e-2, 5e-4])


@asynccontextmanager
async def adapter_engine() -> AsyncGenerator[tuple[str, list[str]]]:
    """A scripted engine that takes adapters; its address, and their names."""
    loaded: list[str] = []

    async def load(request: Request) -> Response:
        body = await request.json()
        assert (Path(body["lora_path"]) / "adapter_model.safetensors").is_file()
        loaded.append(body["lora_name"])
        return Response()

    app = ScriptedEngine(lambda prompt: f"{len(prompt) % 7} it is.<|im_end|>").app()
    app.router.routes.append(Route("/v1/load_lora_adapter", load, methods=["POST"]))
    async with serve(app) as url:
        yield url, loaded


async def say(model: art.TrainableModel, number: int) -> art.Trajectory:
    words: list[art.Message] = [{"role": "user", "content": "so " * (number + 1)}]
    completion = await model.openai_client().chat.completions.create(model="m", messages=words)  # type: ignore[arg-type]
    return art.Trajectory(messages_and_choices=[*words, completion.choices[0]], reward=float(number % 2))


async def test_a_call_trains_an_adapter_in_a_process_of_its_own_and_serves_it(tmp_path: Path) -> None:
    settings = {"wandb.mode": "disabled", "training.warmup_steps": 0, "training.device": "cpu"}
    async with adapter_engine() as (url, loaded):
        async with art.LocalBackend(tmp_path, settings={**settings, "engine.url": url}) as backend:
            model = art.TrainableModel(name="m", project="p")
            await model.register(backend)
            groups = await art.gather_trajectory_groups([art.TrajectoryGroup(say(model, n) for n in range(3))])
            result = await model.train(groups, config=art.TrainConfig(learning_rate=1e-3))
            assert (result.step, result.trained, result.metrics["batch/rows"]) == (1, True, 3.0)
            assert result.metrics["learning_rate"] == pytest.approx(1e-3)
            assert loaded == ["policy-v1"]
            assert model.policy.adapter_path is not None
        async with art.LocalBackend(tmp_path, settings={**settings, "engine.url": url}) as backend:
            again = art.TrainableModel(name="m", project="p")
            await again.register(backend)
            assert (await again.get_step(), again.get_inference_name()) == (1, "policy-v1")
            pinned = await again.at_step(1)
            assert (pinned.get_inference_name(), loaded) == ("m@1", ["policy-v1", "policy-v1", "m@1"])
