"""How far a judge agrees with checks, with itself, and with whoever stands first: numbers with intervals over groups.

It knows nothing about judges, prompts or stores; pure. Groups are resampled, never trajectories: those of one group
were judged together. Called by calibrate.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.intervals import Interval, bootstrap_statistic

NAN = math.nan


@dataclass(frozen=True, slots=True)
class JudgedGroup:
    """One group as a judge saw it, several times."""

    group_id: str
    """The group."""
    checks_G: tuple[float, ...]
    """What the check says of each trajectory."""
    scores_VG: tuple[tuple[float, ...], ...]
    """What each vote says of each trajectory."""
    places_VG: tuple[tuple[float, ...], ...]
    """Where each stood in each vote's prompt: 0 first, 1 last."""

    @property
    def means_G(self) -> tuple[float, ...]:
        """Mean score of each trajectory over votes."""
        return tuple(statistics.fmean(column) for column in zip(*self.scores_VG, strict=True))


Statistic = Callable[[Sequence[JudgedGroup]], float]


def pairwise_accuracy(groups: Sequence[JudgedGroup]) -> float:
    """Share of pairs of one group, one better by the check, that the judge puts in that order; ties count half."""
    marks = [_mark(c_a - c_b, s_a - s_b) for group in groups for c_a, s_a, c_b, s_b in _pairs(group) if c_a != c_b]
    return statistics.fmean(marks) if marks else NAN


def pooled_auc(groups: Sequence[JudgedGroup]) -> float:
    """Chance that a passed trajectory of any group scores above a failed one of any group; ties count half.

    Lower than the pairwise accuracy where the judge's scale moves from task to task.
    """
    everything = [pair for group in groups for pair in zip(group.checks_G, group.means_G, strict=True)]
    passed = sorted(score for check, score in everything if check >= 1.0)
    failed = sorted(score for check, score in everything if check < 1.0)
    if not passed or not failed:
        return NAN
    below, upto, wins = 0, 0, 0.0
    for score in passed:
        while below < len(failed) and failed[below] < score:
            below += 1
        upto = max(upto, below)
        while upto < len(failed) and failed[upto] <= score:
            upto += 1
        wins += below + 0.5 * (upto - below)
    return wins / (len(passed) * len(failed))


def kendall_tau(groups: Sequence[JudgedGroup]) -> float:
    """Mean over groups of Kendall's tau-b between check and judge, where neither says all the same."""
    found = [tau for group in groups if not math.isnan(tau := tau_b(group.checks_G, group.means_G))]
    return statistics.fmean(found) if found else NAN


def position_bias(groups: Sequence[JudgedGroup]) -> float:
    """Points a trajectory gains by standing first and not last: minus the slope of its score over its place.

    0 for a judge that doesn't care; above 0 for one that likes what it reads first. NaN with one vote.
    """
    xs: list[float] = []
    ys: list[float] = []
    for group in groups:
        for scores_V, places_V in zip(
            zip(*group.scores_VG, strict=True), zip(*group.places_VG, strict=True), strict=True
        ):
            xs.extend(place - statistics.fmean(places_V) for place in places_V)
            ys.extend(score - statistics.fmean(scores_V) for score in scores_V)
    spread = sum(x * x for x in xs)
    return -sum(x * y for x, y in zip(xs, ys, strict=True)) / spread if spread > 0 else NAN


def self_disagreement(groups: Sequence[JudgedGroup]) -> float:
    """Mean standard deviation of a trajectory's score over votes; NaN with one vote."""
    spreads = [
        statistics.pstdev(scores_V)
        for group in groups
        if len(group.scores_VG) > 1
        for scores_V in zip(*group.scores_VG, strict=True)
    ]
    return statistics.fmean(spreads) if spreads else NAN


def self_consistency(groups: Sequence[JudgedGroup]) -> float:
    """Share of pairs of one group that two votes put in the same order, ties included; NaN with one vote."""
    marks: list[float] = []
    for group in groups:
        votes = group.scores_VG
        for first in range(len(votes)):
            for second in range(first + 1, len(votes)):
                marks.extend(_same_order(votes[first], votes[second]))
    return statistics.fmean(marks) if marks else NAN


STATISTICS: dict[str, Statistic] = {
    "pairwise accuracy": pairwise_accuracy,
    "AUC, all groups pooled": pooled_auc,
    "Kendall tau-b": kendall_tau,
    "self-consistency of pairs": self_consistency,
    "std over votes": self_disagreement,
    "position bias, first over last": position_bias,
}


def agreement_table(groups: Sequence[JudgedGroup], *, seed: int = 0, draws: int = 1000) -> dict[str, Interval]:
    """Each statistic with its 95 % interval, bootstrap over groups."""

    def interval(statistic: Statistic) -> Interval:
        return bootstrap_statistic(
            len(groups), lambda picks: statistic([groups[int(pick)] for pick in picks]), seed=seed, draws=draws
        )

    return {name: interval(statistic) for name, statistic in STATISTICS.items()}


def tau_b(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's tau-b (Kendall 1945), which corrects for ties; NaN where one side has nothing but ties."""
    agreeing, ties_first, ties_second, pairs = 0.0, 0, 0, 0
    for a in range(len(first)):
        for b in range(a):
            pairs += 1
            up, across = _sign(first[a] - first[b]), _sign(second[a] - second[b])
            ties_first += up == 0
            ties_second += across == 0
            agreeing += up * across
    scale = math.sqrt((pairs - ties_first) * (pairs - ties_second))
    return agreeing / scale if scale > 0 else NAN


def _pairs(group: JudgedGroup) -> list[tuple[float, float, float, float]]:
    rows = list(zip(group.checks_G, group.means_G, strict=True))
    return [(*rows[a], *rows[b]) for a in range(len(rows)) for b in range(a)]


def _mark(check_gap: float, score_gap: float) -> float:
    return 0.5 + 0.5 * _sign(check_gap) * _sign(score_gap)


def _same_order(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [
        float(_sign(first[a] - first[b]) == _sign(second[a] - second[b])) for a in range(len(first)) for b in range(a)
    ]


def _sign(value: float) -> int:
    return (value > 1e-9) - (value < -1e-9)
