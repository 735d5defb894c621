"""Rates and differences with 95 % intervals: Wilson, bootstrap over tasks, pass^k, pass@k, a paired test.

Pure arithmetic on plain numbers. It knows nothing about tasks, rollouts, endings or files; whoever calls it has already
left infrastructure failures out. Rollouts of one task are not independent, so everything that sees several of them
resamples tasks, never rollouts. Called by evaluate.py, report.py and scoring/calibrate.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Z_95 = 1.959963984540054
BOOTSTRAP_DRAWS = 4000
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % interval."""

    mean: float
    """The estimate itself; NaN when nothing was counted."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""
    count: int
    """How many observations it rests on (rollouts for `wilson`, tasks for `bootstrap`)."""
    method: str
    """How the ends were found: wilson, bootstrap or none."""

    def apart_from(self, other: Interval) -> bool:
        """True when the two intervals share no value."""
        return self.low > other.high or other.low > self.high

    def percent(self) -> str:
        """`54.7 % [46.1, 63.0]`, or `–` when nothing was counted."""
        if self.count == 0 or math.isnan(self.mean):
            return "–"
        return f"{100 * self.mean:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


EMPTY = Interval(math.nan, math.nan, math.nan, 0, "none")


@dataclass(frozen=True, slots=True)
class Difference:
    """A paired difference `after - before` over the same tasks."""

    interval: Interval
    """Mean difference of the per-task means, resampled over tasks."""
    p_value: float
    """Two-sided sign-flip permutation test of 'no difference' on the per-task differences."""
    tasks: int
    """Tasks present on both sides; the others are not used."""
    better: int
    """Tasks whose mean rose."""
    worse: int
    """Tasks whose mean fell."""


def wilson_interval(successes: int, count: int) -> Interval:
    """Wilson score interval of a proportion (Wilson 1927); EMPTY when `count` is 0."""
    if count == 0:
        return EMPTY
    if not 0 <= successes <= count:
        raise ValueError(f"a proportion needs 0 <= successes <= count, got {successes} of {count}")
    rate = successes / count
    spread = Z_95 * math.sqrt(rate * (1 - rate) / count + Z_95**2 / (4 * count**2))
    centre = rate + Z_95**2 / (2 * count)
    scale = 1 + Z_95**2 / count
    low = 0.0 if successes == 0 else (centre - spread) / scale
    high = 1.0 if successes == count else (centre + spread) / scale
    return Interval(rate, low, high, count, "wilson")


def bootstrap_interval(values: Sequence[float], *, seed: int = 0, draws: int = BOOTSTRAP_DRAWS) -> Interval:
    """Percentile bootstrap of the mean of per-task `values` (one number a task); EMPTY when there are none."""
    if not values:
        return EMPTY
    values_N: Floats = np.asarray(values, dtype=np.float64)
    means = resampled_means(values_N, seed=seed, draws=draws)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(values_N.mean()), float(low), float(high), len(values), "bootstrap")


def resampled_means(values_N: Floats, *, seed: int, draws: int) -> Floats:
    """Means of `draws` resamples with replacement; shape (draws,)."""
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(values_N), size=(draws, len(values_N)))
    return values_N[picks].mean(axis=1)


def bootstrap_statistic(
    units: int, statistic: Callable[[NDArray[np.int64]], float], *, seed: int = 0, draws: int = 1000
) -> Interval:
    """Percentile bootstrap of any statistic of a resampled list of unit indices (units are tasks or groups).

    Draws on which the statistic is NaN (a resample without a pair, say) are left out.
    """
    if units == 0:
        return EMPTY
    point = statistic(np.arange(units))
    rng = np.random.default_rng(seed)
    values = [statistic(rng.integers(0, units, size=units)) for _ in range(draws)]
    kept = [value for value in values if not math.isnan(value)]
    if not kept or math.isnan(point):
        return Interval(point, math.nan, math.nan, units, "none")
    low, high = np.quantile(np.asarray(kept), [0.025, 0.975])
    return Interval(point, float(low), float(high), units, "bootstrap")


def pass_hat_k(successes: int, trials: int, k: int) -> float:
    """Unbiased chance that k trials of one task all succeed: C(c,k)/C(n,k) (tau-bench, Yao et al. 2024)."""
    _check_trials(successes, trials, k)
    return math.comb(successes, k) / math.comb(trials, k)


def pass_at_k(successes: int, trials: int, k: int) -> float:
    """Unbiased chance that at least one of k trials succeeds: 1 - C(n-c,k)/C(n,k) (Chen et al. 2021)."""
    _check_trials(successes, trials, k)
    return 1.0 - math.comb(trials - successes, k) / math.comb(trials, k)


def _check_trials(successes: int, trials: int, k: int) -> None:
    if not 0 <= successes <= trials or not 1 <= k <= trials:
        raise ValueError(f"need 0 <= c <= n and 1 <= k <= n, got c={successes}, n={trials}, k={k}")


def paired_difference(before: Mapping[str, float], after: Mapping[str, float], *, seed: int = 0) -> Difference:
    """Compare two policies on the tasks both have: per-task means in, mean difference and its test out."""
    shared = sorted(before.keys() & after.keys())
    differences = [after[task] - before[task] for task in shared]
    return Difference(
        interval=bootstrap_interval(differences, seed=seed),
        p_value=sign_flip_p_value(differences, seed=seed),
        tasks=len(shared),
        better=sum(1 for difference in differences if difference > 0),
        worse=sum(1 for difference in differences if difference < 0),
    )


def sign_flip_p_value(differences: Sequence[float], *, seed: int = 0, draws: int = 20_000) -> float:
    """Two-sided permutation test that flips signs; exact up to 14 non-zero differences, sampled above. NaN if empty.

    A sampled value counts the observed arrangement itself, so it is never 0.
    """
    if not differences:
        return math.nan
    values_N: Floats = np.asarray([value for value in differences if value != 0.0], dtype=np.float64)
    if len(values_N) == 0:
        return 1.0
    observed = abs(float(values_N.sum())) - 1e-12
    if len(values_N) <= 14:
        numbers: NDArray[np.int64] = np.arange(2 ** len(values_N), dtype=np.int64)[:, None]
        bits: NDArray[np.int64] = (numbers >> np.arange(len(values_N), dtype=np.int64)) & 1
        totals: Floats = np.abs((1 - 2 * bits) @ values_N)
        return float((totals >= observed).mean())
    rng = np.random.default_rng(seed)
    signs = rng.integers(0, 2, size=(draws, len(values_N)), dtype=np.int8) * 2 - 1
    totals = np.abs(signs.astype(np.float64) @ values_N)
    return float((int((totals >= observed).sum()) + 1) / (draws + 1))
