"""One tool call to its end: ask, pass on what comes before the result, retry what is safe to retry, record, then tell.

It knows nothing about which calls are repeats (once.py) or how an agent's request arrives (exchange.py).
Called by tools.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from harness.gateway.calls import CallRecorder
from harness.gateway.events import Event
from harness.gateway.exchange import Reply, error_reply, our_reply
from harness.gateway.keys import LiveRollout
from harness.gateway.once import Call
from harness.gateway.servers import Route, Servers, refusal
from harness.gateway.toolserver import (
    KEY_HEADER,
    KEY_META,
    SESSION_HEADER,
    Answer,
    ToolServerFailure,
    params_of,
    with_header,
    with_name,
)
from traces.span import Span
from traces.trajectory import Ending

RecordSpan = Callable[[Span], Awaitable[None]]
"""Makes a span durable before it returns (law 8)."""

_INVALID_PARAMS = -32602
_CANCELLED = -32800
_RETRY_PAUSES_S = (0.1, 0.5)
# Statuses that say that the way to the server is shut, not that this request is wrong.
_SHUT = (401, 403, 404, 410)


class ToolCall:
    """A `tools/call` of an agent."""

    def __init__(self, rollout: LiveRollout, message: dict[str, Any], recorder: CallRecorder, record: RecordSpan):
        self._rollout = rollout
        self._message = message
        self._recorder = recorder
        self._record = record
        self._call: Call | None = None
        self._deadline: asyncio.Timeout | None = None
        self._elsewhere: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    async def perform(self, servers: Servers, call: Call, timeout_s: float) -> Reply:
        """The call under its key, with all its attempts; its span is on disk when this returns."""
        self._call = call
        self._rollout.tool_calls += 1
        route: Route | None = None
        try:
            try:
                async with asyncio.timeout(timeout_s) as self._deadline:
                    route = await servers.route(call.exchange, self._recorder.name)
                    reply = self._unknown() if route is None else await self._ask(route, call)
            finally:
                self._deadline = None
        except TimeoutError:
            reply = await self._failed(
                route, call, ToolServerFailure("timeout", f"no answer in {timeout_s:g} s", reached=True)
            )
        except ToolServerFailure as failure:
            reply = await self._failed(route, call, failure)
        except asyncio.CancelledError:
            failure = ToolServerFailure("timeout", "the rollout ended before the answer", reached=True)
            await asyncio.shield(self._write(route, call, failure=failure))
            raise
        else:
            await self._write_reply(route, call, reply)
        return reply

    def cancel(self, grace_s: float) -> None:
        """The agent takes the call back; the server gets `grace_s` to end it."""
        if self._call is None or self._deadline is None:
            return
        self._call.cancelled = True
        self._deadline.reschedule(asyncio.get_running_loop().time() + grace_s)

    async def answer_elsewhere(self, event: Event) -> None:
        """Take the answer from another stream than the call's own; returns once its span is on disk."""
        if self._call is None or self._elsewhere.done():
            return
        self._elsewhere.set_result(Reply(event))
        await asyncio.shield(self._call.outcome)

    async def _ask(self, route: Route, call: Call) -> Reply:
        """Ask the server; ask again under the same key where no effect can be doubled."""
        pauses_s = iter(_RETRY_PAUSES_S)
        while True:
            try:
                return await self._attempt(route, call)
            except ToolServerFailure as failure:
                repeatable = not failure.reached or (failure.kind == "lost" and route.link.door.repeats_safely)
                pause_s = next(pauses_s, None) if repeatable and not call.cancelled else None
                if pause_s is None:
                    raise
            await asyncio.sleep(pause_s)

    async def _attempt(self, route: Route, call: Call) -> Reply:
        params = params_of(self._message)
        given = cast("dict[str, Any]", params.get("_meta") or {})
        meta = {**given, "traceparent": self._recorder.traceparent, KEY_META: call.key}
        message = {**self._message, "params": {**params, "name": route.own_name, "_meta": meta}}
        # A name that is not ours to change keeps its header: a server checks the two against each other.
        named = route.own_name != self._recorder.name
        headers = with_name(route.headers, route.own_name) if named else route.headers
        headers = with_header(headers, KEY_HEADER, call.key)
        resumable = False
        async with route.link.ask("POST", headers, message) as answer:
            async for event in answer.events():
                if event.answers and event.message is not None and event.message.get("id") == message.get("id"):
                    return Reply(event, answer.status, answer.headers)
                if not answer.streams:
                    return _unanswered(answer, event, dict(headers))
                resumable = resumable or bool(event.event_id)
                await call.exchange.emit((await route.change(event)).raw, answer)
        if not resumable or call.cancelled:
            raise ToolServerFailure("lost", "the event stream ended without an answer", reached=True)
        # The server hangs up on purpose; the agent comes back for the answer on another stream (SEP-1699).
        await call.exchange.finish()
        return await self._elsewhere

    def _unknown(self) -> Reply:
        return error_reply(self._message.get("id"), _INVALID_PARAMS, f"Unknown tool: {self._recorder.name}")

    async def _failed(self, route: Route | None, call: Call, failure: ToolServerFailure) -> Reply:
        request_id = self._message.get("id")
        if call.cancelled:
            failure = ToolServerFailure("cancelled", "the agent took the call back", reached=True)
            await self._write(route, call, failure=failure)
            return error_reply(request_id, _CANCELLED, "Request cancelled")
        server = route.link.door.name if route else "?"
        detail = f"tool server {server!r} failed on {self._recorder.name!r} ({failure.kind}): {failure}"
        self._rollout.fail(Ending.TOOL_ERROR, detail)
        result = _error_result(f"Error: {detail}. It is unknown whether the call took effect.")
        await self._write(route, call, result=result, failure=failure)
        return our_reply({"jsonrpc": "2.0", "id": request_id, "result": result})

    async def _write_reply(self, route: Route | None, call: Call, reply: Reply) -> None:
        message = reply.event.message or {}
        error = message.get("error")
        if "result" in message:
            await self._write(route, call, result=message["result"])
        elif isinstance(error, dict):
            words = str(cast("dict[str, Any]", error).get("message", ""))
            taken_back = ToolServerFailure("cancelled", words, reached=True) if call.cancelled else None
            await self._write(route, call, error=words, failure=taken_back)
        else:
            await self._write(route, call, error=reply.event.raw[:500].decode(errors="replace"))

    async def _write(
        self,
        route: Route | None,
        call: Call,
        *,
        result: Mapping[str, Any] | None = None,
        error: str | None = None,
        failure: ToolServerFailure | None = None,
    ) -> None:
        door = route.link.door if route else None
        await self._record(self._recorder.span(call.key, door, result=result, error=error, failure=failure))


def _unanswered(answer: Answer, event: Event, sent: Mapping[str, str]) -> Reply:
    """A body that holds no answer: the server's word against the agent's request, or the server's own failure."""
    lost_session = answer.status in _SHUT and SESSION_HEADER in sent
    if 400 <= answer.status < 500 and (lost_session or answer.status not in _SHUT):
        return Reply(event, answer.status, answer.headers)
    raise refusal(answer, event.raw)


def _error_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True, "resultType": "complete"}
