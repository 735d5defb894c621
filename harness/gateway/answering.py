"""One model call of a rollout: limits → wait for a publish → prompt (continuation) → engine → spans on disk.

It knows nothing about HTTP, dialects or retries. Called by model.py (whole answers) and stream.py (streamed ones).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from harness.gateway.chat_spans import CallRecord
from harness.gateway.dialects import Dialect
from harness.gateway.gate import Gate
from harness.gateway.prompts import Asked, Prompt, PromptMaker
from harness.gateway.request import ModelAnswer, ModelRequest
from harness.gateway.sampling import Policy, Sampler, engine_body
from harness.gateway.transcript import Reading
from harness.gateway.turns import LimitHit, RolloutTurns
from harness.gateway.upstream import EngineFailure, EngineRefusal, Upstream
from traces.span import Span
from traces.trajectory import Ending

RecordSpans = Callable[[Sequence[Span]], Awaitable[None]]
"""Makes spans durable before it returns (law 8)."""


class ClientLeft(Exception):
    """The client went away before its answer was through."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a client of a live rollout."""

    turns: RolloutTurns
    """The rollout's model side."""
    record: CallRecord
    """For its spans."""
    request: ModelRequest
    """What is asked."""
    reading: Reading
    """Its messages and tools."""
    dialect: Dialect
    """How the client speaks."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call that the engine can be asked about."""

    call: Call
    """The call."""
    prompt: Prompt
    """What the engine is to read."""
    body: dict[str, Any]
    """What it is asked."""


@dataclass(slots=True)
class Answered:
    """An answer on its way to the client; recorded when it is delivered, once, however many requests share it."""

    prepared: Prepared
    """The call and its prompt."""
    answer: ModelAnswer
    """What the engine said."""
    recording: asyncio.Task[None] | None = None
    """The one writing of its spans; None before it is delivered."""


class Answerer:
    """Answers the calls of all live rollouts from one engine."""

    def __init__(self, upstream: Upstream, record: RecordSpans, gate: Gate) -> None:
        self.upstream = upstream
        self.sampler = Sampler(upstream)
        self._prompts = PromptMaker(upstream)
        self._record = record
        self._gate = gate

    async def answer(self, call: Call) -> Answered:
        """The whole answer, not yet recorded; raises LimitHit, EngineFailure or EngineRefusal."""
        async with self.admitted(call):
            prepared = await self.prepare(call)
            answer = await self.sampler.sample(prepared.body, call.reading, prepared.prompt)
            call.turns.count_tokens(answer)
        return Answered(prepared, answer)

    async def prepare(self, call: Call) -> Prepared:
        """The prompt, and what the engine is asked; raises EngineFailure or EngineRefusal."""
        rollout, reading = call.turns.rollout, call.reading
        asked = Asked(reading, call.request.constraints, call.request.is_text)
        prompt = await self._prompts.make(rollout.model, asked, call.turns.continued(reading.conversation))
        policy = Policy(rollout.model, rollout.sampling, call.turns.tokens_left())
        return Prepared(call, prompt, engine_body(policy, call.request, reading, prompt))

    async def count_prompt(self, call: Call) -> int:
        """How many tokens the call's prompt has; nothing is sampled. Raises EngineFailure or EngineRefusal."""
        await self._gate.passed()
        asked = Asked(call.reading, call.request.constraints)
        continued = call.turns.continued(call.reading.conversation)
        return await self._prompts.count(call.turns.rollout.model, asked, continued)

    @asynccontextmanager
    async def admitted(self, call: Call) -> AsyncGenerator[None]:
        """A call within its rollout's limits, after any publish under way; its failure is noted and recorded."""
        turns = call.turns
        turns.waited_s += await self._gate.passed()
        admitted = False
        try:
            turns.admit()
            admitted = True
            async with _wall_limit(turns):
                yield
        except BaseException as error:
            turns.started -= admitted
            await self._note_failure(call, error)
            raise

    async def _note_failure(self, call: Call, error: BaseException) -> None:
        rollout = call.turns.rollout
        if rollout.sealed:
            return
        if isinstance(error, EngineFailure) or (isinstance(error, EngineRefusal) and error.status == 404):
            rollout.fail(Ending.ENGINE_ERROR, str(error))
        elif isinstance(error, EngineRefusal) and "context length" in str(error):
            rollout.limit_hit = rollout.limit_hit or "tokens"
        elif isinstance(error, Exception) and not isinstance(error, EngineRefusal | LimitHit | ClientLeft):
            rollout.fail(Ending.GATEWAY_ERROR, f"{type(error).__name__}: {error}")
        await self.record_failure(call.record, call.reading, error)

    async def record_failure(self, record: CallRecord, reading: Reading | None, error: BaseException) -> None:
        """Write the span of a call that got no answer; `reading` is None where it could not be read."""
        if isinstance(error, asyncio.CancelledError):
            error = ClientLeft("the client went away before its answer was through")
        await self._record([record.failed(reading, type(error).__name__, str(error))])

    async def settle(self, answered: Answered) -> None:
        """Make the answer durable and its turns part of the forest; raises StoreError.

        Requests that share an answer wait for the one writing of it.
        """
        if answered.recording is None:
            answered.recording = asyncio.create_task(self._settle(answered))
        await asyncio.shield(answered.recording)

    async def _settle(self, answered: Answered) -> None:
        prepared = answered.prepared
        call, prompt = prepared.call, prepared.prompt
        spans: list[Span] = []
        try:
            for sampled in answered.answer.choices:
                node = call.turns.attach(call.reading.conversation, sampled, prompt.rendered)
                fork = node.fork if node is not None else None
                spans.append(call.record.answered(call.reading, sampled, prompt.how, prepared.body, fork))
            await self._record(spans)
        except Exception as error:
            call.turns.rollout.fail(Ending.GATEWAY_ERROR, f"an answer could not be recorded: {error}")
            raise
        call.turns.record.note_arguments(answered.answer)
        call.dialect.remember(call.turns.record, call.request, answered.answer)


@asynccontextmanager
async def _wall_limit(turns: RolloutTurns) -> AsyncGenerator[None]:
    left_s = turns.seconds_left()
    limit = asyncio.timeout(None if left_s == float("inf") else left_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if limit.expired():
            raise turns.hit("wall_s") from None
        raise
