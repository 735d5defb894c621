"""`harness train --from-traces`: stored groups become steps and adapters without rollouts, or it is said why not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from harness.config import Config, OfflineSection, RunSection
from harness.errors import EngineError
from tests.recorded_runs import GroupPlan, Recorder, make_model
from tests.scripted_engine import encode, render
from tests.tool_doors import serve
from traces.importers import READERS
from traces.importers.gather import append_imported, gather
from traces.store import Store
from traces.tokens import cut_rows
from traces.trajectory import Score
from training.batch import BatchRules
from training.relabel import RESCORED, Relabeller
from training.stored import Into, count_steps, take_groups, why_no_step

FIXTURES = Path(__file__).parents[1] / "contracts" / "trace_fixtures"
RULES = BatchRules(rows=4, max_staleness=10**9)


def recorded(folder: Path, *plans: GroupPlan) -> Path:
    folder.mkdir()
    with Store(folder / "traces.db") as store:
        recorder = Recorder(store, folder.name)
        for plan in plans:
            recorder.record(plan)
    return folder


def imported(folder: Path, *scores: float) -> Path:
    """Imported traces of one task, each with a score."""
    folder.mkdir()
    with Store(folder / "traces.db") as store:
        for name in ("genai", "openinference"):
            append_imported(store, gather(READERS["otlp"](FIXTURES / f"{name}.otlp.jsonl"), folder.name))
        for record, value in zip(store.rollouts(), scores, strict=False):
            store.append_scores(record.rollout_id, [Score(value=value, name="ruler")])
    return folder


async def test_scored_groups_are_copied_with_their_tokens_and_versions_once_a_pass(tmp_path: Path) -> None:
    old = recorded(tmp_path / "old", GroupPlan(version=3), GroupPlan(version=7, rewards=(1.0, None, 0.0)))
    with Store(tmp_path / "new.db") as store:
        taken = await take_groups(Into(store, "new"), [old], passes=2)
        assert (taken.groups, taken.rollouts) == (2, 7)
        groups = [store.group(record.group_id) for record in store.unconsumed_groups("new")]
        assert [group.position for group in groups] == [0, 1, 2, 3]
        versions = {turn.policy_version for group in groups for t in group.trajectories for turn in t.turns}
        assert versions == {3, 7}
        assert count_steps(store, "new", replace(RULES, rows=2)) == 4
        again = await take_groups(Into(store, "new"), [old], passes=2)
        assert (again.groups, len(store.unconsumed_groups("new"))) == (2, 4)


async def test_held_out_unscored_and_unfinished_groups_are_left_out_and_counted(tmp_path: Path) -> None:
    old = recorded(tmp_path / "old", GroupPlan())
    with Store(old / "traces.db") as store:
        (record,) = store.groups("old")
        store.append_group(replace(record, group_id="h", split="held_out", seq=None))
    plain = imported(tmp_path / "plain")
    with Store(tmp_path / "new.db") as store:
        taken = await take_groups(Into(store, "new"), [old, plain])
        assert taken.groups == 1
        assert taken.left_out == {"of split 'held_out'": 1, "not scored": 1}


async def test_traces_without_ids_train_nothing_until_they_are_rescored_and_then_are_marked(tmp_path: Path) -> None:
    source = imported(tmp_path / "plain", 1.0, 0.0)
    with Store(tmp_path / "without.db") as store:
        await take_groups(Into(store, "new"), [source])
        assert count_steps(store, "new", RULES) == 0
        assert "4 no_token_ids" in why_no_step(store, "new", RULES)
    async with serve(scoring_engine()) as url, aiohttp.ClientSession() as http:
        relabel = Relabeller(http, url, "base").tokens
        with Store(tmp_path / "with.db") as store:
            taken = await take_groups(Into(store, "new", relabel), [source])
            (group,) = [store.group(record.group_id) for record in store.unconsumed_groups("new")]
    assert taken.rescored_turns == 4
    for trajectory in group.trajectories:
        assert RESCORED in trajectory.evidence_gaps
        assert "no_token_ids" not in trajectory.evidence_gaps
        cut = cut_rows(trajectory)
        assert len(cut.rows) == 1
        first = trajectory.turns[0]
        assert first.prompt_ids_T.tolist() == render({"messages": first.input_messages, "tools": first.tools})
        np.testing.assert_allclose(first.logprobs_T, [-token / 1000 for token in first.completion_ids_T], rtol=1e-6)


def scoring_engine() -> Starlette:
    """Renders ChatML and gives each prompt token a log-probability that is a function of its id."""

    async def rendering(request: Request) -> Response:
        return JSONResponse({"token_ids": render(await request.json())})

    async def completions(request: Request) -> Response:
        ids = (await request.json())["prompt"]
        scored: list[Any] = [None, *({str(token): {"logprob": -token / 1000}} for token in ids[1:])]
        return JSONResponse({"choices": [{"text": "", "prompt_logprobs": scored}]})

    chat = "/v1/chat/completions/render"
    return Starlette(
        routes=[Route(chat, rendering, methods=["POST"]), Route("/v1/completions", completions, methods=["POST"])]
    )


async def test_an_engine_that_cannot_rescore_is_named(tmp_path: Path) -> None:
    source = imported(tmp_path / "plain", 1.0, 0.0)
    async with serve(Starlette()) as url, aiohttp.ClientSession() as http:
        with Store(tmp_path / "new.db") as store, pytest.raises(EngineError, match="status 404"):
            await take_groups(Into(store, "new", Relabeller(http, url, "base").tokens), [source])


def test_a_policy_is_trained_on_another_runs_groups_alone(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from training.loop import command

    model = make_model(tmp_path / "model")
    old = recorded(tmp_path / "old", *[GroupPlan(version=5)] * 2)
    base = Config()
    config = base.model_copy(
        update={
            "run": RunSection(name="offline", folder=str(tmp_path)),
            "model": base.model.model_copy(update={"name": str(model)}),
            "offline": OfflineSection(runs=(str(old),), passes=2),
            "training": base.training.model_copy(
                update={"steps": 9, "batch_rows": 4, "group_size": 4, "lr": 1e-3, "lora_rank": 4}
            ),
            "evaluation": base.evaluation.model_copy(update={"before": False, "after": False}),
            "wandb": base.wandb.model_copy(update={"mode": "disabled"}),
        }
    )
    assert command(config) == 0
    run = tmp_path / "offline"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) == 4
    assert (run / "adapters" / "policy-v4" / "adapter_model.safetensors").exists()


def test_the_prompt_and_the_answer_are_cut_where_the_turn_ends() -> None:
    from training.relabel import _said  # pyright: ignore[reportPrivateUsage]

    prompt, end = encode("<|im_start|>q<|im_end|>\na:"), encode("<|im_end|>")[0]
    whole = prompt + encode("yes<|im_end|>\n")
    assert _said(prompt, whole, end) == encode("yes<|im_end|>")
    assert _said(prompt, encode("something else<|im_end|>"), end) == []
