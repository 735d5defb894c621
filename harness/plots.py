"""Pictures of a run: reward per training step with held-out success beside it.

It knows nothing about run folders, stores or tables; plain numbers in, one PNG out. The one file that imports
matplotlib (Agg: no display needed). Called by report.py and scoring/calibrate.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.intervals import Interval

SMOOTHING_WINDOW = 5
CALIBRATION_PLOT = "calibration.png"
Bar = tuple[str, Interval]


def smoothed(values: Sequence[float], window: int = SMOOTHING_WINDOW) -> list[float]:
    """Centred running mean; windows at both ends hold only what is there, so the length stays."""
    half = window // 2
    return [float(np.mean(values[max(0, index - half) : index + half + 1])) for index in range(len(values))]


def draw_rewards(path: Path, rewards: Sequence[tuple[int, float]], bars: Sequence[Bar]) -> None:
    """Write `path`: left the training reward per step, raw and smoothed; right held-out success with 95 % intervals."""
    figure, (left, right) = _figure(1, 2, (11.0, 4.2), [3, 2])
    steps = [step for step, _ in rewards]
    values = [value for _, value in rewards]
    left.plot(steps, values, color="tab:blue", alpha=0.3, linewidth=1, label="each step")
    left.plot(steps, smoothed(values), color="tab:blue", linewidth=2, label=f"mean of {SMOOTHING_WINDOW}")
    left.set(xlabel="training step", ylabel="mean reward", title="Training reward")
    if rewards:
        left.legend(loc="lower right")
    draw_bars(right, bars, "Held-out success, 95 % intervals")
    _save(figure, path)


def draw_bars(axes: Any, bars: Sequence[Bar], title: str) -> None:
    """One bar with its interval for each entry, from 0 to 1."""
    kept = [(name, interval) for name, interval in bars if interval.count > 0]
    places = range(len(kept))
    heights = [interval.mean for _, interval in kept]
    below = [max(0.0, interval.mean - interval.low) for _, interval in kept]
    above = [max(0.0, interval.high - interval.mean) for _, interval in kept]
    axes.bar(places, heights, yerr=[below, above], capsize=4, color="tab:green", alpha=0.7)
    axes.set_xticks(list(places), [name for name, _ in kept], rotation=20, ha="right")
    axes.set(ylim=(0, 1), title=title)


def draw_lines(path: Path, lines: Mapping[str, Sequence[tuple[float, Interval]]], labels: tuple[str, str, str]) -> None:
    """Write `path`: one line with a shaded interval for each name; `labels` are x, y and title."""
    figure, axes = _figure(1, 1, (6.4, 4.2), None)
    for name, points in lines.items():
        xs = [x for x, _ in points]
        axes.plot(xs, [interval.mean for _, interval in points], marker="o", label=name)
        axes.fill_between(xs, [i.low for _, i in points], [i.high for _, i in points], alpha=0.15)
    axes.set(xlabel=labels[0], ylabel=labels[1], title=labels[2], ylim=(0, 1))
    if lines:
        axes.legend()
    _save(figure, path)


def draw_shares(path: Path, counts: dict[str, dict[str, int]], title: str) -> None:
    """Write `path`: one stacked bar of shares for each name."""
    figure, axes = _figure(1, 1, (6.4, 4.2), None)
    parts = sorted({part for row in counts.values() for part in row})
    totals = [max(1, sum(row.values())) for row in counts.values()]
    floors = np.zeros(len(counts))
    for part in parts:
        shares = np.asarray([row.get(part, 0) for row in counts.values()]) / np.asarray(totals)
        axes.bar(range(len(counts)), shares, bottom=floors, label=part)
        floors = floors + shares
    axes.set_xticks(range(len(counts)), list(counts), rotation=20, ha="right")
    axes.set(ylim=(0, 1), title=title)
    axes.legend(loc="lower right")
    _save(figure, path)


def draw_calibration(path: Path, table: dict[str, Interval], scores: tuple[Sequence[float], Sequence[float]]) -> None:
    """Write `path`: left the judge's scores of what passed and failed its check, right each statistic's interval."""
    figure, (left, right) = _figure(1, 2, (11.0, 4.2), [2, 3])
    passed, failed = scores
    edges = np.linspace(0.0, 1.0, 11)
    left.hist([list(passed), list(failed)], bins=edges, label=["check passed", "check failed"], density=True)
    left.set(xlabel="judge's score", ylabel="density", title="Scores by check")
    left.legend()
    kept = [(name, interval) for name, interval in table.items() if not np.isnan(interval.low)]
    places = range(len(kept))
    means = [interval.mean for _, interval in kept]
    below = [interval.mean - interval.low for _, interval in kept]
    above = [interval.high - interval.mean for _, interval in kept]
    right.errorbar(means, list(places), xerr=[np.maximum(below, 0), np.maximum(above, 0)], fmt="o", capsize=4)
    right.set_yticks(list(places), [name for name, _ in kept])
    right.axvline(0.5, color="grey", linewidth=0.8, linestyle=":")
    right.set(xlim=(-0.5, 1.05), title="Agreement, 95 % intervals")
    _save(figure, path)


def _figure(rows: int, columns: int, size: tuple[float, float], widths: list[int] | None) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=size, gridspec_kw={"width_ratios": widths} if widths else None)


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
