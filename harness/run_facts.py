"""What a run folder says about itself: evaluations, training metrics, minutes per phase, rollouts and endings.

It knows nothing about plots, tables or how a run is made: it reads `evaluations/*.json`, `metrics.jsonl`,
`phases.jsonl`, `judge.jsonl` and the span store, any of which may be missing. Called by report.py; the train loop calls
`record_phase`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.evaluate import load_evaluations
from harness.outcomes import Evaluation, Summary, summarise
from traces.node import ForkCause
from traces.store import Store

METRICS_FILE = "metrics.jsonl"
PHASES_FILE = "phases.jsonl"
STORE_FILE = "traces.db"
JUDGE_LOG = "judge.jsonl"
HOSTED_LOG = "hosted.jsonl"

BEFORE = "before"
AFTER = "after"
DO_NOTHING = "do-nothing"

REWARD_KEYS = ("reward", "reward/mean", "train/reward", "rollout/reward_mean")
RATIO_KEYS = ("ratio", "train/ratio")
KL_KEYS = ("kl", "train/kl")


@dataclass(frozen=True, slots=True)
class Counts:
    """What all rollouts of a run add up to, evaluation included."""

    rollouts: int = 0
    """Rollouts that ended."""
    endings: dict[str, int] = field(default_factory=dict[str, int])
    """Rollouts by ending."""
    drift_tokens: int = 0
    """Tokens that a later prompt showed otherwise than they were sampled (law 2 wants 0)."""
    false_forks: int = 0
    """Forks that no agent caused (law 2 wants 0)."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Everything a report shows."""

    name: str
    """Name of the run folder."""
    evaluations: tuple[Evaluation, ...]
    """As stored, oldest first."""
    summaries: tuple[Summary, ...]
    """Parallel to `evaluations`."""
    rewards: tuple[tuple[int, float], ...]
    """(training step, mean reward of its rollouts), in order; of a repeated step the last."""
    first_ratio: float | None
    """Mean importance ratio of the first training step; 1 when engine and trainer agree."""
    first_kl: float | None
    """KL estimate of the first training step."""
    phase_minutes: dict[str, float]
    """Minutes by phase; a resumed run adds up."""
    counts: Counts
    """Rollouts, endings, drift tokens, false forks."""
    judging: dict[str, float] = field(default_factory=dict[str, float])
    """What judging took, summed over groups, and `groups`; empty where no judge was asked."""
    hosted: dict[str, float] = field(default_factory=dict[str, float])
    """What hosted models took in the engine's place: calls, tokens, money; empty where there were none."""

    def find(self, label: str, *, greedy: bool, split: str | None = None) -> Summary | None:
        """The newest evaluation with this label and temperature (of this split); None when it was not run."""
        fitting = [
            summary
            for summary in self.summaries
            if summary.spec.label == label
            and (summary.spec.temperature == 0.0) == greedy
            and split in (None, summary.spec.split)
        ]
        return fitting[-1] if fitting else None

    def evaluation_of(self, summary: Summary | None) -> Evaluation | None:
        """The evaluation a summary was computed from; None for None."""
        found = [e for e, s in zip(self.evaluations, self.summaries, strict=True) if s is summary]
        return found[0] if found else None

    def floor(self) -> Summary | None:
        """The do-nothing agent's evaluation, at whatever temperature it was recorded."""
        return self.find(DO_NOTHING, greedy=True) or self.find(DO_NOTHING, greedy=False)


def record_phase(run_dir: Path, phase: str, seconds: float) -> None:
    """Append how long a phase took; call it once when the phase ends, also after a resume."""
    with (run_dir / PHASES_FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"phase": phase, "seconds": seconds}) + "\n")


def read_run(run_dir: Path) -> RunFacts:
    """Read a run folder. Missing parts are empty, a missing folder is a HarnessError."""
    if not run_dir.is_dir():
        raise HarnessError(
            asked=f"a report on {run_dir}", found="no such folder", fix="name a folder that `harness train` made"
        )
    steps = list(read_jsonl(run_dir / METRICS_FILE))
    evaluations = tuple(load_evaluations(run_dir))
    return RunFacts(
        name=run_dir.name,
        evaluations=evaluations,
        summaries=tuple(summarise(evaluation) for evaluation in evaluations),
        rewards=_series(steps, REWARD_KEYS),
        first_ratio=_first(steps, RATIO_KEYS),
        first_kl=_first(steps, KL_KEYS),
        phase_minutes=_phase_minutes(run_dir),
        counts=read_counts(run_dir / STORE_FILE),
        judging=read_judging(run_dir),
        hosted=_sums(run_dir / HOSTED_LOG, "hosted/"),
    )


def read_judging(run_dir: Path) -> dict[str, float]:
    """Sums over `judge.jsonl`, which has a line for each group that was put to a judge; empty without one."""
    groups = sum(1 for _ in read_jsonl(run_dir / JUDGE_LOG))
    return {"groups": float(groups), **_sums(run_dir / JUDGE_LOG, "ruler/")} if groups else {}


def _sums(path: Path, prefix: str) -> dict[str, float]:
    """Each number under `prefix`, summed over the lines of a file."""
    sums: defaultdict[str, float] = defaultdict(float)
    for row in read_jsonl(path):
        for name, value in row.items():
            if name.startswith(prefix):
                sums[name] += float(value)
    return dict(sums)


def _false_forks(metrics: Mapping[str, float]) -> int:
    """Forks of every cause but one: an agent that edits its own history forks rightly."""
    causes = {name.removeprefix("forks_"): count for name, count in metrics.items() if name.startswith("forks_")}
    return int(sum(count for cause, count in causes.items() if cause != ForkCause.EDITED_HISTORY.value))


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Objects of a JSONL file, nothing when it is missing; a last line cut short by a kill is left out."""
    if not path.is_file():
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise HarnessError(
                    asked=f"line {number} of {path}", found=f"no JSON: {error}", fix="remove that line"
                ) from error


def _series(steps: Sequence[dict[str, Any]], keys: Sequence[str]) -> tuple[tuple[int, float], ...]:
    values: dict[int, float] = {}
    for index, row in enumerate(steps):
        value = _number(row, keys)
        if value is not None:
            values[int(row.get("step", index))] = value
    return tuple(sorted(values.items()))


def _first(steps: Sequence[dict[str, Any]], keys: Sequence[str]) -> float | None:
    series = _series(steps, keys)
    return series[0][1] if series else None


def _number(row: dict[str, Any], keys: Sequence[str]) -> float | None:
    found = [row[key] for key in keys if isinstance(row.get(key), int | float)]
    return float(found[0]) if found else None


def _phase_minutes(run_dir: Path) -> dict[str, float]:
    minutes: defaultdict[str, float] = defaultdict(float)
    for row in read_jsonl(run_dir / PHASES_FILE):
        minutes[str(row["phase"])] += float(row["seconds"]) / 60.0
    return dict(minutes)


def read_counts(store_path: Path) -> Counts:
    """Add up the ended rollouts of a span store; empty when there is no store."""
    if not store_path.is_file():
        return Counts()
    with Store(store_path, create=False) as store:
        records = store.rollouts(ended=True)
    return Counts(
        rollouts=len(records),
        endings=dict(Counter(record.ending.value for record in records if record.ending is not None)),
        drift_tokens=sum(int(record.metrics.get("drift_tokens", 0)) for record in records),
        false_forks=sum(_false_forks(record.metrics) for record in records),
    )
