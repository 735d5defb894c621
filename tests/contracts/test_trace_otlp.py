"""OTLP as the real OTel SDK speaks it: our receiver reads its exporter, and our export is read back the same."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import StatusCode
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.testclient import TestClient

from traces import semconv
from traces.attributes import as_foreign, read_belonging
from traces.build import ModelCall, Outcome, Place, agent_span, chat_span
from traces.otlp import OtlpError, otlp_route, read_otlp, read_otlp_file
from traces.records import RolloutRecord
from traces.span import Span, SpanKind, SpanStatus, Tokens, new_trace_id
from traces.store import Store, StoreError
from traces.tracer import export_otlp, make_provider, to_otel
from traces.trajectory import Ending, Score

PROTOBUF = "application/x-protobuf"


class Receiver:
    """A real HTTP server with our route, in a thread."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        app = Starlette(routes=[otlp_route("/v1/traces", self._accept)])
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        ready = threading.Event()
        while not self._server.started:
            ready.wait(0.01)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    async def _accept(self, _request: Request, spans: list[Span]) -> None:
        self.spans.extend(spans)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.stop()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "traces.db") as opened:
        yield opened


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_the_receiver_reads_what_the_real_exporter_sends(receiver: Receiver, compression: Compression) -> None:
    provider = TracerProvider()
    exporter = OTLPSpanExporter(endpoint=f"{receiver.url}/v1/traces", compression=compression)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("an.agent").start_as_current_span("outer") as outer:
        outer.set_attribute("list", ["a", "b"])
        outer.set_attribute("tree", {"x": [1, {"y": True}]})
        outer.add_event("happened", {"n": 1.5})
        outer.set_status(StatusCode.ERROR, "it broke")
        context = outer.get_span_context()
        with provider.get_tracer("an.agent").start_as_current_span("inner"):
            pass
    inner, got = receiver.spans
    assert (got.trace_id, got.span_id) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert (inner.parent_id, inner.name, got.parent_id) == (got.span_id, "inner", None)
    assert got.attributes == {"list": ["a", "b"], "tree": {"x": [1, {"y": True}]}}
    assert (got.events[0].name, got.events[0].attributes) == ("happened", {"n": 1.5})
    assert (got.status, got.status_message, got.source) == (SpanStatus.ERROR, "it broke", "an.agent")
    assert 0 < got.start_ns <= got.end_ns


def recorded(store: Store) -> Place:
    place = Place(trace_id=new_trace_id(), rollout_id="r", group_id="g", run_id="run")
    root = agent_span(place, Outcome(start_ns=1, end_ns=9), "plain", {})
    tokens = Tokens(np.array([1, 2], np.int32), np.array([3], np.int32), np.array([-0.5], np.float32))
    call = ModelCall(
        model="m",
        messages=[{"role": "user", "content": "hi"}],
        tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        output={"role": "assistant", "content": "ho"},
        finish_reason="stop",
        tokens=tokens,
        policy_version=4,
    )
    store.append_spans([chat_span(place, Outcome(start_ns=2, end_ns=3), call), root])
    store.append_rollout(RolloutRecord(rollout_id="r", group_id="g", run_id="run", task_id="t", ending=Ending.ANSWERED))
    store.append_scores("r", [Score(value=0.5, name="ruler", explanation="half")])
    return place


def test_a_rollout_goes_out_over_otlp_and_comes_back_with_its_tokens(receiver: Receiver, store: Store) -> None:
    recorded(store)
    assert export_otlp(store, receiver.url, ["r"]) == 2
    chat, root = receiver.spans
    back = read_belonging(chat.attributes)
    stored = store.spans("r")[0]
    assert (back.rollout_id, back.group_id, back.run_id, back.policy_version) == ("r", "g", "run", 4)
    assert back.tokens == stored.tokens
    assert back.attributes[semconv.INPUT_MESSAGES] == stored.attributes[semconv.INPUT_MESSAGES]
    assert chat.attributes["llm.input_messages.0.message.content"] == "hi"
    assert chat.attributes["openinference.span.kind"] == "LLM"
    (event,) = root.events
    assert (event.name, event.attributes[semconv.EVALUATION_SCORE]) == (semconv.EVALUATION_EVENT, 0.5)


def test_exporting_to_nobody_says_where_and_what_to_check(store: Store) -> None:
    recorded(store)
    with pytest.raises(StoreError, match=r"export 2 spans of rollout 'r' to http://127.0.0.1:9/v1/traces"):
        export_otlp(store, "http://127.0.0.1:9", ["r"], timeout_s=1)


def test_json_and_protobuf_of_one_request_read_the_same(store: Store, tmp_path: Path) -> None:
    recorded(store)
    request = encode_spans([to_otel(span) for span in store.spans("r")])
    from_protobuf = read_otlp(request.SerializeToString(), PROTOBUF)
    as_json = MessageToDict(request)
    for span in as_json["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        # The specification says hex where protobuf's JSON says base64.
        for key in ("traceId", "spanId"):
            match = next(s for s in from_protobuf if s.name == span["name"])
            span[key] = {"traceId": match.trace_id, "spanId": match.span_id}[key]
    text = json.dumps(as_json)
    assert read_otlp(gzip.compress(text.encode()), "application/json", "gzip") == from_protobuf
    lines = tmp_path / "traces.jsonl"
    lines.write_text(f"{text}\n\n{text}\n")
    assert list(read_otlp_file(lines)) == from_protobuf * 2
    whole = tmp_path / "traces.json"
    whole.write_text(json.dumps(as_json, indent=1))
    assert list(read_otlp_file(whole)) == from_protobuf


def test_spans_of_a_real_tracer_are_in_the_store_when_they_end(store: Store) -> None:
    provider = make_provider(store)
    tracer = provider.get_tracer("harness")
    with tracer.start_as_current_span("invoke_agent x", attributes={semconv.ROLLOUT_ID: "r7", "a": (1, 2)}) as span:
        context = span.get_span_context()
    (stored,) = store.spans("r7")
    assert (stored.trace_id, stored.kind) == (f"{context.trace_id:032x}", SpanKind.INTERNAL)
    assert stored.attributes == {"a": [1, 2]}


def test_an_agent_cannot_forge_tokens_or_another_rollout() -> None:
    claim = Span(
        trace_id="t" * 32, span_id="s" * 16, name="chat m", start_ns=0, end_ns=0, source="harness", policy_version=1,
        attributes={semconv.ROLLOUT_ID: "other", semconv.PROMPT_IDS: "AQAAAA==", "kept": 1},
    )  # fmt: skip
    got = as_foreign(claim, Place(trace_id="t", rollout_id="mine", group_id="g", run_id="run"))
    assert got.attributes == {"kept": 1}
    assert (got.rollout_id, got.policy_version, got.tokens) == ("mine", None, None)
    assert got.source != "harness"


BAD: list[tuple[bytes, dict[str, str], str]] = [
    (b"\xff\xff\xff", {"content-type": PROTOBUF}, "no OTLP protobuf"),
    (b"{", {"content-type": "application/json"}, "no OTLP JSON"),
    (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{}]}]}]}', {"content-type": "application/json"}, "traceId"),
    (b"[]", {"content-type": "application/json"}, "no OTLP JSON"),
    (b"x", {"content-type": "text/plain"}, "text/plain"),
    (b"nonsense", {"content-type": PROTOBUF, "content-encoding": "gzip"}, "does not decompress"),
    (gzip.compress(b"x" * 1000)[:-9], {"content-type": PROTOBUF, "content-encoding": "gzip"}, "cut off"),
    (b"x", {"content-type": PROTOBUF, "content-encoding": "zstd"}, "zstd"),
    (gzip.compress(bytes(65 * 1024 * 1024)), {"content-type": PROTOBUF, "content-encoding": "gzip"}, "longer than"),
]


@pytest.mark.parametrize(("body", "headers", "said"), BAD)
def test_a_bad_body_gets_400_with_the_reason_in_its_own_form(body: bytes, headers: dict[str, str], said: str) -> None:
    async def accept(_request: Any, _spans: list[Span]) -> None:
        raise AssertionError("nothing to accept")

    client = TestClient(Starlette(routes=[otlp_route("/v1/traces", accept)]))
    answer = client.post("/v1/traces", content=body, headers=headers)
    assert answer.status_code == 400
    if headers["content-type"] == "application/json":
        assert answer.json()["code"] == 3
        assert said in answer.json()["message"]
    else:
        assert answer.content[:3] == bytes([8, 3, 18])
        assert said in answer.content[4:].decode()


def test_a_bad_line_of_a_file_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text('{"resourceSpans": []}\nnonsense\n')
    with pytest.raises(OtlpError, match="line 2"):
        list(read_otlp_file(path))
