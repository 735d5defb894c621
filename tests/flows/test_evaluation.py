"""An evaluation from a callable that makes trajectories to its file, its numbers and its comparison."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.evaluate import do_nothing, evaluate, load_evaluations, save_evaluation
from harness.outcomes import Evaluation, EvaluationSpec, Outcome, compare_evaluations, summarise
from harness.task import Task
from traces.trajectory import Ending, Score, ToolCall, Trajectory

KINDS = ("cancel", "return")


def a_task(number: int) -> Task:
    return Task(
        id=f"t{number}",
        server="retail",
        split="held_out",
        kind=KINDS[number % 2],
        user_message="please",
        difficulty=number % 3,
        is_refusal=number % 4 == 0,
    )


def a_trajectory(task: Task, *, passed: bool | None, ending: Ending = Ending.ANSWERED, number: int = 0) -> Trajectory:
    call = ToolCall(
        call_id="c",
        name="get_order",
        arguments="{}",
        result="Error",
        is_error=True,
        span_id="s",
        turn_index=None,
        start_ns=0,
        end_ns=1,
    )
    scores = [] if passed is None else [Score(value=float(passed), name="checks", components={"passed": float(passed)})]
    return Trajectory(
        rollout_id=f"{task.id}-{number}",
        group_id=task.id,
        run_id="run",
        task_id=task.id,
        kind=task.kind,
        split=task.split,
        policy_version=0,
        turns=[],
        tool_calls=[call],
        ending=ending,
        scores=scores,
        start_ns=0,
        end_ns=2_000_000_000,
    )


def a_spec(label: str = "before", repeats: int = 1, temperature: float = 0.0) -> EvaluationSpec:
    return EvaluationSpec(
        label=label, model="base", policy_version=0, split="held_out", temperature=temperature, repeats=repeats
    )


async def test_evaluation_counts_infrastructure_failures_apart_from_failures() -> None:
    endings = {0: Ending.ANSWERED, 1: Ending.ENGINE_ERROR, 2: Ending.TURN_LIMIT, 3: Ending.SIMULATOR_ERROR}

    async def run_group(task: Task, size: int) -> Sequence[Trajectory]:
        number = int(task.id[1:])
        ending = endings[number % 4]
        # A score on an infrastructure failure must not count either: the ending decides.
        return [a_trajectory(task, passed=ending is Ending.ANSWERED, ending=ending) for _ in range(size)]

    evaluation = await evaluate(a_spec(), [a_task(number) for number in range(8)], run_group)
    summary = summarise(evaluation)
    assert (summary.rollouts, summary.infrastructure, summary.unscored) == (8, 4, 0)
    assert summary.success.mean == 0.5
    assert summary.success.count == 4
    assert summary.endings == {"answered": 2, "engine_error": 2, "turn_limit": 2, "simulator_error": 2}
    assert summary.means["tool_errors"] == 1.0
    assert summary.means["latency_s"] == 2.0


async def test_unscored_rollouts_are_reported_and_never_counted_as_failures() -> None:
    async def run_group(task: Task, size: int) -> Sequence[Trajectory]:
        return [a_trajectory(task, passed=True), a_trajectory(task, passed=None)][:size]

    summary = summarise(await evaluate(a_spec(repeats=2), [a_task(1), a_task(2)], run_group))
    assert (summary.success.mean, summary.unscored, summary.rollouts) == (1.0, 2, 4)
    assert list(summary.pass_hat) == [1], "no task has two scored rollouts, so pass^2 can't be said"


async def test_groups_run_side_by_side_but_no_more_than_asked() -> None:
    running, most = 0, 0
    proceed = asyncio.Event()

    async def run_group(task: Task, size: int) -> Sequence[Trajectory]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            proceed.set()
        await asyncio.wait_for(proceed.wait(), timeout=10)
        running -= 1
        return [a_trajectory(task, passed=True)] * size

    seen: list[Outcome] = []
    tasks = [a_task(number) for number in range(9)]
    await evaluate(a_spec(), tasks, run_group, groups_at_once=3, on_outcome=seen.append)
    assert most == 3
    assert len(seen) == 9


async def test_an_evaluation_without_tasks_says_what_to_do() -> None:
    async def run_group(task: Task, size: int) -> Sequence[Trajectory]:
        raise AssertionError("nothing to run")

    with pytest.raises(HarnessError, match=r"held_out.*\n.*no tasks"):
        await evaluate(a_spec(), [], run_group)


def outcomes_of(successes: dict[str, list[bool]]) -> tuple[Outcome, ...]:
    return tuple(
        Outcome(
            task_id=task_id,
            kind="cancel" if task_id < "c" else "refuse",
            difficulty="1",
            is_refusal=task_id >= "c",
            ending="answered",
            is_infrastructure=False,
            passed=passed,
            reward=float(passed),
            turns=3,
            tool_calls=2,
            tool_errors=0,
            completion_tokens=40,
            latency_s=1.0,
        )
        for task_id, trials in successes.items()
        for passed in trials
    )


def test_slices_and_pass_tables_come_from_the_same_outcomes() -> None:
    trials = {"a": [True] * 4, "b": [True, False, True, False], "c": [False] * 4, "d": [True, False, False, False]}
    summary = summarise(Evaluation(a_spec(repeats=4), outcomes_of(trials)))
    assert summary.success.mean == pytest.approx((1 + 0.5 + 0 + 0.25) / 4)
    assert summary.by_kind["cancel"].mean == pytest.approx(0.75)
    assert summary.by_kind["refuse"].mean == summary.refusal_tasks.mean == pytest.approx(0.125)
    assert summary.write_tasks.mean == pytest.approx(0.75)
    assert {k: interval.mean for k, interval in summary.pass_hat.items()} == pytest.approx(
        {1: 1.75 / 4, 2: (1 + 1 / 6) / 4, 3: 1 / 4, 4: 1 / 4}
    )
    assert {k: interval.mean for k, interval in summary.pass_at.items()} == pytest.approx(
        {1: 1.75 / 4, 2: (1 + 5 / 6 + 1 / 2) / 4, 3: (1 + 1 + 3 / 4) / 4, 4: 3 / 4}
    )


def test_rollouts_of_one_task_do_not_narrow_the_interval_as_if_independent() -> None:
    correlated = {f"t{number}": [number % 2 == 0] * 8 for number in range(20)}
    summary = summarise(Evaluation(a_spec(repeats=8), outcomes_of(correlated)))
    assert summary.success.count == 20
    assert summary.success.high - summary.success.low > 0.3, "160 independent rollouts would give a width of .15"


def test_comparison_is_paired_by_task_and_tested() -> None:
    before = Evaluation(a_spec(), outcomes_of({f"t{number}": [False] for number in range(12)}))
    after = Evaluation(a_spec("after"), outcomes_of({f"t{number}": [number < 8] for number in range(12)}))
    difference = compare_evaluations(before, after)
    assert difference.interval.mean == pytest.approx(8 / 12)
    assert (difference.better, difference.worse) == (8, 0)
    assert difference.p_value == pytest.approx(2 / 2**8)


def test_a_stored_evaluation_reads_back_equal(tmp_path: Path) -> None:
    evaluation = Evaluation(a_spec(), outcomes_of({"a": [True], "c": [False]}))
    save_evaluation(tmp_path, evaluation)
    other = Evaluation(a_spec(temperature=1.0), outcomes_of({"a": [False], "c": [False]}))
    save_evaluation(tmp_path, other)
    assert load_evaluations(tmp_path) == [evaluation, other]
    assert not list(tmp_path.rglob("*.tmp"))


async def test_the_do_nothing_agent_answers_nothing() -> None:
    assert await do_nothing(object(), object()) == ""
