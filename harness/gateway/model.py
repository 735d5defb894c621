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
from harness.gateway.dialects import Dialect, chat
from harness.gateway.failures import Failure, describe_failure
from harness.gateway.http import BodyTooLarge, Client, ClientGone, header, read_body, send_json
from harness.gateway.keys import LiveRollout
from harness.gateway.request import BadRequest
from harness.gateway.retries import Attempt, RetryLedger
from harness.gateway.stream import relay_stream
from harness.gateway.turns import RolloutTurns

DIALECTS: dict[str, Dialect] = {"/chat/completions": chat}
"""Path under `/v1` → how clients of it speak."""
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
        if path == "/models" and scope["method"] == "GET":
            await send_json(send, 200, chat.write_models([rollout.model], int(time.time())))
        elif path in DIALECTS and scope["method"] == "POST":
            await self._handle_call(rollout, DIALECTS[path], scope, client)
        else:
            message = f"{scope['method']} /v1{path} is not served here; use POST /v1/chat/completions or GET /v1/models"
            await send_json(send, 404, chat.write_error(Failure(404, message, "not_found_error")))

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
            request = dialect.parse(content)
            reading = side.turns.transcript.read(request)
        except ClientGone:
            return
        except (BodyTooLarge, BadRequest) as error:
            await self.answerer.record_failure(record, None, error)
            failure = _unreadable(error)
            await send_json(client.send, failure.status, dialect.write_error(failure))
            return
        call = Call(side.turns, replace(record, stream=request.stream), request, reading, dialect)
        if request.stream:
            await self._stream(side, call, client)
            return
        attempt, _ = side.retries.claim(content, record.retry_count > 0, lambda: self.answerer.answer(call))
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


def _call_record(rollout: LiveRollout, dialect: Dialect, scope: Scope) -> CallRecord:
    retries = header(scope, b"x-stainless-retry-count")
    return CallRecord(
        rollout,
        dialect.NAME,
        traceparent=header(scope, b"traceparent"),
        retry_count=int(retries) if retries.isdigit() else 0,
        agent_name=header(scope, b"x-agent-name"),
    )


def _unreadable(error: BodyTooLarge | BadRequest) -> Failure:
    if isinstance(error, BodyTooLarge):
        return Failure(413, f"the body is longer than {MAX_BODY_BYTES} bytes", "request_too_large")
    return Failure(400, str(error), "invalid_request_error", param=error.param)
