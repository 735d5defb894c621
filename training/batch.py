"""Groups → the rows of one optimizer step. Pure: advantages per rollout, staleness, weights, and what was left out.

It knows nothing about torch, stores, engines or processes, and imports none of them.
The trainer plans each step with `plan_batch`; the main process calls the same function to see whether that step still
lacks rollouts, so the two can't disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from traces.tokens import Row, cut_rows
from traces.trajectory import Group, Trajectory
from traces.turn_filter import EVERY_TURN, TurnFilter

SPREAD_MIN = 1e-6
"""Groups whose scores deviate by less teach nothing: every advantage would be 0."""

ENDS_CALL = "ends_call"
"""Metric of a group that marks it as the last of a `train` call; written by harness/api."""


@dataclass(frozen=True, slots=True)
class BatchRules:
    """How groups become a step."""

    rows: int
    """Rows of one step at least; whole groups are taken until there are as many."""
    max_staleness: int = 1
    """Versions a row may be behind the policy that is trained."""
    max_row_tokens: int = 8192
    """Longer rows are left out and counted."""
    loss_weight: str = "token"
    """`token`: every trained token weighs the same; `trajectory`: every trajectory does, however long or forked."""
    score_name: str | None = None
    """Score that is the reward; None takes each rollout's newest."""
    only: TurnFilter = EVERY_TURN
    """Turns that are trained; the others are context."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchRow:
    """One training row: a sequence of tokens, some of them sampled by the policy."""

    tokens: Row
    """Ids, mask, log-probabilities and versions, parallel (T)."""
    advantage: float
    """Its rollout's advantage within the group; the same on every row of a forked trajectory."""
    rollout_id: str
    """The trajectory it is a part of."""
    group_seq: int
    """Its group's place in the order of closing."""
    version: int
    """Oldest policy version that sampled one of its trained tokens."""
    trained_tokens: int
    """Tokens with mask 1."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupRows:
    """A scored group, ready to be batched."""

    group_id: str
    """The group."""
    rows: tuple[BatchRow, ...]
    """Rows of its scored rollouts; none where the scores have no spread."""
    rewards_G: tuple[float, ...]
    """Rewards of the rollouts that count, in the order of the group."""
    infrastructure: int = 0
    """Rollouts left out because a failure of ours ended them (law 4)."""
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])
    """Rows left out, by reason: those of `traces.tokens.cut_rows`, and `too_long`."""
    ends_call: bool = False
    """True for the last group that one `train` call of the Python API handed in."""

    @property
    def has_spread(self) -> bool:
        """Whether its scores differ, so that it can teach something."""
        return has_spread(self.rewards_G)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The rows of one optimizer step."""

    group_ids: tuple[str, ...]
    """Groups it uses up, in order: those trained on and those passed over."""
    rows: tuple[BatchRow, ...]
    """What is trained on."""
    advantages_B: tuple[float, ...]
    """Advantage times loss weight, parallel to `rows`."""
    metrics: Mapping[str, float]
    """What the step is made of, and what was left out."""


def has_spread(rewards_G: Sequence[float]) -> bool:
    """Whether at least two rewards differ."""
    return len(rewards_G) > 1 and float(np.std(rewards_G)) > SPREAD_MIN


def advantages(rewards_G: Sequence[float]) -> NDArray[np.float64]:
    """(r − mean) / std over the group, as in GRPO (Shao et al. 2024, eq. 3); zeros without spread."""
    rewards = np.asarray(rewards_G, dtype=np.float64)
    if not has_spread(rewards_G):
        return np.zeros_like(rewards)
    return (rewards - rewards.mean()) / rewards.std()


def group_rows(group: Group, rules: BatchRules) -> GroupRows:
    """Rows of a closed group: advantages over its scored rollouts first, rows left out after that (law 4)."""
    counted = [(t, score.value) for t in group.scored if (score := t.score(rules.score_name)) is not None]
    rewards_G = tuple(value for _, value in counted)
    infrastructure = sum(t.ending.is_infrastructure for t in group.trajectories)
    made: list[BatchRow] = []
    dropped: Counter[str] = Counter()
    if has_spread(rewards_G):
        for (trajectory, _), advantage in zip(counted, advantages(rewards_G), strict=True):
            made += _trajectory_rows(trajectory, float(advantage), group.seq or 0, rules, dropped)
    ends_call = bool(group.metrics.get(ENDS_CALL))
    return GroupRows(group.group_id, tuple(made), rewards_G, infrastructure, dict(dropped), ends_call)


def plan_batch(pending: Iterable[GroupRows], version: int, rules: BatchRules) -> Batch | None:
    """The next step's rows from unconsumed groups in the order of closing; None while they are too few.

    `version` is the policy about to be trained. The same groups and version give the same batch, whoever asks and
    whenever: a resumed run repeats its steps exactly.
    """
    taken: list[GroupRows] = []
    rows = 0
    for group in pending:
        taken.append(group)
        rows += len(_fresh(group, version, rules))
        if rows >= rules.rows:
            return _batch(taken, version, rules)
    return None


def plan_call(pending: Iterable[GroupRows], version: int, rules: BatchRules) -> Batch | None:
    """The groups of the next `train` call as one batch, however many rows they have; None until all are closed.

    The batch has no rows where they teach nothing. Groups of a call that a kill cut short go with the next call.
    """
    taken: list[GroupRows] = []
    for group in pending:
        taken.append(group)
        if group.ends_call:
            return _batch(taken, version, rules)
    return None


def _fresh(group: GroupRows, version: int, rules: BatchRules) -> list[BatchRow]:
    return [row for row in group.rows if version - row.version <= rules.max_staleness]


def _batch(taken: Sequence[GroupRows], version: int, rules: BatchRules) -> Batch:
    fresh = [row for group in taken for row in _fresh(group, version, rules)]
    advantages_B = tuple(weighted_advantages(fresh, rules.loss_weight)) if fresh else ()
    metrics = _metrics(taken, fresh, version) if fresh else {}
    return Batch(tuple(group.group_id for group in taken), tuple(fresh), advantages_B, metrics)


def weighted_advantages(rows_B: Sequence[BatchRow], loss_weight: str) -> list[float]:
    """Advantages such that the mean over trained tokens weighs what `loss_weight` says alike.

    The clipped loss is linear in the advantage, so a positive weight on it is a weight on the token's loss.
    """
    if loss_weight == "token":
        return [row.advantage for row in rows_B]
    tokens_of: Counter[str] = Counter()
    for row in rows_B:
        tokens_of[row.rollout_id] += row.trained_tokens
    mean_tokens = tokens_of.total() / len(tokens_of)
    return [row.advantage * mean_tokens / tokens_of[row.rollout_id] for row in rows_B]


def _trajectory_rows(
    trajectory: Trajectory, advantage: float, group_seq: int, rules: BatchRules, dropped: Counter[str]
) -> list[BatchRow]:
    made: list[BatchRow] = []
    cut = cut_rows(trajectory, rules.only)
    dropped.update(cut.dropped)
    for row in cut.rows:
        if len(row.ids_T) > rules.max_row_tokens:
            dropped["too_long"] += 1
            continue
        version = int(row.versions_T[row.mask_T].min())
        trained_tokens = int(row.mask_T.sum())
        made.append(BatchRow(row, advantage, trajectory.rollout_id, group_seq, version, trained_tokens))
    return made


def _metrics(taken: Sequence[GroupRows], fresh: Sequence[BatchRow], version: int) -> dict[str, float]:
    rewards = [reward for group in taken for reward in group.rewards_G]
    dropped: Counter[str] = Counter()
    for group in taken:
        dropped.update(group.dropped)
    dropped["stale"] = sum(len(group.rows) for group in taken) - len(fresh)
    return {
        "reward": float(np.mean(rewards)) if rewards else float("nan"),
        "reward_std": float(np.std(rewards)) if rewards else float("nan"),
        "batch/rows": float(len(fresh)),
        "batch/rollouts": float(len(rewards)),
        "batch/trained_rollouts": float(len({row.rollout_id for row in fresh})),
        "batch/infrastructure_failures": float(sum(group.infrastructure for group in taken)),
        "batch/groups": float(len(taken)),
        "batch/groups_without_spread": float(sum(not group.has_spread for group in taken)),
        "batch/staleness": float(np.mean([max(0, version - row.version) for row in fresh])),
        **{f"batch/dropped_rows_{reason}": float(count) for reason, count in sorted(dropped.items())},
    }
