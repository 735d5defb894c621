"""The queue between the processes of a run: endings, scores, groups, consumption, and exact resume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flows.recorded import RUN, close_group, end_rollout
from traces.records import CheckpointRecord, GroupRecord, PolicyRecord, RolloutRecord
from traces.store import Store, StoreError
from traces.trajectory import Ending, Score


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "traces.db") as opened:
        yield opened


def test_a_rollout_ends_once_and_keeps_its_first_ending(store: Store) -> None:
    store.append_rollout(RolloutRecord(rollout_id="r", group_id="g", run_id=RUN, task_id="t"))
    assert store.rollout("r").ending is None
    end_rollout(store, "r", "g")
    end_rollout(store, "r", "g")
    with pytest.raises(StoreError, match="already ended as 'answered'"):
        end_rollout(store, "r", "g", Ending.ENGINE_ERROR)
    assert store.rollout("r").ending is Ending.ANSWERED


def test_scores_are_only_added_and_the_newest_of_a_name_counts(store: Store) -> None:
    store.append_scores("r", [Score(value=0.0, name="checks"), Score(value=0.5, name="ruler", components={"a": 1.0})])
    store.append_scores("r", [Score(value=1.0, name="checks", scorer_version="2", explanation="\ud800")])
    assert [(score.name, score.value) for score in store.scores("r")] == [("ruler", 0.5), ("checks", 1.0)]
    assert len(store.scores("r", every=True)) == 3


def test_a_group_closes_only_when_its_rollouts_have_ended_and_are_scored(store: Store) -> None:
    record = GroupRecord(group_id="g", run_id=RUN, task_id="t", split="train", rollout_ids=("a", "b"))
    with pytest.raises(StoreError, match="rollout 'a' is unknown"):
        store.append_group(record)
    end_rollout(store, "a", "g")
    store.append_rollout(RolloutRecord(rollout_id="b", group_id="g", run_id=RUN, task_id="t"))
    scores = {"a": [Score(value=1.0, name="checks")]}
    with pytest.raises(StoreError, match="rollout 'b' is still open"):
        store.append_group(record, scores)
    assert store.scores("a") == []
    end_rollout(store, "b", "g", Ending.ENGINE_ERROR)
    with pytest.raises(StoreError, match="rollout 'a' ended as 'answered' and has no score"):
        store.append_group(record)
    closed = store.append_group(record, scores)
    assert store.append_group(record, scores) == closed
    assert [t.rollout_id for t in store.group("g").trajectories] == ["a", "b"]
    assert [t.rollout_id for t in store.group("g").scored] == ["a"]


def test_what_ended_in_an_open_group_is_found_again_on_resume(store: Store) -> None:
    store.open_group(GroupRecord(group_id="g", run_id=RUN, task_id="t", split="train", position=4))
    end_rollout(store, "a", "g")
    store.append_rollout(RolloutRecord(rollout_id="b", group_id="g", run_id=RUN, task_id="t"))
    assert store.abandon_open_rollouts(RUN) == ["b"]
    assert store.rollout("b").ending is Ending.INTERRUPTED
    (group,) = store.open_groups(RUN)
    assert [r.rollout_id for r in store.rollouts(group_id=group.group_id, ended=True)] == ["a", "b"]
    assert store.next_position(RUN) == 5


def test_a_group_is_never_consumed_twice_in_one_history(store: Store) -> None:
    groups = [close_group(store, number) for number in range(3)]
    store.consume(RUN, groups[:1], step=1)
    with pytest.raises(StoreError, match="consumed at step 1"):
        store.consume(RUN, [groups[1], groups[0]], step=2)
    assert [g.group_id for g in store.unconsumed_groups(RUN)] == groups[1:]
    with pytest.raises(StoreError, match="not a closed group"):
        store.consume(RUN, ["nonsense"], step=2)


def test_policies_and_checkpoints_after_the_checkpoint_are_undone(store: Store) -> None:
    for step in (1, 2, 3):
        store.append_policy(
            PolicyRecord(run_id=RUN, version=step, model=f"policy-v{step}", adapter_path="p", step=step)
        )
    for step in (1, 2):
        store.append_checkpoint(CheckpointRecord(run_id=RUN, step=step, path=f"c{step}", policy_version=step))
    with pytest.raises(StoreError, match="exists as 'policy-v3'"):
        store.append_policy(PolicyRecord(run_id=RUN, version=3, model="x", adapter_path="p", step=3))
    newest = store.latest_checkpoint(RUN)
    assert newest is not None
    store.rollback_to(RUN, newest.step)
    policy = store.latest_policy(RUN)
    assert policy is not None
    assert policy.version == 2
    store.append_policy(PolicyRecord(run_id=RUN, version=3, model="policy-v3-again", adapter_path="q", step=3))


@given(st.lists(st.sampled_from(["close", "consume", "checkpoint", "crash"]), max_size=40))
@settings(max_examples=40, deadline=None)
def test_any_order_of_crashes_trains_each_group_once_in_the_surviving_history(events: list[str]) -> None:
    """A trainer in small: its weights are the groups it trained; a checkpoint saves them, a crash loads them."""
    with TemporaryDirectory() as folder, Store(Path(folder) / "traces.db") as store:
        closed = 0
        weights: list[str] = []
        saved: list[str] = []
        step = 0
        for event in events:
            if event == "close":
                close_group(store, closed)
                closed += 1
            elif event == "consume" and (found := store.unconsumed_groups(RUN, limit=2)):
                step += 1
                store.consume(RUN, [g.group_id for g in found], step)
                weights = [*weights, *(g.group_id for g in found)]
            elif event == "checkpoint":
                saved = weights
                store.append_checkpoint(CheckpointRecord(run_id=RUN, step=step, path="p", policy_version=step))
            elif event == "crash":
                checkpoint = store.latest_checkpoint(RUN)
                step = checkpoint.step if checkpoint is not None else 0
                store.rollback_to(RUN, step)
                weights = saved
            assert len(weights) == len(set(weights))
            waiting = [g.group_id for g in store.unconsumed_groups(RUN)]
            assert sorted([*weights, *waiting]) == sorted(f"g{number}" for number in range(closed))
