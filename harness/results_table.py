"""One table over several runs (seeds) of the same experiment, written between markers of a markdown file.

It knows nothing about how runs are made; it pools what their folders hold, so that no number in README is typed.
Called by `harness report runs/a runs/b runs/c --into README.md`.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.errors import HarnessError
from harness.outcomes import Evaluation, summarise
from harness.report import (
    COLUMNS,
    columns,
    first_step_rows,
    gain_lines,
    markdown_table,
    run_rows,
    success_rows,
)
from harness.run_facts import Counts, RunFacts, read_run

START_MARK = "<!-- results:start -->"
END_MARK = "<!-- results:end -->"


def write_results(markdown_file: Path, run_dirs: Sequence[Path]) -> str:
    """Replace what stands between the two markers of `markdown_file` by the table over `run_dirs`; returns the block.

    Raises HarnessError when the file or a marker is missing; the file is replaced in one rename.
    """
    asked = f"a results table in {markdown_file}"
    if not markdown_file.is_file():
        raise HarnessError(asked=asked, found="no such file", fix="name a markdown file")
    text = markdown_file.read_text(encoding="utf-8")
    head, start, rest = text.partition(START_MARK)
    _, end, tail = rest.partition(END_MARK)
    if not start or not end:
        raise HarnessError(
            asked=asked,
            found=f"no pair of lines {START_MARK} and {END_MARK}",
            fix="put both lines where the table shall stand",
        )
    block = results_block(run_dirs)
    scratch = markdown_file.with_name(markdown_file.name + ".tmp")
    scratch.write_text(f"{head}{START_MARK}\n{block}\n{END_MARK}{tail}", encoding="utf-8")
    os.replace(scratch, markdown_file)
    return block


def results_block(run_dirs: Sequence[Path]) -> str:
    """The table as markdown: pooled over runs, then each run, gains with their paired test, and the runs' facts."""
    if not run_dirs:
        raise HarnessError(asked="a table over runs", found="no run folders", fix="name at least one, as in runs/demo")
    runs = [read_run(run_dir) for run_dir in run_dirs]
    pooled = pool_runs(runs)
    rows = success_rows(pooled)
    return "\n".join(
        [
            "",
            markdown_table(["", *COLUMNS], [*rows, *(_run_row(run) for run in runs)]),
            "",
            *gain_lines(pooled),
            "",
            f"{len(runs)} run{'s' if len(runs) > 1 else ''}, {_task_count(pooled)} held-out tasks. "
            "Means over tasks and runs, 95 % intervals (bootstrap over tasks, all rollouts of a task kept together; "
            "Wilson where a task has one). Infrastructure failures are in no rate.",
            "",
            markdown_table(["over all runs", ""], [*run_rows(pooled), *first_step_rows(runs)]),
            "",
        ]
    )


def pool_runs(runs: Sequence[RunFacts]) -> RunFacts:
    """One RunFacts over several: outcomes of evaluations with the same label, split and temperature side by side."""
    alike: dict[tuple[str, str, float], list[Evaluation]] = defaultdict(list)
    for run in runs:
        for key, evaluation in _newest(run.evaluations).items():
            alike[key].append(evaluation)
    pooled = tuple(_pool(evaluations) for evaluations in alike.values())
    return RunFacts(
        name=", ".join(run.name for run in runs),
        evaluations=pooled,
        summaries=tuple(summarise(evaluation) for evaluation in pooled),
        rewards=tuple(point for run in runs for point in run.rewards),
        first_ratio=None,
        first_kl=None,
        phase_minutes=_sum([run.phase_minutes for run in runs]),
        counts=_add([run.counts for run in runs]),
        judging=_sum([run.judging for run in runs]),
    )


def _newest(evaluations: Sequence[Evaluation]) -> dict[tuple[str, str, float], Evaluation]:
    return {(e.spec.label, e.spec.split, e.spec.temperature): e for e in evaluations}


def _pool(evaluations: Sequence[Evaluation]) -> Evaluation:
    return Evaluation(
        spec=replace(evaluations[0].spec, repeats=sum(evaluation.spec.repeats for evaluation in evaluations)),
        outcomes=tuple(outcome for evaluation in evaluations for outcome in evaluation.outcomes),
    )


def _sum(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    totals: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        for name, value in row.items():
            totals[name] += value
    return dict(totals)


def _add(counts: Sequence[Counts]) -> Counts:
    endings: Counter[str] = Counter()
    for count in counts:
        endings.update(count.endings)
    return Counts(
        rollouts=sum(count.rollouts for count in counts),
        endings=dict(endings),
        drift_tokens=sum(count.drift_tokens for count in counts),
        false_forks=sum(count.false_forks for count in counts),
    )


def _run_row(run: RunFacts) -> list[str]:
    cells = ["–" if side is None else side.success.percent() for side in columns(run).values()]
    seeds = sorted({evaluation.spec.seed for evaluation in run.evaluations})
    return [f"run {run.name}, seed {', '.join(map(str, seeds))}", *cells]


def _task_count(pooled: RunFacts) -> int:
    return max((summary.success.count for summary in pooled.summaries), default=0)
