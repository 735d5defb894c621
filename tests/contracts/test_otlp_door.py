"""An instrumented agent's own spans, sent by the real OTel exporter, join the rollout whose key is in the address."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from harness.gateway import otlp_door
from tests.model_doors import Doors, serve_doors
from tests.scripted_engine import ScriptedEngine, serve_engine
from traces.span import new_span_id, new_trace_id

TRACE, ROOT = new_trace_id(), new_span_id()


@asynccontextmanager
async def doors_in(folder: Path) -> AsyncGenerator[Doors]:
    async with serve_engine(ScriptedEngine(lambda _: "x<|im_end|>")) as url, serve_doors(url, folder) as doors:
        yield doors


def send_spans(otlp_url: str, traceparent: str | None) -> None:
    """Two spans of an agent, in the trace it was given or in one of its own, protobuf and gzipped."""
    exporter = OTLPSpanExporter(endpoint=f"{otlp_url}/v1/traces", compression=Compression.Gzip)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("my-agent")
    context = TraceContextTextMapPropagator().extract({"traceparent": traceparent}) if traceparent else None
    with tracer.start_as_current_span("plan", context=context, attributes={"harness.rollout.id": "somebody else's"}):
        tracer.start_span("look up", attributes={"kept": "yes"}).end()
    provider.shutdown()


@pytest.mark.parametrize("traceparent", [f"00-{TRACE}-{ROOT}-01", None])
async def test_spans_of_an_agent_join_its_rollouts_trace(tmp_path: Path, traceparent: str | None) -> None:
    async with doors_in(tmp_path) as doors:
        opened = await doors.open(trace_id=TRACE, parent_span_id=ROOT)
        await asyncio.to_thread(send_spans, opened.otlp_url, traceparent)
        inner, outer = doors.spans()
    assert (inner.name, outer.name) == ("look up", "plan")
    assert {inner.trace_id, outer.trace_id} == {TRACE}
    assert (inner.parent_id, outer.parent_id) == (outer.span_id, ROOT)
    assert outer.attributes == {}
    assert inner.attributes == {"kept": "yes"}
    assert inner.source == "otlp my-agent"


def json_request(*span_ids: str) -> dict[str, Any]:
    spans = [{"traceId": TRACE, "spanId": span_id, "name": "s"} for span_id in span_ids]
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}


async def test_json_comes_in_gzipped_and_the_rollouts_own_span_cannot_be_forged(tmp_path: Path) -> None:
    async with doors_in(tmp_path) as doors:
        opened = await doors.open(trace_id=TRACE, parent_span_id=ROOT)
        content = gzip.compress(json.dumps(json_request(ROOT, "b" * 16)).encode())
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        async with doors.http.post(f"{opened.otlp_url}/v1/traces", data=content, headers=headers) as answer:
            assert answer.status == 200
        assert [span.span_id for span in doors.spans()] == ["b" * 16]


async def test_what_cannot_be_taken_is_refused_and_nothing_joins_after_the_seal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_door, "MOST_SPANS", 2)
    async with doors_in(tmp_path) as doors:
        opened = await doors.open()
        url = f"{opened.otlp_url}/v1/traces"
        statuses: list[int] = []
        for body in (json_request("a" * 16), json_request("b" * 16, "c" * 16), {"resourceSpans": 1}):
            async with doors.http.post(url, json=body) as answer:
                statuses.append(answer.status)
        async with doors.http.get(url) as answer:
            statuses.append(answer.status)
        await doors.admin.seal("r-1")
        async with doors.http.post(url, json=json_request("d" * 16)) as answer:
            statuses.append(answer.status)
        assert statuses == [200, 413, 400, 405, 410]
        assert [span.span_id for span in doors.spans()] == ["a" * 16]
