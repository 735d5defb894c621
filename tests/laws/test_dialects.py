"""An answer that a client got as items or blocks and sends back says what was sampled, whatever it was."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harness.gateway.dialects import completions
from harness.gateway.dialects.blocks import answer_blocks, read_messages, read_system
from harness.gateway.dialects.items import output_items, read_input
from harness.gateway.record import AnswerRecord, WrittenText
from traces.conversation import message_key

TEXTS = st.one_of(st.none(), st.text(max_size=20))
VALUES = st.one_of(st.text(max_size=5), st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False))
ARGUMENTS = st.one_of(
    st.dictionaries(st.text(max_size=5), VALUES, max_size=3).map(lambda given: json.dumps(given, indent=1)),
    st.sampled_from(["", "{", "[1]", "null", '"text"']),
)


@st.composite
def answers(draw: st.DrawFn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": draw(TEXTS)}
    reasoning = draw(TEXTS)
    if reasoning:
        message["reasoning"] = reasoning
    calls = draw(st.lists(st.tuples(st.text(min_size=1, max_size=5), ARGUMENTS), max_size=3))
    if calls:
        message["tool_calls"] = [
            {"id": f"call-{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for at, (name, arguments) in enumerate(calls)
        ]
    return message


@given(answers())
def test_an_answer_in_items_comes_back_as_the_message_it_was(message: dict[str, Any]) -> None:
    items = output_items(message, "a", "completed")
    results = [{"type": "function_call_output", "call_id": "c", "output": "x"}]
    read, result = read_input([*json.loads(json.dumps(items)), *results], {})
    assert message_key(read) == message_key(message)
    assert read.get("reasoning") == message.get("reasoning")
    assert result == {"role": "tool", "tool_call_id": "c", "content": "x"}


@given(answers(), st.booleans())
def test_an_answer_in_blocks_comes_back_as_the_message_it_was(message: dict[str, Any], numbers_rewritten: bool) -> None:
    blocks = json.loads(json.dumps(answer_blocks(message, "a")))
    for block in blocks:
        for name, value in block.get("input", {}).items():
            if numbers_rewritten and isinstance(value, float) and value.is_integer():
                block["input"][name] = int(value)  # as JavaScript writes it
    sampled = {call["id"]: call["function"]["arguments"] for call in message.get("tool_calls", ())}
    (read,) = read_messages([{"role": "assistant", "content": blocks}], sampled)
    assert message_key(read) == message_key(message)
    assert [call["function"]["arguments"] for call in read.get("tool_calls", ())] == list(sampled.values())


def test_an_edited_argument_is_an_edited_message() -> None:
    block = {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 2}}
    (read,) = read_messages([{"role": "assistant", "content": [block]}], {"c": '{"x": 1}'})
    assert json.loads(read["tool_calls"][0]["function"]["arguments"]) == {"x": 2}


def test_what_is_said_between_tool_results_stays_in_its_place() -> None:
    results = [{"type": "tool_result", "tool_use_id": i, "content": [{"type": "text", "text": i}]} for i in "ab"]
    content = [results[0], {"type": "text", "text": "wait"}, results[1], {"type": "text", "text": "go"}]
    read = read_messages([{"role": "user", "content": content}], {})
    assert [(message["role"], message["content"]) for message in read] == [
        ("tool", "a"), ("user", "wait"), ("tool", "b"), ("user", "go"),
    ]  # fmt: skip


def test_a_hash_that_changes_with_each_request_is_no_part_of_the_system_prompt() -> None:
    header = {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc"}
    assert read_system([header, {"type": "text", "text": "rules"}]) == [{"role": "system", "content": "rules"}]


def test_a_text_is_taken_apart_after_the_longest_text_that_was_completed() -> None:
    record = AnswerRecord()
    record.texts += [WrittenText("ab", []), WrittenText("abcd", []), WrittenText("abX", [])]
    request = completions.parse(b'{"prompt": "abcde"}', record)
    assert [json.loads(bytes(raw)) for raw in request.messages] == [{"role": "user", "content": "e"}]
