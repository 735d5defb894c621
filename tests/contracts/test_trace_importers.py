"""Importers against what the real instrumentations and a real Phoenix wrote: the same messages, tools and results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from tests.flows.recorded import close_group, model_span
from traces.cassette import Player, record_cassette
from traces.importers import READERS
from traces.importers.gather import append_imported, gather
from traces.importers.rows import ExportError
from traces.otlp import OtlpError
from traces.store import Store
from traces.tokens import cut_rows
from traces.tracer import to_otel
from traces.trajectory import Ending, Trajectory

FIXTURES = Path(__file__).parent / "trace_fixtures"
REQUEST = "Where is my order #W1?"
SOURCES = [("otlp", "openinference.otlp.jsonl"), ("otlp", "genai.otlp.jsonl"), ("phoenix", "phoenix_spans.json")]


def imported(source: str, name: str) -> Trajectory:
    (one,) = gather(READERS[source](FIXTURES / name), "imported")
    return one.trajectory()


@pytest.mark.parametrize(("source", "name"), SOURCES)
def test_an_imported_trace_shows_the_messages_tools_and_results_of_its_source(source: str, name: str) -> None:
    got = imported(source, name)
    first, second = got.turns
    said = [(message["role"], message["content"]) for message in first.input_messages]
    assert said == [("system", "You are a support agent."), ("user", REQUEST)]
    (call,) = first.output_message["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("call_1", "get_order")
    assert json.loads(call["function"]["arguments"]) == {"order_id": "#W1"}
    answered = second.input_messages[-1]
    assert (answered["role"], answered["tool_call_id"]) == ("tool", "call_1")
    assert json.loads(answered["content"]) == {"status": "pending"}
    assert (second.output_message["content"], got.answer) == ("Order #W1 is pending.", "Order #W1 is pending.")
    assert (first.model, second.finish_reason, first.agent_name) == ("tiny", "stop", "support")
    assert [tool["function"]["name"] for tool in first.tools] == ["get_order"]
    assert first.tools[0]["function"]["parameters"]["required"] == ["order_id"]
    (used,) = got.tool_calls
    assert (used.name, used.turn_index, used.call_id) == ("get_order", 0, "call_1")
    assert json.loads(used.result) == {"status": "pending"}
    assert got.ending is Ending.ANSWERED


@pytest.mark.parametrize(("source", "name"), SOURCES)
def test_an_imported_trace_names_its_gaps_and_trains_nothing(source: str, name: str) -> None:
    got = imported(source, name)
    assert {"no_token_ids", "no_logprobs"} <= set(got.evidence_gaps)
    cut = cut_rows(got)
    assert (cut.rows, cut.dropped) == ([], {"no_token_ids": 2})


@pytest.mark.parametrize(("source", "name"), SOURCES)
def test_an_imported_trace_is_a_task_with_a_cassette(source: str, name: str) -> None:
    cassette = record_cassette(imported(source, name))
    assert (cassette.system_prompt, cassette.user_message) == ("You are a support agent.", REQUEST)
    played = Player(cassette).play("get_order", '{"order_id": "#w1"}')
    assert played is not None
    assert json.loads(played.call.result) == {"status": "pending"}


def test_the_same_request_from_two_sources_is_one_task() -> None:
    assert len({imported(source, name).task_id for source, name in SOURCES}) == 1


def test_importing_a_file_twice_adds_nothing_the_second_time(tmp_path: Path) -> None:
    read = READERS["otlp"]
    with Store(tmp_path / "traces.db") as store:
        for expected in (4, 0):
            rollouts = gather(read(FIXTURES / "genai.otlp.jsonl"), "imported")
            assert append_imported(store, rollouts) == expected
        (record,) = store.rollouts(run_id="imported")
        assert store.trajectory(record.rollout_id).answer == "Order #W1 is pending."


def test_our_own_export_comes_back_with_ids_and_logprobs(tmp_path: Path) -> None:
    span = model_span("r", [1, 2, 3], [4, 5])
    request = MessageToDict(encode_spans([to_otel(span)]))
    held = request["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    held |= {"traceId": span.trace_id, "spanId": span.span_id}
    path = tmp_path / "ours.jsonl"
    path.write_text(json.dumps(request) + "\n")
    (one,) = gather(READERS["otlp"](path), "again")
    (turn,) = one.trajectory().turns
    assert (one.record.rollout_id, turn.policy_version) == ("r", 2)
    assert turn.completion_ids_T.tolist() == [4, 5]
    assert turn.has_tokens


def test_content_that_an_exporter_cut_off_is_a_named_gap(tmp_path: Path) -> None:
    text = (FIXTURES / "genai.otlp.jsonl").read_text()
    cut = text.replace('[{\\"role\\":\\"system\\",', '[{\\"role\\":\\"sys', 1)
    assert cut != text
    path = tmp_path / "cut.jsonl"
    path.write_text(cut)
    (one,) = gather(READERS["otlp"](path), "imported")
    assert "truncated_content" in one.trajectory().evidence_gaps


def test_a_trace_without_model_calls_is_no_rollout(tmp_path: Path) -> None:
    with Store(tmp_path / "traces.db") as store:
        close_group(store, 1)
        assert gather(store.spans("g1-r0"), "imported") == []


@pytest.mark.parametrize("text", ["nonsense", '{"data": 5}', '{"data": [{"name": "x"}]}', '[{"context": 3}]'])
def test_a_file_that_is_no_phoenix_export_is_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ExportError, match=r"x\.json"):
        list(READERS["phoenix"](path))


def test_a_file_that_is_no_otlp_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("nonsense")
    with pytest.raises(OtlpError, match="OTLP"):
        list(READERS["otlp"](path))
