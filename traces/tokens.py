"""Turns → training rows: every sampled token with a mask of 1 in exactly one row (laws 1 to 3).

It knows nothing about rewards, advantages or torch; pure.
The trainer's batch builder calls `rows`; reports and `harness show` call `cut_rows` for the forks and the drops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traces.conversation import Conversation, read_conversation
from traces.forest import TokenForest
from traces.node import Fork, ForkCause, Node
from traces.span import Tokens
from traces.trajectory import Ids, Logprobs, Trajectory, Turn
from traces.turn_filter import EVERY_TURN, TurnFilter

__all__ = ["Fork", "ForkCause", "Node", "Row", "RowSet", "TokenForest", "cut_rows", "grow_forest", "rows"]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One training row: a whole path through the forest, from a root to a leaf."""

    ids_T: Ids
    """Token ids, int32."""
    mask_T: NDArray[np.bool_]
    """True where the token was sampled by the policy and is trained in this row and in no other."""
    logprobs_T: Logprobs
    """Log-probability the engine gave when it sampled the token; 0 where the token was not sampled."""
    versions_T: Ids
    """Policy version that sampled the token; -1 where the token was not sampled."""
    turn_indices: tuple[int, ...]
    """The turns trained in this row, in order."""


@dataclass(frozen=True, slots=True, eq=False)
class RowSet:
    """The rows of one rollout, and what did not become a row."""

    rows: list[Row]
    """By the order in which their last turns came."""
    forks: list[Fork]
    """Turns that left the turn they should have continued; `node_index` and `left_index` are turn indices."""
    drift_tokens: int
    """Sampled tokens the policy later read otherwise, without an edit by the agent."""
    dropped: Counter[str]
    """Rows not trained, by reason: `no_token_ids`, `no_logprobs`, `no_policy_version`, `superseded_by_retry`,
    `not_chosen` (none of its turns is to be trained)."""
    dropped_tokens: int
    """Sampled tokens that are trained in no row because of that."""


def rows(trajectory: Trajectory) -> list[Row]:
    """The training rows of a trajectory; see `cut_rows` for what was left out."""
    return cut_rows(trajectory).rows


def grow_forest(trajectory: Trajectory) -> tuple[TokenForest, list[int]]:
    """The forest of a trajectory, and the turn index of each of its nodes; turns without ids have no place in it."""
    forest = TokenForest()
    turn_indices: list[int] = []
    for turn in trajectory.turns:
        if not len(turn.prompt_ids_T) or not len(turn.completion_ids_T):
            continue
        tokens = Tokens(turn.prompt_ids_T, turn.completion_ids_T, turn.logprobs_T)
        forest.attach(tokens, turn.policy_version, _said(turn), retry=turn.retry_count > 0)
        turn_indices.append(turn.index)
    return forest, turn_indices


def _said(turn: Turn) -> Callable[[], Conversation] | None:
    if not turn.input_messages:
        return None
    return lambda: read_conversation(turn.input_messages, turn.tools).answered(turn.output_message)


def cut_rows(trajectory: Trajectory, only: TurnFilter = EVERY_TURN) -> RowSet:
    """One row a leaf of the trajectory's forest; a sampled token shared by several rows is trained in the first.

    Turns that `only` leaves out stay in the rows as context, with mask 0.
    """
    forest, turn_indices = grow_forest(trajectory)
    dropped: Counter[str] = Counter()
    dropped["no_token_ids"] = len(trajectory.turns) - len(turn_indices)
    cut: list[Row] = []
    trained: set[int] = set()
    chosen = only.chosen(trajectory.turns)
    left_out = {node.index for node in forest.nodes if turn_indices[node.index] not in chosen}
    for leaf in forest.nodes:
        if leaf.children:
            continue
        path = leaf.path()
        reason = next((why for why in map(_untrainable, path) if why), None)
        if reason is not None:
            dropped[reason] += 1
            continue
        if all(node.index in trained or node.index in left_out for node in path):
            dropped["not_chosen"] += 1
            continue
        cut.append(_row(path, trained, left_out, turn_indices))
    lost = sum(node.completion_length for node in forest.nodes if node.index not in trained)
    return RowSet(cut, _forks_by_turn(forest, turn_indices), forest.drift_tokens, +dropped, lost)


def _untrainable(node: Node) -> str | None:
    if node.superseded:
        return "superseded_by_retry"
    if len(node.logprobs_T) != node.completion_length:
        return "no_logprobs"
    return "no_policy_version" if node.version < 0 else None


def _row(path: list[Node], trained: set[int], left_out: set[int], turn_indices: list[int]) -> Row:
    length = path[-1].end
    mask_T = np.zeros(length, np.bool_)
    logprobs_T = np.zeros(length, np.float32)
    versions_T = np.full(length, -1, np.int32)
    fresh: list[int] = []
    for node in path:
        sampled = slice(node.prompt_length, node.end)
        logprobs_T[sampled] = node.logprobs_T
        versions_T[sampled] = node.version
        if node.index not in trained and node.index not in left_out:
            mask_T[sampled] = True
            trained.add(node.index)
            fresh.append(turn_indices[node.index])
    ids_T = np.concatenate([node.segment_T for node in path])
    return Row(ids_T, mask_T, logprobs_T, versions_T, tuple(fresh))


def _forks_by_turn(forest: TokenForest, turn_indices: list[int]) -> list[Fork]:
    return [
        Fork(
            fork.cause,
            fork.message_index,
            fork.token_index,
            turn_indices[fork.node_index],
            turn_indices[fork.left_index],
            fork.drift_tokens,
        )
        for fork in forest.forks
    ]
