"""Law 1 and law 3 on forests: each sampled token is trained exactly once, with the version that sampled it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.conversation import read_conversation
from traces.forest import TokenForest
from traces.node import ForkCause
from traces.span import Tokens
from traces.tokens import cut_rows, rows
from traces.trajectory import Ending, Ids, Trajectory, Turn
from traces.turn_filter import TurnFilter


def ids(*values: int) -> Ids:
    return np.array(values, np.int32)


def turn(
    index: int,
    prompt: Ids,
    completion: Ids,
    *,
    version: int = 0,
    messages: list[dict[str, Any]] | None = None,
    output: dict[str, Any] | None = None,
    **more: Any,
) -> Turn:
    values: dict[str, Any] = {
        "logprobs_T": -np.arange(1, len(completion) + 1, dtype=np.float32) - index,
        "tools": [],
    } | more
    return Turn(
        index=index,
        prompt_ids_T=prompt,
        completion_ids_T=completion,
        policy_version=version,
        model="m",
        finish_reason="stop",
        input_messages=messages or [],
        output_message=output or {"role": "assistant", "content": ""},
        span_id=f"{index:016x}",
        start_ns=index,
        end_ns=index,
        **values,
    )


def trajectory(turns: list[Turn]) -> Trajectory:
    return Trajectory(
        rollout_id="r", group_id="g", run_id="run", task_id="t", kind="", split="train", policy_version=0,
        turns=turns, tool_calls=[], ending=Ending.ANSWERED,
    )  # fmt: skip


@st.composite
def forests(draw: st.DrawFn) -> list[Turn]:
    """Turns that continue, sample again, branch off, cut into earlier turns or start anew, over four ids."""
    token = st.integers(0, 3)
    turns: list[Turn] = []
    for index in range(draw(st.integers(1, 9))):
        base = ids()
        if turns and draw(st.integers(0, 5)):
            other = turns[draw(st.integers(0, index - 1))]
            whole = np.concatenate([other.prompt_ids_T, other.completion_ids_T])
            base = draw(st.sampled_from([whole, other.prompt_ids_T, whole[: draw(st.integers(1, len(whole)))]]))
        prompt = np.concatenate([base, ids(*draw(st.lists(token, min_size=0 if len(base) else 1, max_size=4)))])
        completion = ids(*draw(st.lists(token, min_size=1, max_size=4)))
        turns.append(turn(index, prompt.astype(np.int32), completion, version=draw(st.integers(0, 2))))
    return turns


@given(forests())
def test_every_sampled_token_of_any_forest_is_trained_exactly_once(turns: list[Turn]) -> None:
    cut = cut_rows(trajectory(turns))
    trained = Counter(index for row in cut.rows for index in row.turn_indices)
    assert trained == Counter(range(len(turns)))
    assert sum(int(row.mask_T.sum()) for row in cut.rows) == sum(len(t.completion_ids_T) for t in turns)
    assert not cut.dropped
    assert cut.dropped_tokens == 0


@given(forests())
def test_a_masked_token_carries_the_id_logprob_and_version_of_its_turn(turns: list[Turn]) -> None:
    for row in rows(trajectory(turns)):
        assert len(row.ids_T) == len(row.mask_T) == len(row.logprobs_T) == len(row.versions_T)
        for index in row.turn_indices:
            t = turns[index]
            start = len(t.prompt_ids_T)
            sampled = slice(start, start + len(t.completion_ids_T))
            assert np.array_equal(row.ids_T[: sampled.stop], np.concatenate([t.prompt_ids_T, t.completion_ids_T]))
            assert row.mask_T[sampled].all()
            assert np.array_equal(row.logprobs_T[sampled], t.logprobs_T)
            assert (row.versions_T[sampled] == t.policy_version).all()
        assert (row.versions_T[row.mask_T] >= 0).all()


@given(forests(), st.data())
def test_a_missing_logprob_drops_rows_and_pads_nothing(turns: list[Turn], data: st.DataObject) -> None:
    broken = data.draw(st.integers(0, len(turns) - 1))
    t = turns[broken]
    turns[broken] = turn(broken, t.prompt_ids_T, t.completion_ids_T, logprobs_T=t.logprobs_T[:-1])
    cut = cut_rows(trajectory(turns))
    assert cut.dropped["no_logprobs"] >= 1
    trained = [index for row in cut.rows for index in row.turn_indices]
    assert broken not in trained
    kept = sum(len(turns[index].completion_ids_T) for index in trained)
    assert kept + cut.dropped_tokens == sum(len(t.completion_ids_T) for t in turns)


def conversation_turns(name: int, count: int) -> list[tuple[Ids, Ids]]:
    """Prompt and completion of `count` turns that continue each other exactly."""
    made: list[tuple[Ids, Ids]] = []
    held = ids(7, name, 8)
    for step in range(count):
        completion = ids(100 * name + step, 9)
        made.append((held, completion))
        held = np.concatenate([held, completion, ids(50 + step)])
    return made


def test_interleaved_parent_and_subagent_of_three_turns_make_two_rows() -> None:
    both = zip(conversation_turns(1, 3), conversation_turns(2, 3), strict=True)
    pairs = [pair for step in both for pair in step]
    cut = cut_rows(trajectory([turn(i, prompt, completion) for i, (prompt, completion) in enumerate(pairs)]))
    assert [row.turn_indices for row in cut.rows] == [(0, 2, 4), (1, 3, 5)]
    assert not cut.forks


def test_three_samples_of_one_prompt_make_three_rows() -> None:
    turns = [turn(i, ids(1, 2, 3), ids(4, 5 + i)) for i in range(3)]
    turns.append(turn(3, ids(1, 2, 3), ids(4, 5)))
    cut = cut_rows(trajectory(turns))
    assert len(cut.rows) == 4
    assert not cut.forks


def test_a_retry_of_the_client_leaves_one_row() -> None:
    turns = [turn(0, ids(1, 2, 3), ids(4, 5)), turn(1, ids(1, 2, 3), ids(6, 5), retry_count=1)]
    turns.append(turn(2, ids(1, 2, 3, 6, 5, 1), ids(2)))
    cut = cut_rows(trajectory(turns))
    assert [row.turn_indices for row in cut.rows] == [(1, 2)]
    assert cut.dropped == {"superseded_by_retry": 1}
    assert cut.dropped_tokens == 2


def test_a_turn_without_token_ids_is_counted_and_leaves_the_others_alone() -> None:
    cut = cut_rows(trajectory([turn(0, ids(), ids()), turn(1, ids(1), ids(2))]))
    assert cut.dropped == {"no_token_ids": 1}
    assert [row.turn_indices for row in cut.rows] == [(1,)]


def test_tokens_of_a_foreign_model_are_never_trained() -> None:
    cut = cut_rows(trajectory([turn(0, ids(1), ids(2), version=-1)]))
    assert not cut.rows
    assert cut.dropped == {"no_policy_version": 1}


USER = {"role": "user", "content": "cancel it"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "done"}
SECOND_PROMPT_START = 5


def second_turn(prompt: Ids, messages: list[dict[str, Any]], first_output: dict[str, Any]) -> Any:
    first = turn(0, ids(1, 2, 3), ids(4, 5), messages=[USER], output=first_output)
    return cut_rows(trajectory([first, turn(1, prompt, ids(9), messages=messages)]))


def test_a_continued_turn_is_no_fork_whatever_the_json_spacing_says() -> None:
    respaced = CALL | {"tool_calls": [{"id": "x", "function": {"name": "f", "arguments": '{"a":1}'}}]}
    cut = second_turn(ids(1, 2, 3, 4, 5, 6), [USER, respaced, RESULT], CALL)
    assert not cut.forks
    assert len(cut.rows) == 1


def test_a_rewritten_tool_call_forks_with_its_cause_message_and_token() -> None:
    cut = second_turn(ids(1, 2, 3, 4, 8, 6), [USER, CALL, RESULT], CALL)
    (fork,) = cut.forks
    assert (fork.cause, fork.message_index, fork.token_index) == (ForkCause.TOOL_JSON, 1, 4)
    assert (fork.node_index, fork.left_index, fork.drift_tokens) == (1, 0, 1)
    assert cut.drift_tokens == 1


def test_stripped_reasoning_forks_where_the_completion_began() -> None:
    thought = {"role": "assistant", "content": "ok", "reasoning": "hm"}
    cut = second_turn(ids(1, 2, 3, 5, 6), [USER, {"role": "assistant", "content": "ok"}, USER], thought)
    (fork,) = cut.forks
    assert (fork.cause, fork.message_index, fork.token_index) == (ForkCause.REASONING_STRIPPED, 1, 3)
    assert cut.drift_tokens == 2


def test_a_template_that_renders_the_past_anew_forks_as_template() -> None:
    plain = {"role": "assistant", "content": "ok"}
    cut = second_turn(ids(1, 7, 3, 4, 5, 6), [USER, plain, USER], plain)
    (fork,) = cut.forks
    assert (fork.cause, fork.message_index, fork.token_index) == (ForkCause.TEMPLATE, 0, 1)


def test_an_edited_answer_forks_without_counting_as_drift() -> None:
    edited = {"role": "assistant", "content": "something else"}
    cut = second_turn(ids(1, 2, 3, 8, 5, 6), [USER, edited, USER], CALL)
    (fork,) = cut.forks
    assert (fork.cause, fork.message_index, fork.token_index) == (ForkCause.EDITED_HISTORY, 1, 3)
    assert cut.drift_tokens == 0
    assert len(cut.rows) == 2


def test_a_first_message_that_was_rewritten_around_kept_answers_is_an_edit() -> None:
    other = {"role": "user", "content": "summary of before"}
    cut = second_turn(ids(1, 6, 3, 4, 5, 6), [other, CALL, RESULT], CALL)
    (fork,) = cut.forks
    assert (fork.cause, fork.message_index, fork.token_index) == (ForkCause.EDITED_HISTORY, 0, 1)


def test_a_changed_tool_list_is_an_edit_at_message_minus_one() -> None:
    first = turn(0, ids(1, 2, 3), ids(4, 5), messages=[USER], output=CALL)
    tools = [{"type": "function", "function": {"name": "g"}}]
    second = turn(1, ids(9, 2, 3, 4, 5), ids(9), messages=[USER, CALL, RESULT], tools=tools)
    (fork,) = cut_rows(trajectory([first, second])).forks
    assert (fork.cause, fork.message_index, fork.token_index) == (ForkCause.EDITED_HISTORY, -1, 0)


def test_a_branch_from_an_earlier_turn_is_no_fork() -> None:
    result_b = RESULT | {"content": "other world"}
    turns = [
        turn(0, ids(1, 2, 3), ids(4, 5), messages=[USER], output=CALL),
        turn(1, ids(1, 2, 3, 4, 5, 6), ids(9), messages=[USER, CALL, RESULT]),
        turn(2, ids(1, 2, 3, 4, 5, 7), ids(9), messages=[USER, CALL, result_b]),
    ]
    cut = cut_rows(trajectory(turns))
    assert not cut.forks
    assert [row.turn_indices for row in cut.rows] == [(0, 1), (2,)]


def test_a_subagent_with_its_own_task_is_no_fork() -> None:
    turns = [
        turn(0, ids(1, 2, 3), ids(4, 5), messages=[USER], output=CALL),
        turn(1, ids(1, 2, 9), ids(4, 5), messages=[{"role": "user", "content": "sub task"}]),
    ]
    assert not cut_rows(trajectory(turns)).forks


def test_a_replaced_completion_without_messages_forks_for_unknown_cause() -> None:
    cut = cut_rows(trajectory([turn(0, ids(1, 2, 3), ids(4, 5)), turn(1, ids(1, 2, 3, 4, 6, 7), ids(9))]))
    (fork,) = cut.forks
    assert (fork.cause, fork.message_index, fork.token_index) == (ForkCause.UNKNOWN, None, 4)


def test_the_live_forest_finds_the_turn_that_a_request_continues() -> None:
    forest = TokenForest()
    first = read_conversation([USER])
    assert forest.continued(first) is None
    node = forest.attach(Tokens(ids(1, 2, 3), ids(4, 5), np.zeros(2, np.float32)), 3, first.answered(CALL))
    assert forest.continued(read_conversation([USER, CALL, RESULT])) is node
    assert forest.continued(read_conversation([USER, RESULT])) is None
    assert forest.deepest_match(ids(1, 2, 3, 4, 5, 6)) == (node, SECOND_PROMPT_START)
    assert forest.deepest_match(ids(1, 2, 3, 4)) == (None, 0)
    assert node.sequence().tolist() == [1, 2, 3, 4, 5]


def test_turns_left_out_are_context_and_never_trained() -> None:
    triage = turn(0, ids(1, 2), ids(3), agent_name="triage", asked_model="small")
    expert = turn(1, ids(9, 8), ids(7, 6), agent_name="expert", asked_model="large")
    again = turn(2, ids(9, 8, 7, 6, 5), ids(4), agent_name="expert", asked_model="large")
    told = trajectory([triage, expert, again])

    def trained(**only: Any) -> list[tuple[int, ...]]:
        return [tuple(row.ids_T[row.mask_T]) for row in cut_rows(told, TurnFilter(**only)).rows]

    assert trained() == [(3,), (7, 6, 4)]
    assert trained(agents=("expert",)) == trained(models=("large",)) == [(7, 6, 4)]
    assert trained(turns="-1:") == [(4,)]
    assert trained(agents=("triage", "expert"), turns=":2") == [(3,), (7, 6)]
    only_last = cut_rows(told, TurnFilter(turns="-1:"))
    assert list(only_last.rows[0].ids_T) == [9, 8, 7, 6, 5, 4]
    assert dict(only_last.dropped) == {"not_chosen": 1}


def test_a_turn_filter_that_is_no_slice_is_refused() -> None:
    with pytest.raises(ValueError, match="is no slice of turns"):
        TurnFilter(turns="3").chosen([])
