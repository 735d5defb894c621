"""A scorer over stored groups with a real endpoint: spans, side file, cache, scoring again, calibration."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import pytest

from harness.config import Config, JudgeSection, RewardSection
from harness.engine import Engine, ServedBase
from harness.errors import JudgeError
from harness.gateway.client import GatewayClient
from harness.run_facts import read_judging
from harness.scoring.calibrate import calibrate_judge, write_calibration
from harness.scoring.judge import Judge
from harness.scoring.litellm_call import JudgeFailed
from harness.scoring.rescore import load_check, rescore_groups, stored_groups
from harness.scoring.rubric import load_rubric
from harness.scoring.scorer import Scorer, open_scorer
from harness.session import ToolServer
from harness.stack import Stack
from tests.scripted_judge import Call, ScriptedJudge, answer, failure, honest, scripted_judge
from traces import semconv
from traces.build import ModelCall, Outcome, Place, agent_span, chat_span
from traces.span import new_span_id, new_trace_id
from traces.store import GroupRecord, RolloutRecord, Store
from traces.trajectory import Ending, Score, Trajectory


def store_group(store: Store, number: int, worths: Sequence[float | None], *, close: bool = True) -> None:
    """One group; a worth of None is an infrastructure failure. Checks pass from a worth of .5 on."""
    group_id = f"g{number}"
    store.open_group(GroupRecord(group_id=group_id, run_id="run", task_id="t", split="train", rollout_ids=()))
    ids: list[str] = []
    for index, worth in enumerate(worths):
        rollout_id = f"{group_id}-r{index}"
        ids.append(rollout_id)
        trace_id, root = new_trace_id(), new_span_id()
        place = Place(trace_id=trace_id, parent_id=root, rollout_id=rollout_id, group_id=group_id, run_id="run")
        call = ModelCall(
            model="base",
            messages=[{"role": "user", "content": "Please."}],
            output={"role": "assistant", "content": f"done, worth {worth}"},
            finish_reason="stop",
        )
        times = Outcome(start_ns=1, end_ns=2)
        root_place = Place(trace_id=trace_id, rollout_id=rollout_id, group_id=group_id, run_id="run")
        store.append_spans([chat_span(place, times, call), agent_span(root_place, times, "plain", {}, root)])
        if worth is not None:
            passed = float(worth >= 0.5)
            store.append_scores(rollout_id, [Score(value=passed, name="checks", components={"passed": passed})])
        store.append_rollout(
            RolloutRecord(
                rollout_id=rollout_id,
                group_id=group_id,
                run_id="run",
                task_id="t",
                split="train",
                trace_id=trace_id,
                task={"id": "t", "limit": 0.8},
                ending=Ending.ANSWERED if worth is not None else Ending.TOOL_ERROR,
                answer=f"done, worth {worth}",
            )
        )
    if close:
        store.append_group(
            GroupRecord(group_id=group_id, run_id="run", task_id="t", split="train", rollout_ids=tuple(ids))
        )


def judge_of(endpoint: ScriptedJudge, **changes: Any) -> JudgeSection:
    return JudgeSection(model="openai/scripted", api_base=endpoint.url, timeout_s=60.0, **changes)


@asynccontextmanager
async def ruler_of(endpoint: ScriptedJudge, store: Store, **changes: Any) -> AsyncIterator[Scorer]:
    async with open_scorer(RewardSection(kind="ruler"), judge_of(endpoint, **changes), store) as scorer:
        assert scorer is not None
        yield scorer


def counted(store: Store, group_id: str) -> list[Trajectory]:
    return [one for one in store.group(group_id).trajectories if not one.ending.is_infrastructure]


async def test_scores_leave_a_result_on_the_rollouts_trace_and_their_cost_in_a_side_file(tmp_path: Path) -> None:
    with Store(tmp_path / "traces.db") as store:
        store_group(store, 0, [0.2, 0.9, None])
        async with scripted_judge(honest) as endpoint, ruler_of(endpoint, store) as scorer:
            scores = await scorer(None, counted(store, "g0"))
        assert {one: added[-1].value for one, added in scores.items()} == {"g0-r0": 0.2, "g0-r1": 0.9}
        spans = store.spans("g0-r1")
        record = store.rollout("g0-r1")
    (span,) = [span for span in spans if span.name == "evaluate ruler"]
    (root,) = [span for span in spans if span.name == "invoke_agent plain"]
    assert (span.trace_id, span.parent_id) == (record.trace_id, root.span_id)
    (event,) = span.events
    assert event.name == "gen_ai.evaluation.result"
    assert event.attributes[semconv.EVALUATION_SCORE] == 0.9
    assert event.attributes[semconv.EVALUATION_EXPLANATION] == "seen"
    (row,) = [json.loads(line) for line in (tmp_path / "judge.jsonl").read_text().splitlines()]
    assert (row["group_id"], row["trajectories"], row["ruler/calls"]) == ("g0", 2, 1.0)
    assert read_judging(tmp_path)["ruler/prompt_tokens"] == 100.0


async def test_a_judge_that_fails_costs_its_group_and_is_told_in_the_side_file_only(tmp_path: Path) -> None:
    with Store(tmp_path / "traces.db") as store:
        store_group(store, 0, [0.2, 0.9], close=False)
        trajectories = [store.trajectory("g0-r0"), store.trajectory("g0-r1")]
        async with scripted_judge(lambda _: "no") as endpoint, ruler_of(endpoint, store) as scorer:
            with pytest.raises(JudgeFailed, match="no JSON object"):
                await scorer(None, trajectories)
        assert [score.name for score in store.scores("g0-r0")] == ["checks"], "nothing lost, nothing invented"
    (row,) = [json.loads(line) for line in (tmp_path / "judge.jsonl").read_text().splitlines()]
    assert row["ruler/unscored"] == 1.0
    assert "no JSON object" in row["error"]


async def test_independent_reward_asks_about_each_trajectory_alone(tmp_path: Path) -> None:
    with Store(tmp_path / "traces.db") as store:
        store_group(store, 0, [0.2, 0.9, 0.9])
        async with scripted_judge(honest) as endpoint:
            async with open_scorer(RewardSection(kind="independent"), judge_of(endpoint), store) as scorer:
                assert scorer is not None
                scores = await scorer(None, counted(store, "g0"))
            assert [len(call.worths) for call in endpoint.calls] == [1, 1], "what is the same is asked once"
    assert [added[-1].value for added in scores.values()] == [0.2, 0.9, 0.9]
    assert {added[-1].name for added in scores.values()} == {"independent"}


async def test_checks_need_no_judge_and_the_others_say_that_they_do(tmp_path: Path) -> None:
    with Store(tmp_path / "traces.db") as store:
        async with open_scorer(RewardSection(kind="checks"), JudgeSection(), store) as scorer:
            assert scorer is None
        with pytest.raises(JudgeError, match="no judge is configured"):
            async with open_scorer(RewardSection(kind="gate"), JudgeSection(), store):
                pass
        section = JudgeSection(model="openai/x", rubric="absent.md")
        with pytest.raises(JudgeError, match="no such file"):
            async with open_scorer(RewardSection(kind="ruler"), section, store):
                pass


async def test_scoring_again_adds_versions_and_overwrites_nothing(tmp_path: Path) -> None:
    with Store(tmp_path / "traces.db") as store:
        store_group(store, 0, [0.2, 0.9, None])
        store_group(store, 1, [0.4, 0.6])
        store_group(store, 2, [0.1, 0.3], close=False)
        async with scripted_judge(honest) as endpoint:
            for rubric in ("default", "retail"):
                async with ruler_of(endpoint, store, rubric=rubric) as scorer:
                    done = await rescore_groups(store, stored_groups(store, "run"), scorer)
                    assert (done.groups, done.rollouts, done.unscored) == (3, 6, {})
            before = len(endpoint.calls)
            async with ruler_of(endpoint, store, rubric="retail") as scorer:
                await rescore_groups(store, stored_groups(store, "run", limit=2), scorer)
            assert len(endpoint.calls) == before, "a third pass comes from the cache"
        every = store.scores("g0-r1", every=True)
        assert [score.name for score in every] == ["checks", "ruler", "ruler", "ruler"]
        assert len({score.scorer_version for score in every if score.name == "ruler"}) == 2
        assert store.scores("g2-r0")[-1].name == "ruler", "a group that was left open is scored too"
        assert len(store.open_groups("run")) == 1, "and stays open"


async def test_groups_that_get_no_answer_are_named_and_keep_their_scores(tmp_path: Path) -> None:
    def script(call: Any) -> Any:
        return honest(call) if 0.9 in call.worths.values() else failure(400, "not this one")

    with Store(tmp_path / "traces.db") as store:
        store_group(store, 0, [0.2, 0.9])
        store_group(store, 1, [0.4, 0.6])
        told: list[tuple[str, bool]] = []
        async with scripted_judge(script) as endpoint, ruler_of(endpoint, store) as scorer:
            groups = stored_groups(store, "run")
            done = await rescore_groups(store, groups, scorer, lambda group, ok: told.append((group.group_id, ok)))
        assert list(done.unscored) == ["g1"]
        assert sorted(told) == [("g0", True), ("g1", False)]
        assert [score.name for score in store.scores("g1-r0")] == ["checks"]


async def test_a_check_of_ones_own_scores_stored_rollouts_under_its_own_name(tmp_path: Path) -> None:
    check = tmp_path / "strict.py"
    check.write_text(
        "def check(task, trajectory):\n"
        "    passed = float(trajectory.answer.split()[-1]) >= task['limit']\n"
        "    return {'passed': passed, 'value': float(passed), 'reason': 'by the limit'}\n",
        encoding="utf-8",
    )
    with Store(tmp_path / "traces.db") as store:
        store_group(store, 0, [0.6, 0.9])
        await rescore_groups(store, stored_groups(store, "run"), load_check(check, store))
        assert [(score.name, score.value) for score in store.scores("g0-r0")] == [("checks", 1.0), ("strict", 0.0)]
        assert store.scores("g0-r1")[-1].scorer_version.startswith("strict@")
        (tmp_path / "empty.py").write_text("x = 1", encoding="utf-8")
        for name, found in [("absent.py", "no such file"), ("empty.py", "no function `check`")]:
            with pytest.raises(JudgeError, match=found):
                load_check(tmp_path / name, store)


async def test_calibration_tells_a_good_judge_from_a_coin_and_writes_no_score(tmp_path: Path) -> None:
    def coin(call: Any) -> str:
        return answer({label: crc32(f"{label} {call.worths}".encode()) % 100 / 100 for label in call.worths})

    with Store(tmp_path / "traces.db") as store:
        for number in range(12):
            store_group(store, number, [0.1 + number / 100, 0.9 - number / 100, 0.6, 0.3])
        groups = list(stored_groups(store, "run"))
        async with scripted_judge(honest) as endpoint:
            good = await calibrate_judge(groups, Judge(endpoint.spec()), load_rubric(None))
        async with scripted_judge(coin) as endpoint:
            bad = await calibrate_judge(groups, Judge(endpoint.spec()), load_rubric(None))
        assert [score.name for score in store.scores("g0-r0")] == ["checks"]
    assert good.table["pairwise accuracy"].mean == good.table["AUC, all groups pooled"].mean == 1.0
    assert good.table["self-consistency of pairs"].mean == 1.0
    assert bad.table["pairwise accuracy"].low < 0.6
    assert bad.table["self-consistency of pairs"].mean < 0.8
    table = write_calibration(tmp_path / "calibration", good).read_text(encoding="utf-8")
    assert "| pairwise accuracy | 1.000 | [1.000, 1.000] |" in table
    assert (tmp_path / "calibration" / "calibration.png").stat().st_size > 1000


async def test_calibration_without_checks_to_compare_with_says_so(tmp_path: Path) -> None:
    with Store(tmp_path / "traces.db") as store:
        store_group(store, 0, [None, None])
        async with scripted_judge(honest) as endpoint:
            with pytest.raises(JudgeError, match="no stored group"):
                await calibrate_judge(stored_groups(store, "run"), Judge(endpoint.spec()), load_rubric(None))


async def test_the_model_that_the_engine_serves_can_be_the_judge_where_there_is_an_engine(tmp_path: Path) -> None:
    engine = Engine("http://127.0.0.1:8000", ServedBase("base", "some/model"))
    config = Config(reward=RewardSection(kind="ruler"), judge=JudgeSection(model="served", temperature=0.5))
    found = Stack(engine, cast("ToolServer", None), cast("GatewayClient", None), ()).judge(config)
    assert (found.model, found.api_base, found.temperature) == ("hosted_vllm/base", "http://127.0.0.1:8000/v1", 0.5)
    with Store(tmp_path / "traces.db") as store, pytest.raises(JudgeError, match="no engine of the run's own"):
        async with open_scorer(config.reward, config.judge, store):
            pass


async def test_a_dead_judge_ends_the_run_after_a_few_groups_which_are_judged_when_it_is_back(tmp_path: Path) -> None:
    with Store(tmp_path / "traces.db") as store:
        for number in range(9):
            store_group(store, number, [0.2, 0.9 - number / 100], close=number == 0)
        async with (
            scripted_judge(lambda _: "no idea") as endpoint,
            ruler_of(endpoint, store, give_up_after=3) as scorer,
        ):
            with pytest.raises(JudgeError, match=r"\d groups in a row without a usable verdict") as told:
                await rescore_groups(store, stored_groups(store, "run"), scorer)
            assert not isinstance(told.value, JudgeFailed)
        async with scripted_judge(honest) as endpoint, ruler_of(endpoint, store, give_up_after=3) as scorer:
            done = await rescore_groups(store, stored_groups(store, "run"), scorer)
    assert (done.groups, done.rollouts, done.unscored) == (9, 18, {})


async def test_an_answer_between_failures_starts_the_count_anew(tmp_path: Path) -> None:
    def some_fail(call: Call) -> str:
        # A failing group takes two calls: its answer and the repair.
        return honest(call) if call.number in (4, 9) else "no idea"

    with Store(tmp_path / "traces.db") as store:
        for number in range(6):
            store_group(store, number, [0.2, 0.9 - number / 100], close=False)
        async with scripted_judge(some_fail) as endpoint, ruler_of(endpoint, store, give_up_after=3) as scorer:
            failed = 0
            for number in range(6):
                try:
                    await scorer(None, trajectories_of(store, number))
                except JudgeFailed:
                    failed += 1
    assert failed == 4
    assert len(endpoint.calls) == 10


def trajectories_of(store: Store, number: int) -> list[Trajectory]:
    return [store.trajectory(f"g{number}-r{index}") for index in range(2)]
