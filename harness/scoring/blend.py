"""What a trajectory is worth: a judge alone, or checks and a judge together, each part kept by name.

It knows nothing about prompts, endpoints, stores or configuration: a judge is a function it is handed. Checks alone
need nothing of this: the rollout's own score is the reward then. Called by scorer.py and rescore.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from harness.errors import JudgeError
from harness.scoring.checks import CHECKS
from traces.trajectory import Score, Trajectory

Ask = Callable[[Sequence[Trajectory]], Awaitable[Mapping[str, Score]]]
"""Asks a judge about these trajectories: rollout id → its score. Raises JudgeError."""
Scores = dict[str, list[Score]]
"""Rollout id → scores to add, the reward last."""
Blend = Callable[[Sequence[Trajectory], Ask, float], Awaitable[Scores]]
"""Trajectories, the judge, and the share of the checks where the blend has one."""

BLEND_VERSION = "blend-1"
GATE_FLOOR = 0.5


async def judge_only(trajectories: Sequence[Trajectory], ask: Ask, checks_weight: float) -> Scores:
    """The judge's score is the reward; checks are kept beside it where there are some."""
    del checks_weight
    return {rollout_id: [score] for rollout_id, score in (await ask(trajectories)).items()}


async def gate(trajectories: Sequence[Trajectory], ask: Ask, checks_weight: float) -> Scores:
    """0 where the check fails; where it passes, 0.5 to 1 by the judge, who sees only those that passed.

    A single one that passed has nobody to be ranked against and gets 1 without a question.
    """
    del checks_weight
    passed = [trajectory for trajectory in trajectories if _check(trajectory) >= 1.0]
    judged: Mapping[str, Score] = await ask(passed) if len(passed) > 1 else dict[str, Score]()
    scores: Scores = {}
    for trajectory in trajectories:
        check, verdict = _check(trajectory), judged.get(trajectory.rollout_id)
        if check < 1.0:
            value = 0.0
        else:
            value = 1.0 if verdict is None else GATE_FLOOR + (1.0 - GATE_FLOOR) * verdict.value
        scores[trajectory.rollout_id] = _with_blend("gate", value, check, verdict)
    return scores


async def weighted(trajectories: Sequence[Trajectory], ask: Ask, checks_weight: float) -> Scores:
    """`checks_weight` of the check and the rest of the judge."""
    judged = await ask(trajectories)
    scores: Scores = {}
    for trajectory in trajectories:
        check, verdict = _check(trajectory), judged[trajectory.rollout_id]
        value = checks_weight * check + (1.0 - checks_weight) * verdict.value
        scores[trajectory.rollout_id] = _with_blend("weighted", value, check, verdict)
    return scores


BLENDS: dict[str, Blend] = {
    "ruler": judge_only,
    "independent": judge_only,
    "gate": gate,
    "weighted": weighted,
}
"""By the name in `reward.kind`; `checks` is not here because it asks no judge."""


def _check(trajectory: Trajectory) -> float:
    score = trajectory.score(CHECKS)
    if score is None:
        raise JudgeError(
            asked=f"a blend of checks and a judge for rollout {trajectory.rollout_id!r}",
            found="no score named 'checks' on it",
            fix="use a tool server whose sessions can be graded, or reward.kind = 'ruler'",
        )
    return score.value


def _with_blend(name: str, value: float, check: float, verdict: Score | None) -> list[Score]:
    parts = {CHECKS: check} if verdict is None else {CHECKS: check, verdict.name: verdict.value}
    version = BLEND_VERSION if verdict is None else f"{BLEND_VERSION}/{verdict.scorer_version}"
    explanation = "" if verdict is None else verdict.explanation
    blended = Score(value=value, name=name, components=parts, explanation=explanation, scorer_version=version)
    return [blended] if verdict is None else [verdict, blended]
