"""Cassettes: a recorded call is answered as it was, near misses by rule, anything else not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.assemble import assemble_trajectory
from traces.build import ModelCall, Outcome, Place, ToolUse, chat_span, tool_span
from traces.cassette import (
    Cassette,
    CassetteError,
    Match,
    Player,
    RecordedCall,
    load_cassettes,
    merge_cassettes,
    record_cassette,
    save_cassettes,
)
from traces.records import RolloutRecord
from traces.trajectory import Ending, Trajectory

TOOLS = [{"type": "function", "function": {"name": "get_order"}}]


def trajectory() -> Trajectory:
    place = Place(trace_id="1" * 32, rollout_id="r", group_id="g", run_id="run")
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    call = ModelCall(model="m", messages=messages, tools=TOOLS, output={"role": "assistant", "content": "x"})
    spans = [chat_span(place, Outcome(start_ns=1, end_ns=2), call)]
    for index, result in enumerate(("pending", "cancelled")):
        use = ToolUse(name="get_order", arguments='{"id": "#W1"}', result=result)
        spans.append(tool_span(place, Outcome(start_ns=3 + index, end_ns=4 + index), use))
    record = RolloutRecord(rollout_id="r", group_id="g", run_id="run", task_id="t", ending=Ending.ANSWERED)
    return assemble_trajectory(spans, record, [])


def cassette(*calls: tuple[str, str, str]) -> Cassette:
    made = [RecordedCall(name=name, arguments=arguments, result=result) for name, arguments, result in calls]
    return Cassette(task_id="t", system_prompt="", user_message="u", calls=made)


def test_a_trajectory_becomes_a_request_its_tools_and_its_results() -> None:
    made = record_cassette(trajectory())
    assert (made.task_id, made.system_prompt, made.user_message, made.tools) == ("t", "be kind", "hi", TOOLS)
    assert [call.result for call in made.calls] == ["pending", "cancelled"]


def test_a_call_made_again_gets_the_answers_in_their_order() -> None:
    player = Player(record_cassette(trajectory()))
    played = [player.play("get_order", '{"id":"#W1"}') for _ in range(3)]
    assert [p and (p.call.result, p.repeated) for p in played] == [
        ("pending", False),
        ("cancelled", False),
        ("cancelled", True),
    ]


@pytest.mark.parametrize(
    ("recorded", "asked", "match"),
    [
        ('{"a": 1, "b": 2}', '{"b":2,"a":1}', Match.EXACT),
        ("", "{}", Match.EXACT),
        ("{broken", "{broken", Match.EXACT),
        ('{"a": "Ann Lee"}', '{"a": " ann  lee "}', Match.NORMALISED),
        ('{"a": 1}', '{"a": "1.0", "b": null}', Match.NORMALISED),
        ('{"a": ["x", "y"]}', '{"a": ["y", "x"]}', Match.NORMALISED),
        ('{"zip": "07030"}', '{"zip": 7030}', None),
        ('{"a": [{"x": 1}, {"x": 2}]}', '{"a": [{"x": 2}, {"x": 1}]}', None),
        ('{"a": true}', '{"a": 1}', None),
        ('{"a": 1}', '{"a": 2}', None),
    ],
)
def test_a_near_miss_is_found_by_rule_and_nothing_else_is(recorded: str, asked: str, match: Match | None) -> None:
    played = Player(cassette(("f", recorded, "r"))).play("f", asked)
    assert (played.match if played else None) == match


def test_an_exact_answer_goes_before_a_normalised_one() -> None:
    player = Player(cassette(("f", '{"a": "X"}', "upper"), ("f", '{"a": "x"}', "lower")))
    played = player.play("f", '{"a": "x"}')
    assert played is not None
    assert (played.call.result, played.match) == ("lower", Match.EXACT)
    assert player.play("g", "{}") is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.tuples(st.sampled_from("fg"), json_values), max_size=8))
def test_playing_the_record_in_order_gives_every_recorded_result(calls: list[tuple[str, object]]) -> None:
    made = cassette(*((name, json.dumps(value), str(index)) for index, (name, value) in enumerate(calls)))
    player = Player(made)
    for call in made.calls:
        played = player.play(call.name, call.arguments)
        assert played is not None
        assert (played.call, played.match, played.repeated) == (call, Match.EXACT, False)


def test_cassettes_of_one_task_merge_and_of_two_do_not() -> None:
    merged = merge_cassettes([cassette(("f", "{}", "1")), cassette(("g", "{}", "2"))])
    assert [call.name for call in merged.calls] == ["f", "g"]
    with pytest.raises(ValueError, match="not of one"):
        merge_cassettes([])


def test_a_file_of_cassettes_is_read_back_and_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cassettes.jsonl"
    made = [record_cassette(trajectory()), cassette()]
    assert save_cassettes(path, made) == 2
    assert load_cassettes(path) == made
    path.write_text(path.read_text() + '{"format": 1}\n')
    with pytest.raises(CassetteError, match="line 3"):
        load_cassettes(path)
    path.write_text('{"format": 9, "task_id": "", "system_prompt": "", "user_message": "", "tools": [], "calls": []}\n')
    with pytest.raises(CassetteError, match="format 9"):
        load_cassettes(path)
