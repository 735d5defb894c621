"""What an evaluation counted: one outcome a rollout, and every number that reports show, computed from outcomes.

It knows nothing about agents, engines, servers, files or how a score came about. Infrastructure and simulator failures
are counted beside the rates and are in none of them (laws 4, 10). Called by evaluate.py and report.py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.intervals import (
    EMPTY,
    Difference,
    Interval,
    bootstrap_interval,
    paired_difference,
    pass_at_k,
    pass_hat_k,
    wilson_interval,
)
from harness.task import Task
from traces.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Outcome:
    """One rollout of an evaluation, reduced to what is counted."""

    task_id: str
    """The task it worked on."""
    kind: str
    """The task's request kind (cancel, return, …)."""
    difficulty: str
    """The task's difficulty level, as text."""
    is_refusal: bool
    """True when the right thing is to change nothing."""
    ending: str
    """The rollout's Ending, by value."""
    is_infrastructure: bool
    """True when the ending says nothing about the policy (law 4)."""
    passed: bool | None
    """Did the check pass? None when there is no score: infrastructure failure or unscored."""
    reward: float | None
    """The value that would train (last score); None when unscored."""
    turns: int
    """Model calls."""
    tool_calls: int
    """Tool calls."""
    tool_errors: int
    """Tool calls whose result was an error."""
    completion_tokens: int
    """Tokens sampled."""
    latency_s: float
    """Wall time from start to end, seconds."""
    cost_usd: float | None = None
    """Money spent on a hosted model; None when nothing was metered."""


@dataclass(frozen=True, slots=True)
class EvaluationSpec:
    """What was evaluated and how."""

    label: str
    """Where it stands in the report: before, after, do-nothing, or any other name."""
    model: str
    """Served model or adapter name."""
    policy_version: int
    """Version of the policy; 0 is the base."""
    split: str
    """Split of the tasks."""
    temperature: float
    """Sampling temperature; 0 is greedy."""
    repeats: int = 1
    """Rollouts of each task."""
    seed: int = 0
    """Seed of the run it belongs to."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All outcomes of one evaluation; every number of the reports is computed from these."""

    spec: EvaluationSpec
    """What was evaluated."""
    outcomes: tuple[Outcome, ...]
    """One entry a rollout, infrastructure failures included."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of one evaluation."""

    spec: EvaluationSpec
    """What was evaluated."""
    success: Interval
    """Mean of the per-task success rates over scored rollouts."""
    reward: Interval
    """Mean of the per-task mean rewards, bootstrap over tasks."""
    by_kind: dict[str, Interval]
    """Success of each request kind."""
    by_difficulty: dict[str, Interval]
    """Success of each difficulty level."""
    write_tasks: Interval
    """Success on tasks that need a change."""
    refusal_tasks: Interval
    """Success on tasks that must be refused."""
    pass_hat: dict[int, Interval]
    """pass^k for k up to the number of repeats, over tasks with at least k scored rollouts."""
    pass_at: dict[int, Interval]
    """pass@k, likewise."""
    rollouts: int
    """Rollouts run."""
    infrastructure: int
    """Rollouts that ended as infrastructure or simulator failures; they are in no rate above."""
    unscored: int
    """Other rollouts without a score; in no rate above either."""
    endings: dict[str, int]
    """Rollouts by ending."""
    means: dict[str, float]
    """Means over rollouts that are no infrastructure failure: turns, tool_calls, tool_errors, completion_tokens,
    latency_s, cost_usd."""


def outcome_of(trajectory: Trajectory, task: Task) -> Outcome:
    """Reduce one trajectory. A trajectory with an infrastructure ending has no `passed`, whatever scores it carries."""
    infrastructure = trajectory.ending.is_infrastructure
    scores = [] if infrastructure else list(trajectory.scores)
    checks = [score for score in scores if "passed" in score.components]
    passed = bool(checks[-1].components["passed"]) if checks else (scores[-1].value >= 1.0 if scores else None)
    return Outcome(
        task_id=task.id,
        kind=task.kind,
        difficulty=str(task.difficulty),
        is_refusal=task.is_refusal,
        ending=trajectory.ending.value,
        is_infrastructure=infrastructure,
        passed=passed,
        reward=scores[-1].value if scores else None,
        turns=len(trajectory.turns),
        tool_calls=len(trajectory.tool_calls),
        tool_errors=sum(1 for call in trajectory.tool_calls if call.is_error),
        completion_tokens=sum(len(turn.completion_ids_T) for turn in trajectory.turns),
        latency_s=(trajectory.end_ns - trajectory.start_ns) / 1e9,
        cost_usd=trajectory.metrics.get("cost_usd"),
    )


def summarise(evaluation: Evaluation) -> Summary:
    """All numbers of one evaluation; pure."""
    outcomes = evaluation.outcomes
    ended = [outcome for outcome in outcomes if not outcome.is_infrastructure]
    return Summary(
        spec=evaluation.spec,
        success=success_rate(outcomes),
        reward=bootstrap_interval([_mean(values) for values in _rewards_by_task(outcomes).values()]),
        by_kind=_slices(outcomes, lambda outcome: outcome.kind),
        by_difficulty=_slices(outcomes, lambda outcome: outcome.difficulty),
        write_tasks=success_rate([outcome for outcome in outcomes if not outcome.is_refusal]),
        refusal_tasks=success_rate([outcome for outcome in outcomes if outcome.is_refusal]),
        pass_hat=pass_table(outcomes, pass_hat_k, evaluation.spec.repeats),
        pass_at=pass_table(outcomes, pass_at_k, evaluation.spec.repeats),
        rollouts=len(outcomes),
        infrastructure=len(outcomes) - len(ended),
        unscored=sum(1 for outcome in ended if outcome.passed is None),
        endings=dict(Counter(outcome.ending for outcome in outcomes)),
        means=_means(ended),
    )


def success_rate(outcomes: Iterable[Outcome]) -> Interval:
    """Mean of per-task success rates. Wilson where each task has one rollout, else bootstrap over tasks.

    When all tasks agree (every mean 0, or every mean 1) a bootstrap would have no width: Wilson over tasks then.
    """
    means = [successes / trials for successes, trials in trials_by_task(outcomes).values()]
    if not means:
        return EMPTY
    if all(mean in (0.0, 1.0) for mean in means) and (_one_each(outcomes) or len(set(means)) == 1):
        return wilson_interval(round(sum(means)), len(means))
    return bootstrap_interval(means)


def trials_by_task(outcomes: Iterable[Outcome]) -> dict[str, tuple[int, int]]:
    """Task id → (successes, scored rollouts); tasks without a scored rollout are absent."""
    counts: dict[str, tuple[int, int]] = {}
    for outcome in outcomes:
        if outcome.passed is not None:
            successes, trials = counts.get(outcome.task_id, (0, 0))
            counts[outcome.task_id] = (successes + outcome.passed, trials + 1)
    return counts


def pass_table(
    outcomes: Iterable[Outcome], estimator: Callable[[int, int, int], float], largest_k: int
) -> dict[int, Interval]:
    """K → mean of `estimator(c, n, k)` over tasks with n >= k scored rollouts, bootstrap over tasks."""
    counts = list(trials_by_task(outcomes).values())
    table: dict[int, Interval] = {}
    for k in range(1, largest_k + 1):
        values = [estimator(successes, trials, k) for successes, trials in counts if trials >= k]
        if values:
            table[k] = bootstrap_interval(values)
    return table


def compare_evaluations(before: Evaluation, after: Evaluation) -> Difference:
    """Paired comparison of two evaluations on the tasks both have, with a sign-flip permutation test over tasks."""
    rates = [
        {task: successes / trials for task, (successes, trials) in trials_by_task(side.outcomes).items()}
        for side in (before, after)
    ]
    return paired_difference(rates[0], rates[1])


def _slices(outcomes: Sequence[Outcome], key: Callable[[Outcome], str]) -> dict[str, Interval]:
    names = sorted({key(outcome) for outcome in outcomes})
    return {name: success_rate([outcome for outcome in outcomes if key(outcome) == name]) for name in names}


def _one_each(outcomes: Iterable[Outcome]) -> bool:
    return all(trials == 1 for _, trials in trials_by_task(outcomes).values())


def _rewards_by_task(outcomes: Iterable[Outcome]) -> dict[str, list[float]]:
    rewards: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.reward is not None:
            rewards[outcome.task_id].append(outcome.reward)
    return rewards


def _means(outcomes: Sequence[Outcome]) -> dict[str, float]:
    names = ("turns", "tool_calls", "tool_errors", "completion_tokens", "latency_s", "cost_usd")
    columns = {name: [value for o in outcomes if (value := getattr(o, name)) is not None] for name in names}
    return {name: _mean(values) for name, values in columns.items() if values}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
