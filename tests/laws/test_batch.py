"""Law 4 and what a step is made of: advantages before drops, one a trajectory, nothing stale, nothing silent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.trajectory import Ending, Group, Score, Trajectory, Turn
from training.batch import BatchRules, GroupRows, advantages, group_rows, has_spread, plan_batch, weighted_advantages

RULES = BatchRules(rows=4)


def turn(index: int, prompt: Sequence[int], completion: Sequence[int], version: int = 0, logprobs: bool = True) -> Turn:
    return Turn(
        index=index, prompt_ids_T=np.array(prompt, np.int32), completion_ids_T=np.array(completion, np.int32),
        logprobs_T=np.full(len(completion) if logprobs else 0, -0.5, np.float32), policy_version=version, model="m",
        finish_reason="stop", input_messages=[], tools=[], output_message={}, span_id=f"s{index}", start_ns=index,
        end_ns=index + 1,
    )  # fmt: skip


def trajectory(name: str, reward: float | None, turns: list[Turn] | None = None, ending: Ending = Ending.ANSWERED):
    return Trajectory(
        rollout_id=name, group_id="g", run_id="r", task_id="t", kind="k", split="train", policy_version=0,
        turns=turns if turns is not None else [turn(0, [1, 2], [3, 4, 5])], tool_calls=[], ending=ending,
        scores=[Score(value=reward, name="checks")] if reward is not None else [],
    )  # fmt: skip


def group(*trajectories: Trajectory, seq: int = 1) -> Group:
    return Group(
        group_id=f"g{seq}", run_id="r", task_id="t", kind="k", split="train", trajectories=list(trajectories), seq=seq
    )


def two_rows(version: int = 0, seq: int = 1) -> GroupRows:
    turns = [turn(0, [1, 2], [3, 4], version)]
    return group_rows(group(trajectory(f"a{seq}", 1.0, turns), trajectory(f"b{seq}", 0.0, turns), seq=seq), RULES)


@given(st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=2, max_size=16))
def test_advantages_have_mean_zero_and_unit_spread_or_are_zero(rewards: list[float]) -> None:
    values = advantages(rewards)
    assert values.mean() == pytest.approx(0.0, abs=1e-9)
    assert values.std() == pytest.approx(1.0 if has_spread(rewards) else 0.0, abs=1e-9)


def test_infrastructure_failures_change_no_advantage_and_are_counted() -> None:
    counted = [trajectory("a", 1.0), trajectory("b", 0.0), trajectory("c", 0.0)]
    broken = trajectory("d", None, ending=Ending.ENGINE_ERROR)
    scored_and_broken = trajectory("e", 0.0, ending=Ending.TOOL_ERROR)
    alone = group_rows(group(*counted), RULES)
    among = group_rows(group(*counted, broken, scored_and_broken), RULES)
    assert [row.advantage for row in among.rows] == [row.advantage for row in alone.rows]
    assert (among.infrastructure, among.rewards_G) == (2, (1.0, 0.0, 0.0))


def test_advantages_rest_on_rollouts_whose_rows_are_left_out() -> None:
    untrainable = trajectory("c", 0.0, [turn(0, [1], [2], logprobs=False)])
    rows = group_rows(group(trajectory("a", 1.0), trajectory("b", 1.0), untrainable), RULES)
    expected = advantages([1.0, 1.0, 0.0])
    assert [row.advantage for row in rows.rows] == pytest.approx(list(expected[:2]))
    assert rows.dropped == {"no_logprobs": 1}


def test_a_forked_trajectory_has_one_advantage_and_trains_each_sampled_token_once() -> None:
    forked = trajectory("a", 1.0, [turn(0, [1, 2], [3, 4]), turn(1, [1, 2, 9, 9], [5, 6, 7])])
    rows = group_rows(group(forked, trajectory("b", 0.0)), RULES).rows
    assert [row.rollout_id for row in rows] == ["a", "a", "b"]
    assert rows[0].advantage == rows[1].advantage
    assert sum(row.trained_tokens for row in rows[:2]) == 5


def test_by_trajectory_a_forked_and_long_one_weighs_as_one() -> None:
    forked = trajectory("a", 1.0, [turn(0, [1, 2], [3, 4]), turn(1, [1, 2, 9, 9], [5, 6, 7, 8, 5, 6])])
    rows = group_rows(group(forked, trajectory("b", 0.0)), RULES).rows
    weighted = weighted_advantages(rows, "trajectory")
    influence: dict[str, float] = {}
    for row, advantage in zip(rows, weighted, strict=True):
        influence[row.rollout_id] = influence.get(row.rollout_id, 0.0) + abs(advantage) * row.trained_tokens
    assert influence["a"] == pytest.approx(influence["b"])
    assert sum(influence.values()) == pytest.approx(sum(row.trained_tokens for row in rows))


def test_groups_without_spread_give_no_rows_and_are_counted() -> None:
    same = group_rows(group(trajectory("a", 1.0), trajectory("b", 1.0), seq=1), RULES)
    single = group_rows(group(trajectory("c", 1.0), trajectory("d", None, ending=Ending.ENGINE_ERROR), seq=2), RULES)
    assert same.rows == single.rows == ()
    batch = plan_batch([same, single, two_rows(seq=3), two_rows(seq=4)], 0, RULES)
    assert batch is not None
    assert batch.group_ids == ("g1", "g2", "g3", "g4")
    assert (batch.metrics["batch/groups_without_spread"], batch.metrics["batch/groups"]) == (2, 4)
    assert batch.metrics["reward"] == pytest.approx(5 / 7)
    assert batch.metrics["batch/infrastructure_failures"] == 1


def test_too_few_rows_are_no_batch_and_whole_groups_are_taken() -> None:
    assert plan_batch([two_rows()], 0, RULES) is None
    three = BatchRules(rows=3)
    batch = plan_batch([two_rows(seq=1), two_rows(seq=2), two_rows(seq=3)], 0, three)
    assert batch is not None
    assert (batch.group_ids, len(batch.rows)) == (("g1", "g2"), 4)


def test_rows_of_too_old_a_policy_are_used_up_but_not_trained() -> None:
    pending = [two_rows(version=0, seq=1), two_rows(version=1, seq=2), two_rows(version=2, seq=3)]
    batch = plan_batch(pending, 2, RULES)
    assert batch is not None
    assert batch.group_ids == ("g1", "g2", "g3")
    assert [row.version for row in batch.rows] == [1, 1, 2, 2]
    assert (batch.metrics["batch/dropped_rows_stale"], batch.metrics["batch/staleness"]) == (2, 0.5)


def test_a_row_is_as_old_as_its_oldest_trained_token() -> None:
    turns = [turn(0, [1, 2], [3, 4], version=1), turn(1, [1, 2, 3, 4, 9], [5], version=2)]
    rows = group_rows(group(trajectory("a", 1.0, turns), trajectory("b", 0.0, turns)), RULES).rows
    assert [row.version for row in rows] == [1, 1]


def test_rows_too_long_to_train_are_dropped_and_counted() -> None:
    rules = BatchRules(rows=1, max_row_tokens=4)
    rows = group_rows(group(trajectory("a", 1.0), trajectory("b", 0.0, [turn(0, [1], [2])])), rules)
    assert [row.rollout_id for row in rows.rows] == ["b"]
    assert rows.dropped == {"too_long": 1}
    batch = plan_batch([rows], 0, rules)
    assert batch is not None
    assert batch.metrics["batch/dropped_rows_too_long"] == 1


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 3))
def test_later_groups_never_change_a_batch_that_is_complete(versions: list[int], version: int) -> None:
    pending = [two_rows(version=sampled, seq=place + 1) for place, sampled in enumerate(versions)]
    batches = [plan_batch(pending[:count], version, RULES) for count in range(len(pending) + 1)]
    complete = [batch.group_ids for batch in batches if batch is not None]
    assert len(set(complete)) <= 1
