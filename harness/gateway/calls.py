"""A tool call's span: arguments, result, error, duration, and the model's tool call it belongs to.

It knows nothing about HTTP or how the call is made. Called by toolcall.py; the span's form is traces/build.py's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from yarl import URL

from harness.gateway.keys import AskedCall, LiveRollout, ToolDoor
from harness.gateway.toolserver import ToolServerFailure, objects_of
from traces import semconv
from traces.build import Outcome, Place, ToolUse, tool_span
from traces.span import Span, new_span_id, parent_within


class CallRecorder:
    """Gathers what is known of one call while it runs."""

    def __init__(self, rollout: LiveRollout, name: str, arguments: Any, protocol_version: str) -> None:
        self.name = name
        """Tool name as the agent used it."""
        self._rollout = rollout
        self._arguments = arguments
        self._span_id = new_span_id()
        self._start_ns = time.time_ns()
        self._parent_id = rollout.parent_span_id
        self._request: dict[str, Any] = {semconv.MCP_PROTOCOL_VERSION: protocol_version}

    @property
    def traceparent(self) -> str:
        """W3C trace context for the tool server, so that its own spans join."""
        return f"00-{self._rollout.trace_id}-{self._span_id}-01"

    def note_request(self, request_id: object, traceparent: object) -> None:
        """What the agent's request says of itself: its JSON-RPC id, and its span where it is instrumented."""
        self._request[semconv.JSONRPC_REQUEST_ID] = str(request_id)
        self._parent_id = parent_within(self._rollout.trace_id, traceparent) or self._parent_id

    def span(
        self,
        key: str,
        door: ToolDoor | None,
        *,
        result: Mapping[str, Any] | None = None,
        error: str | None = None,
        failure: ToolServerFailure | None = None,
    ) -> Span:
        """The finished span of the call that ends now.

        `error` is an MCP error's message, `failure` means that there was no MCP answer.
        """
        place = Place(
            trace_id=self._rollout.trace_id,
            parent_id=self._parent_id,
            rollout_id=self._rollout.rollout_id,
            group_id=self._rollout.group_id,
            run_id=self._rollout.run_id,
        )
        outcome = Outcome(
            start_ns=self._start_ns,
            end_ns=time.time_ns(),
            error_type=failure.kind if failure else None,
            error_message=str(failure) if failure else "",
        )
        asked = take_asked_call(self._rollout.asked_calls, self.name, self._arguments)
        use = ToolUse(
            name=self.name,
            arguments=json.dumps(self._arguments),
            result=error if error is not None else result_text(result or {}),
            is_error=failure is None and (error is not None or bool((result or {}).get("isError"))),
            call_id=asked.call_id if asked else None,
            request={**self._request, **_server_attributes(door), semconv.IDEMPOTENCY_KEY: key},
            span_id=self._span_id,
        )
        return tool_span(place, outcome, use)


def _server_attributes(door: ToolDoor | None) -> dict[str, Any]:
    """Which server answered. Never its whole URL, which opens the session."""
    if door is None:
        return {}
    url = URL(door.url)
    return {
        semconv.TOOL_SERVER: door.name,
        semconv.SERVER_ADDRESS: url.host,
        semconv.SERVER_PORT: url.port,
        semconv.NETWORK_TRANSPORT: "tcp",
    }


def take_asked_call(asked_calls: list[AskedCall], name: str, arguments: Any) -> AskedCall | None:
    """The model's newest tool call of this name and arguments that no real call was joined to yet, and joins it."""
    for asked in reversed(asked_calls):
        if not asked.taken and asked.name == name and _is_json_of(asked.arguments, arguments):
            asked.taken = True
            return asked
    return None


def _is_json_of(text: str, value: Any) -> bool:
    try:
        return json.loads(text or "{}") == value
    except (ValueError, RecursionError):
        return False


def result_text(result: Mapping[str, Any]) -> str:
    """What the agent gets back, as text: the text parts, other parts as JSON.

    Where there is no part: the structured content, or what a server asks for before it goes on (`input_required`).
    """
    parts = objects_of(result.get("content"))
    if not parts:
        whole = next((result[name] for name in ("structuredContent", "inputRequests") if name in result), None)
        return "" if whole is None else json.dumps(whole)
    return "\n".join(
        str(part["text"]) if part.get("type") == "text" and "text" in part else json.dumps(part) for part in parts
    )
