"""The one file that imports the OpenTelemetry SDK: real OTel spans into our store, and our spans out over OTLP.

It knows nothing about rollouts or gateways. Agents in this process and servers of ours that speak OTel trace through
`make_provider`; `harness show --otlp` sends stored rollouts to any backend through `export_otlp`, and `harness traces
export` writes them into a file.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags
from opentelemetry.trace import SpanKind as OtelKind

from traces import semconv
from traces.attributes import outside_attributes, read_belonging
from traces.build import score_event
from traces.database import StoreError
from traces.openinference import openinference_attributes
from traces.span import Span, SpanEvent, SpanKind, SpanStatus
from traces.store import Store

TRACES_PATH = "/v1/traces"
SERVICE = "harness"
_BATCH = 256
_ID_FIELDS = frozenset({"traceId", "spanId", "parentSpanId"})
_STATUS = {SpanStatus.UNSET: StatusCode.UNSET, SpanStatus.OK: StatusCode.OK, SpanStatus.ERROR: StatusCode.ERROR}


class StoreExporter(SpanExporter):
    """An OTel exporter whose backend is a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Commit the spans; raises StoreError, which the SDK logs."""
        self._store.append_spans([to_record(span) for span in spans])
        return SpanExportResult.SUCCESS


def make_provider(store: Store, *, otlp_endpoint: str | None = None, service: str = SERVICE) -> TracerProvider:
    """A provider whose ended spans are in the store before `end()` returns, and also go to an OTLP endpoint if given.

    Spans carry W3C ids; `harness.rollout.id` and its kin among the attributes say where a span belongs.
    """
    provider = TracerProvider(resource=Resource.create({semconv.SERVICE_NAME: service}))
    provider.add_span_processor(SimpleSpanProcessor(StoreExporter(store)))
    if otlp_endpoint is not None:
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=traces_url(otlp_endpoint))))
    return provider


def traces_url(endpoint: str) -> str:
    """The URL that takes spans, from a base URL or from that URL itself."""
    return endpoint if endpoint.endswith(TRACES_PATH) else endpoint.rstrip("/") + TRACES_PATH


def export_otlp(
    store: Store,
    endpoint: str,
    rollout_ids: Iterable[str],
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 10.0,
) -> int:
    """Send the spans of these rollouts, scores as evaluation events, to an OTLP/HTTP backend; how many spans went.

    Raises StoreError where the backend is not there or refuses them; sending again is harmless.
    """
    url = traces_url(endpoint)
    exporter = OTLPSpanExporter(endpoint=url, headers=dict(headers or {}), timeout=timeout_s)
    sent = 0
    try:
        for rollout_id in rollout_ids:
            spans = with_scores(store, rollout_id)
            for start in range(0, len(spans), _BATCH):
                batch = [to_otel(span) for span in spans[start : start + _BATCH]]
                if exporter.export(batch) is not SpanExportResult.SUCCESS:
                    found = f"the backend did not take them, after {sent} spans of earlier rollouts"
                    fix = "check the URL, that the backend runs, and the log line above"
                    raise StoreError(f"export {len(batch)} spans of rollout {rollout_id!r} to {url}", found, fix)
                sent += len(batch)
    finally:
        exporter.shutdown()
    return sent


def write_otlp_file(store: Store, path: Path, rollout_ids: Iterable[str]) -> int:
    """Write the spans of these rollouts as OTLP JSON, one object a rollout and line; how many spans.

    The form of the Collector's file exporter: any OTLP tool reads it, and `harness traces import` does.
    """
    written = 0
    with path.open("w", encoding="utf-8") as lines:
        for rollout_id in rollout_ids:
            spans = [to_otel(span) for span in with_scores(store, rollout_id)]
            request = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
            lines.write(json.dumps(_hex_ids(request)) + "\n")
            written += len(spans)
    return written


def _hex_ids(value: Any) -> Any:
    """Protobuf's JSON writes ids in base64, OTLP's in hex."""
    if isinstance(value, dict):
        return {
            key: base64.b64decode(item).hex() if key in _ID_FIELDS else _hex_ids(item)
            for key, item in cast("dict[str, Any]", value).items()
        }
    return [_hex_ids(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def with_scores(store: Store, rollout_id: str) -> list[Span]:
    """The spans of a rollout; scores given after its root span had ended are events of that span too."""
    spans = store.spans(rollout_id)
    roots = [s for s in spans if s.attributes.get(semconv.OPERATION_NAME) == semconv.OPERATION_INVOKE_AGENT]
    if not roots:
        return spans
    root = min(roots, key=lambda span: span.start_ns)
    told = {event.attributes.get(semconv.EVALUATION_NAME) for event in root.events}
    late = tuple(score_event(s, root.end_ns) for s in store.scores(rollout_id) if s.name not in told)
    return [replace(span, events=(*span.events, *late)) if span is root else span for span in spans]


def to_otel(span: Span) -> ReadableSpan:
    """A stored span as the SDK's, with GenAI and OpenInference attributes."""
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=_context(span.trace_id, span.parent_id) if span.parent_id is not None else None,
        resource=Resource.create({semconv.SERVICE_NAME: SERVICE}),
        attributes=outside_attributes(span) | openinference_attributes(span),
        events=[Event(event.name, dict(event.attributes), event.time_ns) for event in span.events],
        kind=OtelKind[span.kind.name],
        status=Status(_STATUS[span.status], span.status_message if span.status is SpanStatus.ERROR else None),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=InstrumentationScope(span.source),
    )


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def to_record(span: ReadableSpan) -> Span:
    """A span of the SDK as we store it."""
    context = cast("SpanContext", span.get_span_context())
    belonging = read_belonging({key: _plain(value) for key, value in (span.attributes or {}).items()})
    scope = span.instrumentation_scope
    return Span(
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id=f"{span.parent.span_id:016x}" if span.parent is not None else None,
        name=span.name,
        kind=SpanKind[span.kind.name],
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        status=SpanStatus[span.status.status_code.name],
        status_message=span.status.description or "",
        attributes=belonging.attributes,
        events=tuple(
            SpanEvent(event.name, event.timestamp, {k: _plain(v) for k, v in (event.attributes or {}).items()})
            for event in span.events
        ),
        rollout_id=belonging.rollout_id,
        group_id=belonging.group_id,
        run_id=belonging.run_id,
        policy_version=belonging.policy_version,
        tokens=belonging.tokens,
        source=scope.name if scope is not None else "",
    )


def _plain(value: Any) -> Any:
    """OTel keeps lists as tuples and structured values as read-only mappings."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    return value
