"""The third door of a rollout: `/r/<key>/otlp` takes the spans of an instrumented agent (OTLP/HTTP) and joins them.

The key says which rollout they belong to, whatever they claim; training never depends on them (law 1). It knows
nothing about what the spans mean. app.py routes to it; agents get its address as OTEL_EXPORTER_OTLP_ENDPOINT.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from harness.gateway.http import send_json
from harness.gateway.keys import LiveRollout
from traces.attributes import as_foreign
from traces.build import Place
from traces.otlp import otlp_route
from traces.span import Span

MOST_SPANS = 10_000
"""Spans of its own that one rollout may leave in the store; one that loops must not fill the disk."""
_ROLLOUT = "harness.rollout"


class SpanDoor:
    """Receives for every live rollout."""

    def __init__(self, record: Callable[[Sequence[Span]], Awaitable[None]]) -> None:
        """`record` makes spans durable before it returns."""
        self._record = record
        self._route = otlp_route("/v1/traces", self._accept)

    async def handle_otlp(self, rollout: LiveRollout, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; `path` is what follows `/otlp`."""
        inner = {**scope, "path": path, "raw_path": path.encode(), "root_path": "", _ROLLOUT: rollout}
        try:
            await self._route.handle(inner, receive, send)
        except HTTPException as error:
            await send_json(send, error.status_code, json.dumps({"message": error.detail}).encode())

    async def _accept(self, request: Request, spans: list[Span]) -> None:
        rollout: LiveRollout = request.scope[_ROLLOUT]
        if rollout.sealed:
            raise HTTPException(410, "this rollout has ended; its key is dead")
        if rollout.foreign_spans + len(spans) > MOST_SPANS:
            raise HTTPException(413, f"an agent may send {MOST_SPANS} spans; {rollout.foreign_spans} were sent before")
        rollout.foreign_spans += len(spans)
        await self._record([joined(span, rollout) for span in spans if span.span_id != rollout.parent_span_id])


def joined(span: Span, rollout: LiveRollout) -> Span:
    """The span as part of the rollout's trace: one trace id from agent to judge, roots under the rollout's own span.

    Span ids stay: they are random, and children name their parents by them.
    """
    place = Place(
        trace_id=rollout.trace_id, rollout_id=rollout.rollout_id, group_id=rollout.group_id, run_id=rollout.run_id
    )
    foreign = as_foreign(span, place)
    return replace(foreign, trace_id=rollout.trace_id, parent_id=span.parent_id or rollout.parent_span_id)
