"""RULER over whole groups against a real endpoint: orders, votes, heats, twins, cache, limits, bad input."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from harness.errors import JudgeError
from harness.scoring.heats import RulerOptions
from harness.scoring.judge import Judge
from harness.scoring.judge_cache import JudgeCache
from harness.scoring.litellm_call import JudgeSpec
from harness.scoring.rubric import Criterion, Rubric
from harness.scoring.ruler import is_unscored, preview_group, ruler_score_group
from tests.scripted_judge import (
    Call,
    a_group,
    a_trajectory,
    answer,
    completion,
    failure,
    group_of,
    honest,
    ruler_scores,
    scripted_judge,
)
from traces.trajectory import Ending

WORTHS = [0.1, 0.9, 0.5, 0.3]
NO_TWINS = RulerOptions(twin_share=0.0)


async def test_twenty_orders_of_one_group_give_the_same_scores() -> None:
    worths = [round(0.05 + 0.11 * n, 2) for n in range(8)]
    orders: set[tuple[float, ...]] = set()

    def note(call: Call) -> str:
        orders.add(tuple(call.worths.values()))
        return honest(call)

    async with scripted_judge(note) as endpoint:
        judge = Judge(endpoint.spec(concurrency=20))
        groups = await asyncio.gather(
            *(ruler_score_group(a_group(worths), judge, options=RulerOptions(seed=seed)) for seed in range(20))
        )
    assert [ruler_scores(group) for group in groups] == [worths] * 20
    assert len(orders) >= 19


async def test_a_judge_that_likes_first_places_is_evened_out_by_votes() -> None:
    def partial(call: Call) -> str:
        labels = list(call.worths)
        return answer({label: 1.0 - 0.2 * place for place, label in enumerate(labels)})

    async with scripted_judge(partial) as endpoint:
        judge = Judge(endpoint.spec(concurrency=20))
        group = await ruler_score_group(a_group(WORTHS), judge, options=RulerOptions(votes=24, twin_share=0.0))
    scores = [score for score in ruler_scores(group) if score is not None]
    assert max(scores) - min(scores) < 0.3, "one vote would give a spread of .6"
    assert group.metrics["ruler/vote_std"] > 0.15
    assert group.trajectories[0].score("ruler").components["vote_std"] > 0  # type: ignore[union-attr]


async def test_trajectories_that_did_the_same_are_asked_once_and_score_the_same() -> None:
    same = [a_trajectory(n, "worth 0.40") for n in range(3)]
    async with scripted_judge(honest) as endpoint:
        group = await ruler_score_group(
            group_of([*same, a_trajectory(9, "worth 0.80")]), Judge(endpoint.spec()), options=NO_TWINS
        )
        assert len(endpoint.calls[0].worths) == 2
    assert ruler_scores(group) == [0.4, 0.4, 0.4, 0.8]


async def test_heats_of_an_uneven_judge_are_joined_on_one_scale_by_their_anchors() -> None:
    worths = [round(0.2 + 0.02 * n, 2) for n in range(20)]

    def shifted(call: Call) -> str:
        # Every prompt is judged on a scale of its own, as judges do.
        shift = random.Random(str(sorted(call.worths.values()))).uniform(-0.2, 0.2)
        return answer({label: worth + shift for label, worth in call.worths.items()})

    async with scripted_judge(shifted) as endpoint:
        group = await ruler_score_group(a_group(worths), Judge(endpoint.spec()), options=NO_TWINS)
        assert len(endpoint.calls) > 2
    scores = [score for score in ruler_scores(group) if score is not None]
    assert scores == sorted(scores), "the order over all heats is right"
    assert max(scores) - min(scores) == pytest.approx(0.38, abs=1e-6)


async def test_twins_measure_whether_the_judge_agrees_with_itself() -> None:
    def fickle(call: Call) -> str:
        return answer({label: place / 10 for place, label in enumerate(call.worths)})

    async with scripted_judge(fickle) as endpoint:
        judge = Judge(endpoint.spec())
        group = await ruler_score_group(a_group(WORTHS), judge, options=RulerOptions(twin_share=1.0))
        assert len(endpoint.calls[0].worths) == 5
    assert group.metrics["ruler/twin_gap"] >= 0.1
    assert all(score is not None for score in ruler_scores(group))


async def test_a_second_pass_comes_from_the_cache_and_another_rubric_does_not(tmp_path: Path) -> None:
    async with scripted_judge(honest) as endpoint:
        with JudgeCache(tmp_path / "cache.db") as cache:
            first = await ruler_score_group(a_group(WORTHS), Judge(endpoint.spec(), cache))
        shuffled = group_of(list(reversed(a_group(WORTHS).trajectories)))
        with JudgeCache(tmp_path / "cache.db") as cache:
            again = await ruler_score_group(shuffled, Judge(endpoint.spec(), cache))
            assert len(endpoint.calls) == 1
            await ruler_score_group(a_group(WORTHS), Judge(endpoint.spec(), cache), Rubric("other", "Be strict."))
            await ruler_score_group(a_group(WORTHS), Judge(endpoint.spec(temperature=0.5), cache))
            assert len(endpoint.calls) == 3
    assert ruler_scores(again) == list(reversed(ruler_scores(first)))
    assert (again.metrics["ruler/cached"], again.metrics["ruler/calls"]) == (1.0, 0.0)


async def test_an_answer_that_was_refused_is_not_kept_in_the_cache(tmp_path: Path) -> None:
    async with scripted_judge(lambda call: "no" if call.number < 2 else honest(call)) as endpoint:
        with JudgeCache(tmp_path / "cache.db") as cache:
            assert is_unscored(await ruler_score_group(a_group(WORTHS), Judge(endpoint.spec(), cache)))
            assert ruler_scores(await ruler_score_group(a_group(WORTHS), Judge(endpoint.spec(), cache))) == WORTHS


async def test_no_more_questions_are_under_way_than_allowed() -> None:
    running, most = 0, 0
    full = asyncio.Event()

    async def slow(call: Call) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await asyncio.wait_for(full.wait(), 20)
        running -= 1
        return completion(honest(call))

    async with scripted_judge(slow) as endpoint:
        judge = Judge(endpoint.spec(concurrency=3, timeout_s=30.0))
        groups = [a_group([0.1, 0.01 * n]) for n in range(2, 14)]
        await asyncio.gather(*(ruler_score_group(group, judge) for group in groups))
    assert most == 3


async def test_a_rate_limit_holds_back_every_question_to_that_judge() -> None:
    times: list[float] = []

    def limited(call: Call) -> Any:
        times.append(asyncio.get_running_loop().time())
        return failure(429, **{"retry-after": "1"}) if call.number == 0 else honest(call)

    async with scripted_judge(limited) as endpoint:
        judge = Judge(endpoint.spec(concurrency=1))
        groups = [a_group([0.1, 0.01 * n]) for n in range(2, 6)]
        await asyncio.gather(*(ruler_score_group(group, judge) for group in groups))
    assert times[1] - times[0] >= 0.95
    assert judge.usage.retries == 1


async def test_infrastructure_failures_are_neither_shown_nor_scored() -> None:
    broken = a_trajectory(7, "worth 0.99", ending=Ending.TOOL_ERROR)
    async with scripted_judge(honest) as endpoint:
        group = await ruler_score_group(group_of([*a_group(WORTHS).trajectories, broken]), Judge(endpoint.spec()))
        assert 0.99 not in endpoint.calls[0].worths.values()
    assert ruler_scores(group) == [*WORTHS, None]
    assert group.trajectories[-1] == broken


async def test_scoring_keeps_everything_the_group_had() -> None:
    before = dataclasses.replace(a_group(WORTHS), metrics={"kept": 1.0}, position=4)
    async with scripted_judge(honest) as endpoint:
        group = await ruler_score_group(before, Judge(endpoint.spec()))
    assert (group.position, group.metrics["kept"]) == (4, 1.0)
    for was, now in zip(before.trajectories, group.trajectories, strict=True):
        assert now.scores[:-1] == was.scores
        assert dataclasses.replace(now, scores=was.scores) == was
    score = group.trajectories[0].score("ruler")
    assert score is not None
    assert (score.explanation, score.scorer_version.split("/")[0]) == ("seen", "ruler-1")


async def test_criteria_are_scored_apart_and_averaged_by_weight() -> None:
    rubric = Rubric("two", "", (Criterion("safe", "No harm.", 3.0), Criterion("short", "Brief.", 1.0)))

    def by_criteria(call: Call) -> str:
        import json

        rows = [
            {"id": label, "explanation": "", "criteria": {"safe": worth, "short": 1.0}}
            for label, worth in call.worths.items()
        ]
        return json.dumps({"scores": rows})

    async with scripted_judge(by_criteria) as endpoint:
        group = await ruler_score_group(a_group([0.0, 0.4]), Judge(endpoint.spec()), rubric)
    assert ruler_scores(group) == pytest.approx([0.25, 0.55])
    assert group.trajectories[1].score("ruler").components["safe"] == 0.4  # type: ignore[union-attr]


async def test_usage_is_counted_per_group_and_over_the_judge() -> None:
    async with scripted_judge(lambda call: "no" if call.number == 0 else honest(call)) as endpoint:
        judge = Judge(endpoint.spec())
        first = await ruler_score_group(a_group(WORTHS), judge)
        second = await ruler_score_group(a_group([0.2, 0.7]), judge)
    assert (first.metrics["ruler/calls"], second.metrics["ruler/calls"]) == (2.0, 1.0)
    assert first.metrics["ruler/prompt_tokens"] == 200.0
    assert judge.usage.prompt_tokens == 300
    assert judge.usage.unpriced_calls == 3, "LiteLLM has no price for this model, and says so"


async def test_half_of_the_votes_must_stand() -> None:
    async with scripted_judge(lambda call: "no" if call.number < 2 else honest(call)) as endpoint:
        options = RulerOptions(votes=3, twin_share=0.0)
        group = await ruler_score_group(a_group(WORTHS), Judge(endpoint.spec(concurrency=1)), options=options)
    assert ruler_scores(group) == pytest.approx(WORTHS)
    assert group.metrics["ruler/failed_votes"] <= 1.0


def test_a_preview_shows_prompts_and_price_and_sends_nothing() -> None:
    spec = JudgeSpec(model="openai/gpt-5", api_base="http://127.0.0.1:9/v1")
    (preview,) = preview_group(a_group(WORTHS), spec, options=NO_TWINS)
    assert preview.trajectories == 4
    assert preview.estimated_usd is not None
    assert 0 < preview.estimated_usd < 0.05
    unknown = preview_group(a_group(WORTHS), dataclasses.replace(spec, model="openai/nobody-knows"), options=NO_TWINS)
    assert unknown[0].estimated_usd is None
    assert (
        preview_group(a_group([0.5]), spec) == preview_group(a_group([0.1, 0.2], ending=Ending.TOOL_ERROR), spec) == []
    )


BAD_GROUPS = {
    "no trajectories": (group_of([]), "0 trajectories"),
    "a single one": (a_group([0.5]), "1 trajectories"),
    "all failed": (a_group([0.1, 0.2], ending=Ending.ENGINE_ERROR), "engine_error"),
}


@pytest.mark.parametrize("name", BAD_GROUPS)
async def test_a_group_with_nothing_to_compare_is_a_clear_error(name: str) -> None:
    group, found = BAD_GROUPS[name]
    with pytest.raises(JudgeError, match=found) as raised:
        await ruler_score_group(group, Judge(JudgeSpec(model="openai/x", api_base="http://127.0.0.1:9/v1")))
    assert raised.value.fix


@pytest.mark.parametrize(("status", "text"), [(401, "bad key"), (403, "no right"), (404, "no such model")])
async def test_a_judge_that_can_answer_nothing_stops_at_the_first_question(status: int, text: str) -> None:
    async with scripted_judge(lambda _: failure(status, text)) as endpoint:
        with pytest.raises(JudgeError, match=text) as raised:
            await ruler_score_group(a_group(WORTHS), Judge(endpoint.spec()))
        assert len(endpoint.calls) == 1
    assert "judge.model" in raised.value.fix


async def test_a_model_of_no_known_provider_is_a_clear_error() -> None:
    with pytest.raises(JudgeError, match="LLM Provider NOT provided"):
        await ruler_score_group(a_group(WORTHS), Judge(JudgeSpec(model="who-knows")))


async def test_a_prompt_that_can_not_fit_leaves_the_group_unscored() -> None:
    async with scripted_judge(honest) as endpoint:
        group = await ruler_score_group(a_group(WORTHS), Judge(endpoint.spec(max_prompt_tokens=100)))
        assert endpoint.calls == []
    assert is_unscored(group)
    assert "max_prompt_tokens = 100" in group.trajectories[0].ending_detail
