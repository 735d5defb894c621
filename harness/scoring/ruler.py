"""RULER: an LLM judge compares all trajectories of a group and scores each from 0 to 1; no reward function needed.

It knows nothing about endpoints, stores or training: a group goes in, the same group with scores comes out, or the same
group marked as unscored (law 4: a judge that fails never becomes reward 0). Idea: OpenPipe ART's RULER.
Called by blend.py, rescore.py and calibrate.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.errors import JudgeError
from harness.scoring.ballot import BallotCount, Standing, hold_ballot
from harness.scoring.heats import Heat, Question, RulerOptions, plan_vote
from harness.scoring.judge import Judge
from harness.scoring.litellm_call import JudgeFailed, JudgeSpec, price_per_token
from harness.scoring.rubric import Rubric, load_rubric
from harness.scoring.ruler_prompt import PROMPT_VERSION
from harness.scoring.transcript import Transcript, transcript_of
from traces.trajectory import Ending, Group, Score, Trajectory

RULER = "ruler"
ANSWER_TOKENS_A_TRAJECTORY = 80


async def ruler_score_group(
    group: Group, judge: Judge, rubric: Rubric | None = None, options: RulerOptions | None = None
) -> Group:
    """The same group with a score named `ruler` added to each trajectory that is no infrastructure failure.

    Trajectories that did the same get the same score. When the judge gives no usable answer the group comes back
    unscored: those trajectories end as JUDGE_ERROR and keep everything else (see `is_unscored`). What it took is in the
    group's metrics under `ruler/`. Raises JudgeError for a group with nothing to compare, and for a judge that can
    answer no question at all (no such model, no key).
    """
    judged = trajectories_to_judge(group)
    count = BallotCount()
    try:
        scores = await ruler_scores(judged, judge, rubric or load_rubric(None), options, count)
    except JudgeFailed as error:
        return _unscored(group, error, count)
    trajectories = [
        replace(trajectory, scores=[*trajectory.scores, scores[trajectory.rollout_id]])
        if trajectory.rollout_id in scores
        else trajectory
        for trajectory in group.trajectories
    ]
    return replace(group, trajectories=trajectories, metrics={**group.metrics, **ballot_metrics(count)})


async def ruler_scores(
    trajectories: Sequence[Trajectory], judge: Judge, rubric: Rubric, options: RulerOptions | None, count: BallotCount
) -> dict[str, Score]:
    """Rollout id → score, for all of these; `count` says what it took, after a failure too. Raises JudgeError."""
    transcripts = {trajectory.rollout_id: transcript_of(trajectory) for trajectory in trajectories}
    question = _question(list(transcripts.values()), judge.spec, rubric, options)
    standings = await hold_ballot(question, judge, count)
    version = f"{PROMPT_VERSION}/{judge.spec.model}/{rubric.version}"
    return {
        rollout_id: _score(standings[transcript.fingerprint], version) for rollout_id, transcript in transcripts.items()
    }


def trajectories_to_judge(group: Group) -> list[Trajectory]:
    """Those that are no infrastructure failure. Raises JudgeError when there is nothing to compare."""
    asked = f"RULER over group {group.group_id!r} (task {group.task_id!r})"
    if len(group.trajectories) < 2:
        raise JudgeError(
            asked=asked,
            found=f"{len(group.trajectories)} trajectories: RULER compares, so it needs at least 2",
            fix="raise training.group_size, or judge single trajectories with `score_independently`",
        )
    judged = [trajectory for trajectory in group.trajectories if not trajectory.ending.is_infrastructure]
    if not judged:
        endings = sorted({trajectory.ending.value for trajectory in group.trajectories})
        raise JudgeError(
            asked=asked,
            found=f"all {len(group.trajectories)} rollouts failed ({', '.join(endings)}), so there is nothing to score",
            fix="see the endings' details with `harness show`; the failed rollouts are kept and can be run again",
        )
    return judged


def is_unscored(group: Group) -> bool:
    """True when a judge failed on this group: it must not be trained on, but its rollouts can be scored again."""
    return any(trajectory.ending is Ending.JUDGE_ERROR for trajectory in group.trajectories)


@dataclass(frozen=True, slots=True)
class Preview:
    """One prompt that would be sent."""

    messages: list[dict[str, str]]
    """System and user message."""
    trajectories: int
    """How many trajectories it holds."""
    estimated_tokens: int
    """Prompt tokens, estimated from above."""
    estimated_usd: float | None
    """Money for prompt and answer by LiteLLM's table; None for a model without a known price."""


def preview_group(
    group: Group, spec: JudgeSpec, rubric: Rubric | None = None, options: RulerOptions | None = None
) -> list[Preview]:
    """The prompts `ruler_score_group` would send, and what they would cost; none where there is nothing to compare."""
    judged = [trajectory for trajectory in group.trajectories if not trajectory.ending.is_infrastructure]
    if not judged or len(group.trajectories) < 2:
        return []
    transcripts = [transcript_of(trajectory) for trajectory in judged]
    question = _question(transcripts, spec, rubric or load_rubric(None), options)
    price = price_per_token(spec.model)
    votes = range(max(1, question.options.votes))
    return [_preview(heat, price) for vote in votes for heat in plan_vote(question, vote)]


def _question(
    transcripts: Sequence[Transcript], spec: JudgeSpec, rubric: Rubric, options: RulerOptions | None
) -> Question:
    distinct = {transcript.fingerprint: transcript for transcript in transcripts}
    return Question(distinct, rubric, spec.max_prompt_tokens, options or RulerOptions())


def _preview(heat: Heat, price: tuple[float, float] | None) -> Preview:
    prompt, answer_tokens = heat.prompt, ANSWER_TOKENS_A_TRAJECTORY * len(heat.names)
    usd = None if price is None else prompt.estimated_tokens * price[0] + answer_tokens * price[1]
    return Preview(prompt.messages, len(heat.names), prompt.estimated_tokens, usd)


def _score(standing: Standing, version: str) -> Score:
    return Score(
        value=standing.score,
        name=RULER,
        components={"vote_std": standing.spread, **standing.verdict.criteria},
        explanation=standing.verdict.explanation,
        scorer_version=version,
    )


def _unscored(group: Group, error: JudgeFailed, count: BallotCount) -> Group:
    trajectories = [
        trajectory
        if trajectory.ending.is_infrastructure
        else replace(
            trajectory,
            ending=Ending.JUDGE_ERROR,
            ending_detail=f"{error.found} (the rollout itself ended as {trajectory.ending.value})",
        )
        for trajectory in group.trajectories
    ]
    return replace(
        group, trajectories=trajectories, metrics={**group.metrics, **ballot_metrics(count), "ruler/unscored": 1.0}
    )


def ballot_metrics(count: BallotCount) -> dict[str, float]:
    """What a ballot took, as metrics under `ruler/`."""
    metrics = {
        **count.usage.as_metrics("ruler/"),
        "ruler/prompts": float(count.prompts),
        "ruler/repairs": float(count.repairs),
        "ruler/failed_votes": float(count.failed_votes),
        "ruler/cut_characters": float(count.cut_characters),
        "ruler/distinct": float(count.distinct),
        "ruler/unscored": 0.0,
    }
    if count.twin_gaps:
        metrics["ruler/twin_gap"] = statistics.fmean(count.twin_gaps)
    if count.spreads:
        metrics["ruler/vote_std"] = statistics.fmean(count.spreads)
    return metrics
