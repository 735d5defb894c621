"""OTLP/HTTP in: requests as protobuf or JSON, gzipped or not, and files of JSON lines → our span records.

It knows nothing about stores, rollouts or who may send what. The gateway mounts `otlp_route` with what to do with the
spans; importers read files through `read_otlp_file`. Sources: opentelemetry-proto v1 and the OTLP 1.x specification
(JSON: hex ids, 64-bit integers as text, unknown fields ignored; failures: google.rpc.Status).
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from traces.span import Span, SpanEvent, SpanKind, SpanStatus

MOST_BYTES = 64 * 1024 * 1024
"""Longest body that is read, after decompression."""
_PROTOBUF = "application/x-protobuf"
_JSON = "application/json"
_KINDS = (SpanKind.INTERNAL, SpanKind.INTERNAL, SpanKind.SERVER, SpanKind.CLIENT, SpanKind.PRODUCER, SpanKind.CONSUMER)
_STATUS = (SpanStatus.UNSET, SpanStatus.OK, SpanStatus.ERROR)
_INVALID_ARGUMENT = 3

Accept = Callable[[Request, list[Span]], Awaitable[None]]
"""What is done with spans that arrived."""


class OtlpError(ValueError):
    """A body that is no OTLP trace request."""


def otlp_route(path: str, accept: Accept) -> Route:
    """A route that takes OTLP/HTTP trace requests; answers 200 only after `accept` has returned."""

    async def receive(request: Request) -> Response:
        kind = request.headers.get("content-type", _PROTOBUF).partition(";")[0].strip().lower()
        try:
            spans = read_otlp(await _body(request), kind, request.headers.get("content-encoding", ""))
        except OtlpError as error:
            return _failure(kind, str(error))
        await accept(request, spans)
        # An empty ExportTraceServiceResponse: everything was taken.
        return Response(b"{}" if kind == _JSON else b"", media_type=kind)

    return Route(path, receive, methods=["POST"])


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise OtlpError(f"the body is longer than {MOST_BYTES} bytes; send smaller batches")
    return bytes(body)


def _failure(kind: str, message: str) -> Response:
    if kind == _JSON:
        return Response(json.dumps({"code": _INVALID_ARGUMENT, "message": message}), 400, media_type=_JSON)
    # google.rpc.Status by hand: field 1 is the code, field 2 the message.
    text = message.encode()[:120]
    return Response(bytes([8, _INVALID_ARGUMENT, 18, len(text)]) + text, 400, media_type=_PROTOBUF)


def read_otlp(body: bytes, content_type: str, content_encoding: str = "") -> list[Span]:
    """The spans of one trace request; raises OtlpError where it is none."""
    data = _decompressed(body, content_encoding.strip().lower())
    if content_type == _JSON:
        try:
            return list(read_otlp_json(json.loads(data)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OtlpError(f"the body is no OTLP JSON trace request: {type(error).__name__} {error}") from error
    if content_type != _PROTOBUF:
        raise OtlpError(f"content type {content_type!r} is not read; send {_PROTOBUF} or {_JSON}")
    try:
        request = ExportTraceServiceRequest.FromString(data)
    except DecodeError as error:
        raise OtlpError(f"the body of {len(data)} bytes is no OTLP protobuf trace request: {error}") from error
    return [
        _from_proto(span, scope.scope.name)
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _decompressed(body: bytes, encoding: str) -> bytes:
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise OtlpError(f"content encoding {encoding!r} is not read; send gzip or none")
    # 32: zlib finds out by itself whether the header is gzip's or zlib's.
    stream = zlib.decompressobj(32 + zlib.MAX_WBITS)
    try:
        data = stream.decompress(body, MOST_BYTES)
    except zlib.error as error:
        raise OtlpError(f"the body does not decompress as {encoding}: {error}") from error
    if stream.unconsumed_tail or not stream.eof:
        raise OtlpError(f"the body is cut off, or longer than {MOST_BYTES} bytes once decompressed")
    return data


def _from_proto(span: ProtoSpan, scope: str) -> Span:
    return Span(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex() or None,
        name=span.name,
        kind=_KINDS[span.kind] if span.kind < len(_KINDS) else SpanKind.INTERNAL,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        status=_STATUS[span.status.code] if span.status.code < len(_STATUS) else SpanStatus.UNSET,
        status_message=span.status.message,
        attributes=_proto_attributes(span.attributes),
        events=tuple(
            SpanEvent(event.name, event.time_unix_nano, _proto_attributes(event.attributes)) for event in span.events
        ),
        source=scope,
    )


def _proto_attributes(pairs: Sequence[KeyValue]) -> dict[str, Any]:
    return {pair.key: _proto_value(pair.value) for pair in pairs}


def _proto_value(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    if which is None:
        return None
    if which == "array_value":
        return [_proto_value(item) for item in value.array_value.values]
    if which == "kvlist_value":
        return _proto_attributes(value.kvlist_value.values)
    if which == "bytes_value":
        # As OTLP JSON writes bytes.
        return base64.b64encode(value.bytes_value).decode("ascii")
    return getattr(value, which)


def read_otlp_file(path: Path) -> Iterator[Span]:
    """Spans of a file with one OTLP JSON object a line, as the Collector's file exporter writes, or one object in all.

    Raises OtlpError with the line number where a line is something else.
    """
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                spans = list(read_otlp_json(json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                if number > 1:
                    raise OtlpError(f"read {path}: line {number} is no OTLP JSON object ({error})") from error
                # The first line is not an object by itself: the file may be one object over many lines.
                spans = read_otlp(path.read_bytes(), _JSON)
                yield from spans
                return
            yield from spans


def read_otlp_json(request: Mapping[str, Any]) -> Iterator[Span]:
    """The spans of one parsed OTLP JSON object."""
    for resource in _list(request, "resourceSpans"):
        for scope in _list(resource, "scopeSpans") or _list(resource, "instrumentationLibrarySpans"):
            described: Mapping[str, Any] = scope.get("scope") or {}
            name = str(described.get("name") or "")
            for span in _list(scope, "spans"):
                yield _from_json(span, name)


def _list(holder: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", holder.get(key) or [])


def _from_json(span: Mapping[str, Any], scope: str) -> Span:
    status: Mapping[str, Any] = span.get("status") or {}
    return Span(
        trace_id=str(span["traceId"]).lower(),
        span_id=str(span["spanId"]).lower(),
        parent_id=str(span.get("parentSpanId") or "").lower() or None,
        name=str(span.get("name") or ""),
        kind=_json_enum(span.get("kind"), "SPAN_KIND_", _KINDS),
        start_ns=int(span.get("startTimeUnixNano") or 0),
        end_ns=int(span.get("endTimeUnixNano") or 0),
        status=_json_enum(status.get("code"), "STATUS_CODE_", _STATUS),
        status_message=str(status.get("message") or ""),
        attributes=_json_attributes(_list(span, "attributes")),
        events=tuple(
            SpanEvent(
                str(event.get("name") or ""),
                int(event.get("timeUnixNano") or 0),
                _json_attributes(_list(event, "attributes")),
            )
            for event in _list(span, "events")
        ),
        source=scope,
    )


def _json_enum(value: Any, prefix: str, members: Sequence[Any]) -> Any:
    """The specification says integers; older exporters write names."""
    if isinstance(value, str) and value.startswith(prefix):
        name = value.removeprefix(prefix).lower()
        return next((member for member in members if member.value == name), members[0])
    number = int(value or 0)
    return members[number] if 0 <= number < len(members) else members[0]


def _json_attributes(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {str(pair["key"]): _json_value(pair.get("value") or {}) for pair in pairs}


def _json_value(value: Mapping[str, Any]) -> Any:
    for name, item in value.items():
        if name == "intValue":
            return int(item)
        if name == "doubleValue":
            return float(item)
        if name == "arrayValue":
            return [_json_value(entry) for entry in _list(item, "values")]
        if name == "kvlistValue":
            return _json_attributes(_list(item, "values"))
        return item
    return None
