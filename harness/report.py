"""The report of a run: `report.md`, `report.html` and their pictures in its folder, and the table for the terminal.

It knows nothing about how a run is made or resumed; every number comes from run_facts.py, so that a report can be
written again at any time. Called at the end of `harness train`, by `harness eval` and by `harness report`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.table import Table

from harness.intervals import EMPTY, Interval
from harness.outcomes import Evaluation, Summary, compare_evaluations
from harness.plots import CALIBRATION_PLOT, draw_lines, draw_rewards, draw_shares
from harness.report_html import Table as HtmlTable
from harness.report_html import write_html
from harness.run_facts import AFTER, BEFORE, DO_NOTHING, RunFacts, read_run

REPORT_FILE = "report.md"
CURVE_FILE = "reward.png"
PASS_FILE = "pass_k.png"
ENDINGS_FILE = "endings.png"
PICTURES = (
    ("Training reward and held-out success", CURVE_FILE),
    ("pass^k", PASS_FILE),
    ("Endings", ENDINGS_FILE),
    ("Judge agreement", f"calibration/{CALIBRATION_PLOT}"),
)
BEFORE_GREEDY = "before, greedy"
AFTER_GREEDY = "after, greedy"
BEFORE_SAMPLED = "before, T=1"
AFTER_SAMPLED = "after, T=1"
COLUMNS = (BEFORE_GREEDY, AFTER_GREEDY, BEFORE_SAMPLED, AFTER_SAMPLED, "do nothing")

Row = list[str]


def write_report(run_dir: Path) -> Path:
    """Write `report.md`, `report.html` and pictures from what the run folder holds; returns the path of `report.md`.

    Parts that were not run show as `–`. Raises HarnessError when the folder is missing.
    """
    facts = read_run(run_dir)
    _draw(run_dir, facts)
    write_html(run_dir, f"Run {facts.name}", _tables(facts), PICTURES)
    path = run_dir / REPORT_FILE
    scratch = path.with_suffix(".tmp")
    scratch.write_text(report_text(facts), encoding="utf-8")
    os.replace(scratch, path)
    return path


def _draw(run_dir: Path, facts: RunFacts) -> None:
    sides = {name: summary for name, summary in columns(facts).items() if summary is not None}
    draw_rewards(run_dir / CURVE_FILE, facts.rewards, [(name, side.success) for name, side in sides.items()])
    repeated = {name: list(side.pass_hat.items()) for name, side in sides.items() if len(side.pass_hat) > 1}
    if repeated:
        draw_lines(run_dir / PASS_FILE, repeated, ("k", "pass^k", "All of k trials succeed"))
    if sides:
        draw_shares(run_dir / ENDINGS_FILE, {name: side.endings for name, side in sides.items()}, "Endings")


def _tables(facts: RunFacts) -> list[HtmlTable]:
    return [
        ("Held-out success, 95 % intervals", ["", *COLUMNS], success_rows(facts)),
        ("Evaluations", EVALUATION_HEADER, [_evaluation_row(summary) for summary in facts.summaries]),
        ("The run", ["what", "value"], [*run_rows(facts), *first_step_rows([facts])]),
    ]


def report_text(facts: RunFacts) -> str:
    """The whole report as markdown."""
    return "\n".join(
        [
            f"# Run {facts.name}",
            "",
            "## Held-out success, 95 % intervals",
            "",
            markdown_table(["", *COLUMNS], success_rows(facts)),
            "",
            *gain_lines(facts),
            "",
            "Rates are means over tasks of scored rollouts; infrastructure failures are in none of them, but counted.",
            "",
            f"![training reward and held-out success]({CURVE_FILE})",
            "",
            "## Evaluations",
            "",
            markdown_table(EVALUATION_HEADER, [_evaluation_row(summary) for summary in facts.summaries]),
            "",
            "## The run",
            "",
            markdown_table(["what", "value"], [*run_rows(facts), *first_step_rows([facts])]),
            "",
        ]
    )


def columns(facts: RunFacts) -> dict[str, Summary | None]:
    """The five evaluations a report sets side by side, by column title."""
    found = (
        facts.find(BEFORE, greedy=True),
        facts.find(AFTER, greedy=True),
        facts.find(BEFORE, greedy=False),
        facts.find(AFTER, greedy=False),
        facts.floor(),
    )
    return dict(zip(COLUMNS, found, strict=True))


def success_rows(facts: RunFacts) -> list[Row]:
    """One cell for each of COLUMNS: all tasks, each kind, each difficulty if there are several, writes, refusals."""
    sides = list(columns(facts).values())
    kinds = sorted({kind for side in sides if side is not None for kind in side.by_kind})
    levels = sorted({level for side in sides if side is not None for level in side.by_difficulty})

    def row(title: str, pick: Callable[[Summary], Interval]) -> Row:
        return [title, *("–" if side is None else pick(side).percent() for side in sides)]

    return [
        row("**all tasks**", lambda side: side.success),
        *(row(kind, lambda side, kind=kind: side.by_kind.get(kind, EMPTY)) for kind in kinds),
        *(
            row(f"difficulty {level}", lambda side, level=level: side.by_difficulty.get(level, EMPTY))
            for level in (levels if len(levels) > 1 else ())
        ),
        row("write tasks", lambda side: side.write_tasks),
        row("must-refuse tasks", lambda side: side.refusal_tasks),
        row("mean reward", lambda side: side.reward),
    ]


EVALUATION_HEADER = (
    "evaluation",
    "policy",
    "split",
    "T",
    "tasks",
    "rollouts",
    "infrastructure",
    "unscored",
    "pass^k",
    "pass@k",
    "turns",
    "tool errors",
    "tokens",
    "seconds",
    "USD",
    "endings",
)


def _evaluation_row(summary: Summary) -> Row:
    spec = summary.spec
    return [
        spec.label,
        f"{spec.model} (v{spec.policy_version})",
        spec.split,
        f"{spec.temperature:g}",
        str(summary.success.count),
        str(summary.rollouts),
        str(summary.infrastructure),
        str(summary.unscored),
        _by_k(summary.pass_hat),
        _by_k(summary.pass_at),
        _mean(summary, "turns"),
        _mean(summary, "tool_errors"),
        _mean(summary, "completion_tokens"),
        _mean(summary, "latency_s"),
        f"{summary.means['cost_usd']:.4f}" if "cost_usd" in summary.means else "–",
        _counted(summary.endings),
    ]


def run_rows(facts: RunFacts) -> list[Row]:
    """Rollouts, endings, minutes per phase, training steps, drift tokens and false forks."""
    counts = facts.counts
    judging = facts.judging
    return [
        ["rollouts ended", str(counts.rollouts)],
        ["endings", _counted(counts.endings)],
        ["minutes", ", ".join(f"{name} {minutes:.1f}" for name, minutes in facts.phase_minutes.items()) or "–"],
        ["training steps", str(len(facts.rewards))],
        ["drift tokens", str(counts.drift_tokens)],
        ["false forks", str(counts.false_forks)],
        *([["judging", _judging_text(judging)]] if judging else []),
        *([["hosted model", _spent_text(facts.hosted, "hosted/")]] if facts.hosted else []),
    ]


def first_step_rows(facts: Sequence[RunFacts]) -> list[Row]:
    """Mean ratio and KL of the first step of each run: 1 and 0 when engine and trainer agree."""
    ratios = ["–" if run.first_ratio is None else f"{run.first_ratio:.6f}" for run in facts]
    kls = ["–" if run.first_kl is None else f"{run.first_kl:.2e}" for run in facts]
    return [["first-step mean ratio", ", ".join(ratios)], ["first-step KL", ", ".join(kls)]]


def gain_lines(facts: RunFacts) -> list[str]:
    """What training gained, greedy and sampled: paired by task, with a permutation test."""
    sides = columns(facts)
    lines: list[str] = []
    for name, first, second in (("greedy", BEFORE_GREEDY, AFTER_GREEDY), ("T=1", BEFORE_SAMPLED, AFTER_SAMPLED)):
        before, after = facts.evaluation_of(sides[first]), facts.evaluation_of(sides[second])
        if before is not None and after is not None:
            gain = compare_evaluations(before, after)
            lines.append(
                f"- Gain, {name}: {_points(gain.interval)} points over {gain.tasks} tasks, "
                f"{gain.better} better, {gain.worse} worse, p = {gain.p_value:.2g} (sign-flip permutation over tasks)."
            )
    return [*lines, *_other_lines(facts)]


def _other_lines(facts: RunFacts) -> list[str]:
    """Every other evaluation beside the first one of its split and temperature: a hosted model, an older version."""
    first: dict[tuple[str, float], Evaluation] = {}
    lines: list[str] = []
    for evaluation in facts.evaluations:
        spec = evaluation.spec
        against = first.setdefault((spec.split, spec.temperature), evaluation)
        if against is evaluation or spec.label in (BEFORE, AFTER, DO_NOTHING):
            continue
        gain = compare_evaluations(against, evaluation)
        lines.append(
            f"- {spec.label} ({spec.model} v{spec.policy_version}) against {against.spec.label}, "
            f"T={spec.temperature:g}: {_points(gain.interval)} points over {gain.tasks} tasks of {spec.split}, "
            f"{gain.better} better, {gain.worse} worse, p = {gain.p_value:.2g}."
        )
    return lines


def summary_numbers(facts: RunFacts) -> dict[str, float]:
    """The report's numbers, flat, for W&B: `held_out/after/T0/success`, …`/low`, …`/high`, slices, counts, means."""
    numbers: dict[str, float] = {}
    for summary in facts.summaries:
        spec = summary.spec
        place = f"{spec.split}/{spec.label}/T{spec.temperature:g}"
        slices = {"success": summary.success, "reward": summary.reward}
        slices |= {f"pass^{k}": interval for k, interval in summary.pass_hat.items()}
        slices |= {f"pass@{k}": interval for k, interval in summary.pass_at.items()}
        slices |= {f"kind/{kind}": interval for kind, interval in summary.by_kind.items()}
        slices |= {f"difficulty/{level}": interval for level, interval in summary.by_difficulty.items()}
        slices |= {"write_tasks": summary.write_tasks, "refusal_tasks": summary.refusal_tasks}
        for name, interval in slices.items():
            if interval.count:
                numbers |= {f"{place}/{name}": interval.mean}
                numbers |= {f"{place}/{name}/low": interval.low, f"{place}/{name}/high": interval.high}
        counts = {"rollouts": summary.rollouts, "infrastructure": summary.infrastructure, "unscored": summary.unscored}
        counts |= {f"ending/{name}": count for name, count in summary.endings.items()}
        numbers |= {f"{place}/{name}": float(value) for name, value in (counts | summary.means).items()}
    return numbers


def terminal_tables(run_dir: Path) -> list[Table]:
    """The success table and the run's facts for the terminal."""
    facts = read_run(run_dir)
    success = Table(title=f"Run {facts.name}: held-out success, 95 % intervals", title_justify="left")
    for title in ("", *COLUMNS):
        success.add_column(title, justify="left" if not title else "right")
    for row in success_rows(facts):
        success.add_row(*(cell.replace("**", "") for cell in row))
    run = Table(show_header=False)
    for name, value in [*run_rows(facts), *first_step_rows([facts])]:
        run.add_row(name, value)
    return [success, run]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table; bars in cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _points(interval: Interval) -> str:
    return f"{100 * interval.mean:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"


def _judging_text(judging: Mapping[str, float]) -> str:
    return (
        f"{judging['groups']:.0f} groups, {judging.get('ruler/unscored', 0.0):.0f} unscored, "
        f"{_spent_text(judging, 'ruler/')}"
    )


def _spent_text(spent: Mapping[str, float], prefix: str) -> str:
    def of(name: str) -> float:
        return spent.get(prefix + name, 0.0)

    unpriced = " (of a model without a known price)" if of("unpriced_calls") else ""
    cached = f", {of('cached'):.0f} from the cache" if of("cached") or prefix == "ruler/" else ""
    tokens = f"{of('prompt_tokens'):.0f} + {of('completion_tokens'):.0f} tokens"
    return f"{of('calls'):.0f} calls{cached}, {tokens}, {of('cost_usd'):.4f} USD{unpriced}"


def _by_k(table: dict[int, Interval]) -> str:
    return ", ".join(f"{k}: {100 * interval.mean:.1f}" for k, interval in table.items()) or "–"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "–"


def _mean(summary: Summary, name: str) -> str:
    return f"{summary.means[name]:.1f}" if name in summary.means else "–"
