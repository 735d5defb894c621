"""Importers against what the real SDKs, exporters and a real Phoenix wrote: the same messages, tools and results."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
SOURCES = [
    ("openinference", "openinference.otlp.jsonl"),
    ("otlp", "genai.otlp.jsonl"),
    ("phoenix", "phoenix_spans.json"),
    ("openllmetry", "openllmetry.otlp.jsonl"),
    ("langfuse", "langfuse.otlp.jsonl"),
    ("langsmith", "langsmith.jsonl"),
    ("logfire", "logfire.otlp.jsonl"),
    ("weave", "weave.jsonl"),
    ("jaeger", "jaeger.json"),
]
WITHOUT_FINISH_REASON = {"langfuse"}
WITHOUT_AGENT = {"logfire"}


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
    assert first.model == "tiny"
    assert second.finish_reason == ("" if source in WITHOUT_FINISH_REASON else "stop")
    assert first.agent_name == (None if source in WITHOUT_AGENT else "support")
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


def test_results_that_only_the_next_request_quotes_are_tool_calls_with_a_named_gap(tmp_path: Path) -> None:
    runs = [json.loads(line) for line in (FIXTURES / "langsmith.jsonl").read_text().splitlines()]
    path = tmp_path / "model_calls_only.jsonl"
    path.write_text("".join(json.dumps(run) + "\n" for run in runs if run["run_type"] != "tool"))
    (one,) = gather(READERS["langsmith"](path), "imported")
    (call,) = one.trajectory().tool_calls
    assert (call.name, call.call_id, call.turn_index) == ("get_order", "call_1", 0)
    assert json.loads(call.result) == {"status": "pending"}
    assert "tool_results_from_messages" in one.record.evidence_gaps


def test_what_no_reader_understands_is_a_named_gap(tmp_path: Path) -> None:
    runs = (FIXTURES / "langsmith.jsonl").read_text()
    path = tmp_path / "langchain.jsonl"
    path.write_text(runs.replace('{"role": "system", "content": "You are a support agent."}', '{"lc": 1}'))
    (one,) = gather(READERS["langsmith"](path), "imported")
    assert "unread_content" in one.record.evidence_gaps


def test_observations_of_langfuses_interface_read_as_what_its_sdk_sent(tmp_path: Path) -> None:
    (line,) = (FIXTURES / "langfuse.otlp.jsonl").read_text().splitlines()
    spans = json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    path = tmp_path / "observations.json"
    path.write_text(json.dumps({"data": [as_observation(span) for span in spans]}))
    (one,) = gather(READERS["langfuse"](path), "imported")
    sent = imported("langfuse", "langfuse.otlp.jsonl")
    got = one.trajectory()
    assert (got.task_id, got.answer, got.evidence_gaps) == (sent.task_id, sent.answer, sent.evidence_gaps)
    assert [call.result for call in got.tool_calls] == [call.result for call in sent.tool_calls]


def as_observation(span: dict[str, Any]) -> dict[str, Any]:
    """A span of the SDK as the server lists it: `ObservationsView` of its interface."""
    values = {a["key"].removeprefix("langfuse.observation."): a["value"].get("stringValue") for a in span["attributes"]}
    times = {
        name: datetime.fromtimestamp(int(span[key]) / 1e9, UTC).isoformat().replace("+00:00", "Z")
        for name, key in (("startTime", "startTimeUnixNano"), ("endTime", "endTimeUnixNano"))
    }
    return {
        "id": span["spanId"],
        "traceId": span["traceId"],
        "parentObservationId": span.get("parentSpanId"),
        "type": values["type"].upper(),
        "name": span["name"],
        "model": values.get("model.name"),
        "input": values.get("input"),
        "output": values.get("output"),
        "level": "DEFAULT",
        **times,
    }


@pytest.mark.parametrize("source", ["phoenix", "langsmith", "weave", "langfuse", "jaeger"])
@pytest.mark.parametrize("text", ["nonsense", '{"data": 5}', '{"data": [{"name": "x"}]}', '[{"context": 3}]', "[3]"])
def test_a_file_that_is_no_export_of_its_source_is_refused_in_words(tmp_path: Path, source: str, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ExportError, match=r"x\.json"):
        list(READERS[source](path))


def test_a_file_that_is_no_otlp_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("nonsense")
    with pytest.raises(OtlpError, match="OTLP"):
        list(READERS["otlp"](path))
