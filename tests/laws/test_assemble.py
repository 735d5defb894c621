"""Spans → trajectory: the inverse of building them, whole, ordered, and loud about what is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces import semconv
from traces.assemble import AssemblyError, assemble_trajectory
from traces.build import ModelCall, Outcome, Place, ToolUse, agent_span, chat_span, tool_span
from traces.messages import chat_message, chat_messages, chat_tool, genai_message, genai_tool
from traces.records import RolloutRecord
from traces.span import Span, SpanKind, Tokens, new_span_id, new_trace_id
from traces.trajectory import Ending, Score

PLACE = Place(trace_id=new_trace_id(), rollout_id="r", group_id="g", run_id="run")
RECORD = RolloutRecord(rollout_id="r", group_id="g", run_id="run", task_id="t", ending=Ending.ANSWERED, answer="done")
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
USER = {"role": "user", "content": "cancel it"}


def call(name: str, arguments: str, call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def asking(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def model_span(start: int, messages: list[dict[str, Any]], output: dict[str, Any] | None, **more: Any) -> Span:
    values: dict[str, Any] = {"finish_reason": "stop", "policy_version": 3} | more
    outcome = Outcome(start_ns=start, end_ns=start + 1)
    return chat_span(PLACE, outcome, ModelCall(model="m", messages=messages, output=output, tools=TOOLS, **values))


def used(start: int, name: str, arguments: str, **more: Any) -> Span:
    outcome = Outcome(start_ns=start, end_ns=start + 1)
    return tool_span(PLACE, outcome, ToolUse(name=name, arguments=arguments, result=f"result {start}", **more))


texts = st.text(max_size=8)
calls = st.builds(call, texts, st.sampled_from(["{}", '{"a":  1}', "{broken", ""]), texts)
parts = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, texts),
    st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, texts),
)
contents = st.one_of(st.none(), texts, st.lists(parts, min_size=1, max_size=3))
messages = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "developer"]), "content": contents}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.one_of(st.none(), texts)},
        optional={
            "tool_calls": st.lists(calls, min_size=1, max_size=3),
            "reasoning": st.text(min_size=1, max_size=5),
            "name": st.text(min_size=1, max_size=5),
            "refusal": st.text(min_size=1, max_size=5),
        },
    ),
    st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": texts, "content": texts}),
)


@given(messages)
def test_a_chat_message_survives_the_way_through_a_span(message: dict[str, Any]) -> None:
    assert chat_message(genai_message(message)) == message


def test_a_tool_definition_survives_the_way_through_a_span() -> None:
    assert chat_tool(genai_tool(TOOLS[0])) == TOOLS[0]
    strict = {"type": "function", "function": {"name": "f", "strict": True}}
    assert chat_tool(genai_tool(strict)) == strict


def test_a_message_with_two_tool_results_becomes_two_tool_messages() -> None:
    results = [{"type": "tool_call_response", "id": str(i), "response": {"n": i}} for i in range(2)]
    chat = chat_messages({"role": "user", "parts": results})
    assert [(m["role"], m["tool_call_id"], m["content"]) for m in chat] == [
        ("tool", "0", '{"n": 0}'),
        ("tool", "1", '{"n": 1}'),
    ]


def test_turns_carry_what_the_gateway_recorded_in_order_of_time() -> None:
    tokens = Tokens(np.array([1, 2], np.int32), np.array([3], np.int32), np.array([-0.5], np.float32))
    first = model_span(10, [USER], asking(call("f", "{}", "c1")), tokens=tokens, finish_reason="tool_calls")
    second = model_span(30, [USER], {"role": "assistant", "content": "done"})
    root = agent_span(PLACE, Outcome(start_ns=1, end_ns=99), "plain", {})
    scores = [Score(value=1.0, name="checks")]
    got = assemble_trajectory([second, root, used(20, "f", "{}"), first], RECORD, scores)
    assert [turn.span_id for turn in got.turns] == [first.span_id, second.span_id]
    turn = got.turns[0]
    assert (turn.index, turn.model, turn.finish_reason, turn.policy_version) == (0, "m", "tool_calls", 3)
    assert (turn.input_messages, turn.tools, turn.output_message) == ([USER], TOOLS, asking(call("f", "{}", "c1")))
    assert turn.prompt_ids_T.tolist() == [1, 2]
    assert turn.has_tokens
    assert (got.answer, got.ending, got.scores) == ("done", Ending.ANSWERED, scores)


def test_a_tool_call_is_joined_to_the_turn_that_asked_for_it() -> None:
    asked = asking(call("f", '{"a": 1}', "c1"), call("f", '{"a": 1}', "c2"), call("g", "{}", "c3"))
    spans = [
        model_span(10, [USER], asked),
        used(20, "f", '{"a":1}'),
        used(21, "f", '{ "a":1}'),
        used(22, "g", "{}", call_id="c3"),
        used(23, "h", "{}"),
        model_span(30, [USER], asking(call("f", '{"a": 1}', "c4"))),
        used(40, "f", '{"a": 1}'),
    ]
    got = assemble_trajectory(spans, RECORD, [])
    joined = [(tool.name, tool.turn_index, tool.call_id) for tool in got.tool_calls]
    assert sorted(joined[:2]) == [("f", 0, "c1"), ("f", 0, "c2")]
    assert joined[2] == ("g", 0, "c3")
    assert joined[3][:2] == ("h", None)
    assert joined[4] == ("f", 1, "c4")


def test_a_tool_call_is_joined_though_the_sdk_writes_its_servers_name_before_the_tools() -> None:
    asked = asking(call("mcp__shop__get_order", "{}", "c1"), call("cancel_order", "{}", "c2"))
    spans = [model_span(10, [USER], asked), used(20, "get_order", "{}"), used(21, "order", "{}")]
    joined = [(tool.name, tool.turn_index) for tool in assemble_trajectory(spans, RECORD, []).tool_calls]
    assert joined == [("get_order", 0), ("order", None)]


def test_a_tools_own_error_is_told_from_its_result() -> None:
    got = assemble_trajectory([used(1, "f", "{}", is_error=True), used(2, "f", "{}")], RECORD, [])
    assert [tool.is_error for tool in got.tool_calls] == [True, False]


def test_a_failed_model_call_is_no_turn() -> None:
    failed = chat_span(
        PLACE, Outcome(start_ns=1, end_ns=2, error_type="timeout"), ModelCall(model="m", messages=[USER])
    )
    assert assemble_trajectory([failed], RECORD, []).turns == []


def test_the_agents_own_spans_do_not_double_what_the_gateway_saw() -> None:
    foreign = Span(
        trace_id=PLACE.trace_id, span_id=new_span_id(), name="execute_tool f", kind=SpanKind.INTERNAL, start_ns=1,
        end_ns=2, rollout_id="r", source="someone",
        attributes={semconv.OPERATION_NAME: "execute_tool", semconv.TOOL_NAME: "f"},
    )  # fmt: skip
    assert len(assemble_trajectory([foreign, used(1, "f", "{}")], RECORD, []).tool_calls) == 1
    assert len(assemble_trajectory([foreign], RECORD, []).tool_calls) == 1


def test_missing_ids_and_logprobs_are_named_and_not_padded() -> None:
    short = Tokens(np.array([1], np.int32), np.array([3, 4], np.int32), np.array([-0.5], np.float32))
    got = assemble_trajectory([model_span(1, [USER], {"role": "assistant", "content": "x"}, tokens=short)], RECORD, [])
    assert got.evidence_gaps == ("no_logprobs",)
    assert len(got.turns[0].logprobs_T) == 1
    assert not got.turns[0].has_tokens
    none = assemble_trajectory([model_span(1, [USER], {"role": "assistant", "content": "x"})], RECORD, [])
    assert none.evidence_gaps == ("no_token_ids", "no_logprobs")


def test_an_open_rollout_or_a_foreign_span_is_refused_by_name() -> None:
    with pytest.raises(AssemblyError, match="'r' has not ended"):
        assemble_trajectory([], RolloutRecord(rollout_id="r", group_id="g", run_id="run", task_id="t"), [])
    other = Span(trace_id="t", span_id="s", name="n", start_ns=0, end_ns=0, rollout_id="other")
    with pytest.raises(AssemblyError, match="belongs to rollout 'other'"):
        assemble_trajectory([other], RECORD, [])
