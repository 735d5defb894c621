"""The model gateway's HTTP side: `/r/<key>/v1`, whole answers and event streams, errors in the client's own shape.

It knows nothing about tools, tasks or training; how a call is answered is answering.py's, how it is written the
dialect's. app.py hands it the requests of live rollouts and closes them at the seal.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.types import Receive, Scope, Send

from harness.gateway.answering import Answered, Answerer, Call, ClientLeft
from harness.gateway.chat_spans import CallRecord
from harness.gateway.dialects import CountingDialect, Dialect, chat, completions, messages, responses
from harness.gateway.failures import Failure, describe_failure
from harness.gateway.http import BodyTooLarge, Client, ClientGone, header, read_body, send_json
from harness.gateway.keys import LiveRollout
from harness.gateway.request import BadRequest
from harness.gateway.retries import Attempt, RetryLedger
from harness.gateway.stream import relay_stream
from harness.gateway.turns import RolloutTurns
from harness.gateway.upstream import EngineFailure, EngineRefusal

DIALECTS: dict[str, Dialect] = {
    "/chat/completions": chat,
    "/completions": completions,
    "/messages": messages,
    "/responses": responses,
}
"""Path under `/v1` → how clients of it speak."""
COUNTS: dict[str, CountingDialect] = {"/messages/count_tokens": messages, "/responses/input_tokens": responses}
"""Path under `/v1` where a prompt is counted → how clients of it speak."""
MAX_BODY_BYTES = 10_000_000
"""Longest request that is read."""
_NO_RETRY = {b"x-should-retry": b"false"}


@dataclass(slots=True)
class ModelSide:
    """What the gateway holds for one live rollout."""

    turns: RolloutTurns
    """Its forest, counts and limits."""
    retries: RetryLedger[Answered] = field(default_factory=RetryLedger["Answered"])
    """Its requests for whole answers."""
    streams: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    """Its streamed answers under way."""


class ModelGateway:
    """Serves the model door of every live rollout."""

    def __init__(self, answerer: Answerer) -> None:
        self.answerer = answerer
        """Answers the calls."""
        self.sides: dict[str, ModelSide] = {}
        """What is held for live rollouts, by id."""

    async def handle_model(self, rollout: LiveRollout, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request to a live rollout's model door; `path` is what follows `/r/<key>/v1`."""
        client = Client(receive, send)
        path, method = path.rstrip("/"), scope["method"]
        if method == "POST" and path in DIALECTS:
            await self._handle_call(rollout, DIALECTS[path], scope, client)
        elif method == "POST" and path in COUNTS:
            await self._count(rollout, COUNTS[path], client)
        elif method == "GET" and path.startswith("/models"):
            status, content = _models(rollout, path.removeprefix("/models").lstrip("/"), scope)
            await send_json(send, status, content)
        elif method == "GET" and path.startswith("/responses/"):
            status, content = self._stored(rollout, path.removeprefix("/responses/"))
            await send_json(send, status, content)
        else:
            message = (
                f"{method} /v1{path} is not served here; POST to {', '.join(f'/v1{served}' for served in DIALECTS)}"
            )
            await send_json(send, 404, speaks(path).write_error(Failure(404, message, "not_found_error")))

    def _stored(self, rollout: LiveRollout, response_id: str) -> tuple[int, bytes]:
        stored = self._side(rollout).turns.record.responses.get(response_id)
        if stored is None:
            message = f"Response with id {response_id!r} not found: this rollout has not stored it"
            return 404, responses.write_error(Failure(404, message, "not_found_error"))
        return 200, responses.write_answer(stored.request, stored.answer)

    async def _count(self, rollout: LiveRollout, dialect: CountingDialect, client: Client) -> None:
        """Tell how long a prompt would be: no turn, no span."""
        side = self._side(rollout)
        try:
            content = await read_body(client.receive, MAX_BODY_BYTES)
            request = dialect.parse_count(content, side.turns.record)
            reading = side.turns.transcript.read(request)
            call = Call(side.turns, CallRecord(rollout, dialect.NAME), request, reading, dialect)
            status, answer = 200, dialect.write_count(await self.answerer.count_prompt(call))
        except ClientGone:
            return
        except (BodyTooLarge, BadRequest) as error:
            failure = _unreadable(error)
            status, answer = failure.status, dialect.write_error(failure)
        except (EngineFailure, EngineRefusal) as error:
            failure = describe_failure(error)
            status, answer = failure.status, dialect.write_error(failure)
        await send_json(client.send, status, answer, _NO_RETRY if status != 200 else None)

    async def close_rollout(self, rollout: LiveRollout) -> dict[str, Any]:
        """End what still runs for a sealed rollout and drop what is held for it; its counts. Part of the seal."""
        side = self.sides.pop(rollout.rollout_id, None)
        if side is None:
            return RolloutTurns(rollout).summary()
        for stream in side.streams:
            stream.cancel()
        if side.streams:
            await asyncio.wait(side.streams)
        for attempt in await side.retries.close():
            answered = attempt.answer.result()
            if answered.recording is not None:
                await asyncio.wait({answered.recording})
            else:
                left = ClientLeft("the client went away before its answer came, and did not ask again")
                await self.answerer.record_failure(answered.prepared.call.record, answered.prepared.call.reading, left)
        return side.turns.summary()

    async def _handle_call(self, rollout: LiveRollout, dialect: Dialect, scope: Scope, client: Client) -> None:
        record = _call_record(rollout, dialect, scope)
        side = self._side(rollout)
        try:
            content = await read_body(client.receive, MAX_BODY_BYTES)
            request = dialect.parse(content, side.turns.record)
            reading = side.turns.transcript.read(request)
        except ClientGone:
            return
        except (BodyTooLarge, BadRequest) as error:
            await self.answerer.record_failure(record, None, error)
            failure = _unreadable(error)
            await send_json(client.send, failure.status, dialect.write_error(failure))
            return
        record = replace(record, stream=request.stream, asked_model=request.model)
        call = Call(side.turns, record, request, reading, dialect)
        if request.stream:
            await self._stream(side, call, client)
            return
        attempt, _ = side.retries.claim(
            dialect.NAME.encode() + content, record.retry_count > 0, lambda: self.answerer.answer(call)
        )
        await self._deliver(side, attempt, dialect, client)

    def _side(self, rollout: LiveRollout) -> ModelSide:
        side = self.sides.get(rollout.rollout_id)
        if side is None:
            side = self.sides[rollout.rollout_id] = ModelSide(RolloutTurns(rollout))
        return side

    async def _deliver(self, side: ModelSide, attempt: Attempt[Answered], dialect: Dialect, client: Client) -> None:
        """Answer in one piece. The engine goes on when the client goes away: its retry finds the answer."""
        if not await client.outlasts(attempt.answer):
            attempt.lost = True
            return
        try:
            answered = attempt.answer.result()
            await self.answerer.settle(answered)
        except (Exception, asyncio.CancelledError) as error:
            side.retries.forget(attempt)
            failure = describe_failure(error)
            await send_json(client.send, failure.status, dialect.write_error(failure), _NO_RETRY)
            if failure.status == 500:
                raise
            return
        await send_json(client.send, 200, dialect.write_answer(answered.prepared.call.request, answered.answer))

    async def _stream(self, side: ModelSide, call: Call, client: Client) -> None:
        task = asyncio.create_task(relay_stream(self.answerer, call, client.send))
        side.streams.add(task)
        task.add_done_callback(side.streams.discard)
        if not await client.outlasts(task):
            task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()


def speaks(path: str) -> Dialect:
    """How a client of `path` under `/v1` speaks, whether or not it is served; chat where nobody knows."""
    found = DIALECTS.get(path) or COUNTS.get(path)
    return found or (messages if path.startswith("/messages") else chat)


def _models(rollout: LiveRollout, name: str, scope: Scope) -> tuple[int, bytes]:
    """The rollout's one model, listed or by name, as the client's kind of SDK reads it."""
    dialect = messages if header(scope, b"anthropic-version") else chat
    if name not in ("", rollout.model):
        message = f"model {name!r} is not served to this rollout, only {rollout.model!r}"
        return 404, dialect.write_error(Failure(404, message, "not_found_error"))
    return 200, dialect.write_models(rollout.model, int(time.time()), listed=not name)


def _call_record(rollout: LiveRollout, dialect: Dialect, scope: Scope) -> CallRecord:
    retries = header(scope, b"x-stainless-retry-count")
    return CallRecord(
        rollout,
        dialect.NAME,
        traceparent=header(scope, b"traceparent"),
        retry_count=int(retries) if retries.isdecimal() and len(retries) < 10 else 0,
        agent_name=header(scope, b"x-agent-name"),
    )


def _unreadable(error: BodyTooLarge | BadRequest) -> Failure:
    if isinstance(error, BodyTooLarge):
        return Failure(413, f"the body is longer than {MAX_BODY_BYTES} bytes", "request_too_large")
    return Failure(400, str(error), "invalid_request_error", param=error.param)
