"""Rates, intervals, pass^k and the paired test against tables worked out by hand."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.intervals import (
    bootstrap_interval,
    paired_difference,
    pass_at_k,
    pass_hat_k,
    sign_flip_p_value,
    wilson_interval,
)

# tau-bench (Yao et al. 2024): pass^k is the mean over tasks of C(c,k)/C(n,k). Four trials of five tasks, by hand.
FOUR_TRIALS = [4, 3, 2, 1, 0]
PASS_HAT_BY_HAND = {1: 10 / 20, 2: (1 + 3 / 6 + 1 / 6) / 5, 3: (1 + 1 / 4) / 5, 4: 1 / 5}
PASS_AT_BY_HAND = {1: 10 / 20, 2: (1 + 1 + 5 / 6 + 3 / 6) / 5, 3: (1 + 1 + 1 + 3 / 4) / 5, 4: 4 / 5}


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_pass_hat_and_pass_at_agree_with_the_table_by_hand(k: int) -> None:
    hat = sum(pass_hat_k(c, 4, k) for c in FOUR_TRIALS) / len(FOUR_TRIALS)
    at = sum(pass_at_k(c, 4, k) for c in FOUR_TRIALS) / len(FOUR_TRIALS)
    assert hat == pytest.approx(PASS_HAT_BY_HAND[k])
    assert at == pytest.approx(PASS_AT_BY_HAND[k])


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_pass_hat_is_the_share_of_all_subsets_that_only_succeed(trials: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(trials)))
    subsets = list(combinations(trials, k))
    successes = sum(trials)
    assert pass_hat_k(successes, len(trials), k) == pytest.approx(sum(map(all, subsets)) / len(subsets))
    assert pass_at_k(successes, len(trials), k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize(("c", "n", "k"), [(5, 4, 1), (-1, 4, 1), (2, 4, 5), (2, 4, 0)])
def test_impossible_trial_counts_are_refused_with_their_values(c: int, n: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"c={c}, n={n}, k={k}"):
        pass_hat_k(c, n, k)


def test_wilson_interval_matches_published_reference_values() -> None:
    # Newcombe 1998, table I: 81/263 gives [.2553, .3662]; 15/148 gives [.0624, .1605]; 0/20 gives [0, .1611].
    for successes, count, low, high in [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)]:
        interval = wilson_interval(successes, count)
        assert (interval.low, interval.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))
        assert interval.count == count


def test_wilson_interval_of_nothing_is_empty_and_of_nonsense_refused() -> None:
    assert wilson_interval(0, 0).percent() == "–"
    with pytest.raises(ValueError, match="3 of 2"):
        wilson_interval(3, 2)


def test_bootstrap_interval_covers_the_mean_and_shrinks_with_more_tasks() -> None:
    few = bootstrap_interval([0.0, 1.0] * 10)
    many = bootstrap_interval([0.0, 1.0] * 200)
    assert few.low < 0.5 < few.high
    assert many.high - many.low < (few.high - few.low) / 3
    # normal approximation: 1.96 * sqrt(.25 / 400) = .049 on each side
    assert many.high - many.low == pytest.approx(0.098, abs=0.01)


def test_bootstrap_is_the_same_twice_with_one_seed() -> None:
    assert bootstrap_interval([0.1, 0.9, 0.4], seed=3) == bootstrap_interval([0.1, 0.9, 0.4], seed=3)


def test_sign_flip_test_gives_the_exact_value_on_few_tasks() -> None:
    # Five tasks all better by one: only +++++ and ----- are as extreme, of 32 arrangements.
    assert sign_flip_p_value([1, 1, 1, 1, 1]) == pytest.approx(2 / 32)
    assert sign_flip_p_value([1, -1]) == 1.0
    assert sign_flip_p_value([0, 0, 0]) == 1.0
    assert math.isnan(sign_flip_p_value([]))


def test_sampled_sign_flip_test_is_close_to_the_exact_binomial() -> None:
    # 20 changed tasks, 15 better and 5 worse: two-sided sign test 2 * sum C(20, 0..5) / 2^20 = 0.0414.
    exact = 2 * sum(math.comb(20, i) for i in range(6)) / 2**20
    assert sign_flip_p_value([1.0] * 15 + [-1.0] * 5) == pytest.approx(exact, abs=0.006)


def test_paired_difference_uses_only_tasks_that_both_sides_have() -> None:
    before = {"a": 0.0, "b": 0.5, "c": 1.0, "only-before": 1.0}
    after = {"a": 1.0, "b": 0.5, "c": 0.5, "only-after": 0.0}
    difference = paired_difference(before, after)
    assert (difference.tasks, difference.better, difference.worse) == (3, 1, 1)
    assert difference.interval.mean == pytest.approx(0.5 / 3)
