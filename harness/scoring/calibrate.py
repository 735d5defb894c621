"""Calibrate a judge: it judges stored groups in several orders; its scores are set beside their checks, and its cost.

It knows nothing about how prompts or endpoints work, and writes no score: calibration must not move what trains.
Called by `harness judge calibrate`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import JudgeError
from harness.intervals import Interval
from harness.plots import CALIBRATION_PLOT, draw_calibration
from harness.report import markdown_table
from harness.scoring.agreement import JudgedGroup, agreement_table
from harness.scoring.ballot import BallotCount, ask_heat
from harness.scoring.checks import CHECKS
from harness.scoring.heats import Heat, Question, RulerOptions, plan_vote
from harness.scoring.judge import Judge
from harness.scoring.litellm_call import JudgeFailed
from harness.scoring.rubric import Rubric
from harness.scoring.transcript import Transcript, transcript_of
from traces.trajectory import Group

VOTES = 3
TABLE_FILE = "calibration.md"
NUMBERS_FILE = "calibration.json"


@dataclass(frozen=True, slots=True)
class Calibration:
    """What calibrating a judge found."""

    judge: str
    """LiteLLM model string."""
    rubric: str
    """Rubric and its version."""
    table: dict[str, Interval]
    """Agreement statistics with intervals over groups."""
    groups: tuple[JudgedGroup, ...]
    """Every group judged, for plots and for other statistics."""
    unscored: int
    """Groups the judge had no usable answer for; in no statistic."""
    without_spread: int
    """Groups whose checks all say the same: in self-consistency and position bias, not in agreement."""
    usd_a_group: float | None
    """Money a group and vote; None for a judge without a known price."""
    tokens_a_group: float
    """Prompt and answer tokens a group and vote."""


async def calibrate_judge(
    groups: Iterable[Group], judge: Judge, rubric: Rubric, *, votes: int = VOTES, seed: int = 0
) -> Calibration:
    """Judge each group `votes` times in different orders and compare. Writes nothing.

    Groups with fewer than two scored rollouts are left out. Raises JudgeError when none is left, or when the judge can
    answer nothing.
    """
    usable = [group for group in groups if len(_checked(group)) > 1]
    if not usable:
        raise JudgeError(
            asked="a calibration against checks",
            found="no stored group with two rollouts that have a score named 'checks'",
            fix="name a run whose rollouts were graded by their tool server",
        )
    options = RulerOptions(seed=seed, votes=votes, twin_share=0.0)
    count = BallotCount()
    judged = await asyncio.gather(*(_judge_group(group, judge, rubric, options, count) for group in usable))
    kept = [group for group in judged if group is not None]
    questions = max(1, count.prompts)
    usage = count.usage
    return Calibration(
        judge=judge.spec.model,
        rubric=rubric.version,
        table=agreement_table(kept, seed=seed),
        groups=tuple(kept),
        unscored=len(judged) - len(kept),
        without_spread=sum(len(set(group.checks_G)) == 1 for group in kept),
        usd_a_group=None if usage.unpriced_calls or not usage.calls else usage.cost_usd / questions,
        tokens_a_group=(usage.prompt_tokens + usage.completion_tokens) / questions,
    )


def _checked(group: Group) -> list[tuple[Transcript, float]]:
    return [
        (transcript_of(trajectory), score.value)
        for trajectory in group.trajectories
        if not trajectory.ending.is_infrastructure and (score := trajectory.score(CHECKS)) is not None
    ]


async def _judge_group(
    group: Group, judge: Judge, rubric: Rubric, options: RulerOptions, count: BallotCount
) -> JudgedGroup | None:
    checked = _checked(group)
    distinct = {transcript.fingerprint: transcript for transcript, _ in checked}
    question = Question(distinct, rubric, judge.spec.max_prompt_tokens, options)
    try:
        votes = [await _one_vote(plan_vote(question, vote), judge, rubric, count) for vote in range(options.votes)]
    except JudgeFailed:
        return None
    if any(set(vote) != set(distinct) for vote in votes):
        return None
    names = [transcript.fingerprint for transcript, _ in checked]
    return JudgedGroup(
        group_id=group.group_id,
        checks_G=tuple(check for _, check in checked),
        scores_VG=tuple(tuple(vote[name][0] for name in names) for vote in votes),
        places_VG=tuple(tuple(vote[name][1] for name in names) for vote in votes),
    )


async def _one_vote(
    heats: Sequence[Heat], judge: Judge, rubric: Rubric, count: BallotCount
) -> dict[str, tuple[float, float]]:
    """Fingerprint → (score, place from 0 to 1); the mean where heats share one."""
    seen: dict[str, list[tuple[float, float]]] = {}
    for heat in heats:
        verdicts = await ask_heat(heat, judge, rubric, count)
        last = max(1, len(heat.names) - 1)
        for place, (label, name) in enumerate(heat.names.items()):
            seen.setdefault(name, []).append((verdicts[label].score, place / last))
    return {name: (_mean(s for s, _ in found), _mean(p for _, p in found)) for name, found in seen.items()}


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(list(values))


def write_calibration(folder: Path, calibration: Calibration) -> Path:
    """Write table, plot and numbers into `folder`; returns the table's path."""
    folder.mkdir(parents=True, exist_ok=True)
    draw_calibration(folder / CALIBRATION_PLOT, calibration.table, _score_lists(calibration))
    (folder / NUMBERS_FILE).write_text(json.dumps(dataclasses.asdict(calibration)), encoding="utf-8")
    path = folder / TABLE_FILE
    path.write_text(calibration_text(calibration), encoding="utf-8")
    return path


def calibration_text(calibration: Calibration) -> str:
    """The calibration as markdown."""
    rows = [
        [name, f"{interval.mean:.3f}", f"[{interval.low:.3f}, {interval.high:.3f}]"]
        for name, interval in calibration.table.items()
    ]
    cost = "unknown" if calibration.usd_a_group is None else f"{calibration.usd_a_group:.5f} USD"
    return "\n".join(
        [
            f"# Judge {calibration.judge}, rubric {calibration.rubric}",
            "",
            f"{len(calibration.groups)} groups judged, {calibration.without_spread} of them without spread in their "
            f"checks; {calibration.unscored} left unscored. Intervals: 95 %, bootstrap over groups.",
            "",
            markdown_table(["agreement with checks, and with itself", "value", "95 % interval"], rows),
            "",
            f"A prompt takes {calibration.tokens_a_group:.0f} tokens and costs {cost}.",
            "",
            f"![scores by check, and agreement]({CALIBRATION_PLOT})",
            "",
        ]
    )


def _score_lists(calibration: Calibration) -> tuple[list[float], list[float]]:
    """Judge scores of what passed the check, and of what did not."""
    passed: list[float] = []
    failed: list[float] = []
    for group in calibration.groups:
        for check, score in zip(group.checks_G, group.means_G, strict=True):
            (passed if check >= 1.0 else failed).append(score)
    return passed, failed
