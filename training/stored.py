"""Scored groups of other runs → closed groups of this run's own store, ready to be trained on without rollouts.

Each rollout is copied with its spans, tokens, scores and the versions that sampled it. Groups of held-out tasks are
never taken. It knows nothing about torch or processes. Called by offline.py.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.show import open_store
from traces.assemble import assemble_trajectory
from traces.records import GroupRecord, RolloutRecord
from traces.span import Span, Tokens
from traces.store import Store
from traces.trajectory import Turn
from training.batch import BatchRules, GroupRows, group_rows, plan_batch
from training.relabel import RESCORED, relabelled

_TRAINED_SPLITS = ("train", "")
_MENDED = frozenset({"no_token_ids", "no_logprobs"})

Relabel = Callable[[Turn], Awaitable[Tokens | None]]
"""Ids and log-probabilities of a turn that has none; None where there are none to be had."""


@dataclass(slots=True)
class Taken:
    """What came of reading the stored runs."""

    groups: int = 0
    """Groups that are in this run's store now, one pass."""
    rollouts: int = 0
    """Their rollouts."""
    rescored_turns: int = 0
    """Turns whose tokens were read off words that the policy did not sample."""
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Groups not taken, by reason."""


@dataclass(frozen=True, slots=True)
class Into:
    """Where stored groups go."""

    store: Store
    """This run's store."""
    run_id: str
    """This run."""
    relabel: Relabel | None = None
    """Gives tokens to turns that have none; None leaves such turns out."""


async def take_groups(into: Into, sources: Sequence[Path], *, passes: int = 1, seed: int = 0) -> Taken:
    """Copy what can be trained on, then close each group `passes` times, each pass in an order of its own.

    Raises ConfigError for a source that is no run, StoreError where one can't be read, and what `relabel` raises.
    """
    taken = Taken()
    records: list[GroupRecord] = []
    for source in sources:
        with open_store(source) as other:
            groups = [group for run in other.run_ids() for group in (*other.groups(run), *other.open_groups(run))]
            for group in groups:
                if (made := await _take(into, other, group, taken)) is not None:
                    records.append(made)
    dice = random.Random(seed)
    for turn in range(passes):
        dice.shuffle(records)
        for index, record in enumerate(records):
            group_id = f"{into.run_id}-{turn}-{record.group_id}"
            into.store.append_group(replace(record, group_id=group_id, position=turn * len(records) + index))
    return taken


async def _take(into: Into, other: Store, group: GroupRecord, taken: Taken) -> GroupRecord | None:
    """The group as this run's, its rollouts copied; None where it can't be trained on."""
    records = other.rollouts(group_id=group.group_id)
    why = _unfit(other, group, records)
    if why:
        taken.left_out[why] += 1
        return None
    for record in records:
        spans, rescored = await _tokens_given(into.relabel, record, other.spans(record.rollout_id))
        gaps = tuple(gap for gap in record.evidence_gaps if not rescored or gap not in _MENDED)
        ours = replace(record, run_id=into.run_id, evidence_gaps=(*gaps, RESCORED) if rescored else gaps)
        into.store.append_spans([replace(span, run_id=into.run_id) for span in spans])
        if not into.store.scores(record.rollout_id):
            into.store.append_scores(record.rollout_id, other.scores(record.rollout_id))
        into.store.append_rollout(ours)
        taken.rescored_turns += rescored
    taken.groups += 1
    taken.rollouts += len(records)
    ids = tuple(record.rollout_id for record in records)
    return replace(group, run_id=into.run_id, split="train", rollout_ids=ids, seq=None)


def _unfit(other: Store, group: GroupRecord, records: Sequence[RolloutRecord]) -> str:
    if group.split not in _TRAINED_SPLITS:
        return f"of split {group.split!r}"
    if not records or any(record.ending is None for record in records):
        return "not ended"
    counted = [record for record in records if record.ending is not None and not record.ending.is_infrastructure]
    return "" if counted and all(other.scores(record.rollout_id) for record in counted) else "not scored"


async def _tokens_given(relabel: Relabel | None, record: RolloutRecord, spans: list[Span]) -> tuple[list[Span], int]:
    """The rollout's spans, and how many of them were given tokens."""
    turns = assemble_trajectory(spans, record, ()).turns if relabel is not None else []
    lacking = {turn.span_id: turn for turn in turns if not turn.has_tokens}
    given = 0
    made: list[Span] = []
    for span in spans:
        tokens = await relabel(lacking[span.span_id]) if relabel is not None and span.span_id in lacking else None
        given += tokens is not None
        made.append(span if tokens is None else relabelled(span, tokens))
    return made, given


def count_steps(store: Store, run_id: str, rules: BatchRules) -> int:
    """How many steps the groups that no step has consumed are enough for."""
    pending: list[GroupRows] = [
        group_rows(store.group(record.group_id), rules) for record in store.unconsumed_groups(run_id)
    ]
    steps = 0
    while (batch := plan_batch(pending, 0, rules)) is not None:
        used = set(batch.group_ids)
        pending = [group for group in pending if group.group_id not in used]
        steps += 1
    return steps


def why_no_step(store: Store, run_id: str, rules: BatchRules) -> str:
    """What stands in the way of a first step, in words."""
    groups = [group_rows(store.group(record.group_id), rules) for record in store.unconsumed_groups(run_id)]
    dropped: Counter[str] = Counter()
    for group in groups:
        dropped.update(group.dropped)
    rows = sum(len(group.rows) for group in groups)
    spread = sum(group.has_spread for group in groups)
    found = f"{len(groups)} scored groups, {spread} with rewards that differ, {rows} rows for a step of {rules.rows}"
    left = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
    return f"{found}; rows left out: {left}" if left else found
