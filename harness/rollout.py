"""One rollout: task + session + agent + policy → a trajectory with an Ending, on disk before anyone is told (law 8).

What the agent does wrong is data; what our own servers do wrong ends the rollout as a failure of infrastructure and
never becomes a reward (law 4). It knows nothing about groups, training or how a score is made.
Called by group.py and the command line.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from harness.agent import Agent, Door, run_agent
from harness.errors import GatewayError, JudgeError, SimulatorError, ToolServerError
from harness.gateway.client import GatewayClient, OpenedRollout
from harness.policy import Limits, Policy, Sampling
from harness.scoring.checks import score_from_grade
from harness.session import Session, SessionSource
from harness.task import Task
from harness.user_door import Conversation, UserDesk
from harness.verdict import Verdict, judge_conversation, judge_ending, seal_metrics
from traces import semconv
from traces.build import Outcome, Place, agent_span, score_event, user_span
from traces.span import Span, new_span_id, new_trace_id
from traces.store import RolloutRecord, Store
from traces.trajectory import Ending, Score, Trajectory

_log = logging.getLogger(__name__)

ScoreRollout = Callable[[Session, Task, Verdict], Awaitable[Sequence[Score]]]
"""Scores one rollout while its session still lives; raises JudgeError or ToolServerError."""


async def score_by_checks(session: Session, task: Task, verdict: Verdict) -> Sequence[Score]:
    """The server's own checks of the state and the answer.

    A request that was never answered is no success, whatever the state: else an agent that breaks off at once would
    pass every task that must be refused.
    """
    told = verdict.answer if verdict.told is None else verdict.told
    score = score_from_grade(await session.grade(task, told), server=task.server)
    if verdict.ending is not Ending.ANSWERED:
        explanation = f"ended as {verdict.ending.value}; {score.explanation}".removesuffix("; ")
        components = {**score.components, "passed": 0.0}
        score = replace(score, value=0.0, components=components, explanation=explanation)
    return [score]


async def score_later(session: Session, task: Task, verdict: Verdict) -> Sequence[Score]:
    """No score of its own: the group's judge gives one. For servers that have no grader."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What rollouts run in."""

    run_id: str
    """The run they belong to."""
    server: SessionSource
    """Makes and grades their sessions."""
    gateway: GatewayClient
    """Opens and seals their doors."""
    store: Store
    """Where they are recorded."""
    score: ScoreRollout = score_by_checks
    """Scores each of them."""
    sampling: Sampling = field(default_factory=Sampling)
    """How the policy is sampled."""
    limits: Limits = field(default_factory=Limits)
    """How far each of them may go."""
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(32))
    """How many rollouts run at the same time, over all groups."""
    users: UserDesk | None = None
    """Whom agents talk with; None where the first message holds everything."""


async def run_rollout(task: Task, agent: Agent, policy: Policy, world: World, *, group_id: str = "") -> Trajectory:
    """Run `task` once and return the record of it; it has ended on disk when this returns.

    Never raises for an agent, a tool server, a gateway or a judge that fails. When it is cancelled, it ends as
    INTERRUPTED, with its session closed, before the cancellation goes on. Raises StoreError.
    """
    rollout = _Rollout(task, agent, policy, world, group_id or f"g-{uuid4().hex}")
    await asyncio.to_thread(world.store.append_rollout, rollout.record)
    try:
        verdict, scores = await rollout.run()
    except asyncio.CancelledError:
        verdict = Verdict(Ending.INTERRUPTED, "the rollout was cancelled")
        await asyncio.shield(rollout.end(verdict, ()))
        raise
    return await asyncio.shield(rollout.end(verdict, scores))


class _Rollout:
    """One run of `run_rollout`, from its record to its end."""

    def __init__(self, task: Task, agent: Agent, policy: Policy, world: World, group_id: str) -> None:
        self._task = task
        self._agent = agent
        self._policy = policy
        self._world = world
        self._span_id = new_span_id()
        self._metrics: dict[str, float] = {}
        self._output = ""
        self._talk: Conversation | None = None
        self.record = RolloutRecord(
            rollout_id=f"r-{uuid4().hex}",
            group_id=group_id,
            run_id=world.run_id,
            task_id=task.id,
            kind=task.kind,
            split=task.split,
            policy_version=policy.version,
            trace_id=new_trace_id(),
            agent=agent.name,
            task=task.to_dict(),
            start_ns=time.time_ns(),
        )

    async def run(self) -> tuple[Verdict, Sequence[Score]]:
        """Session, doors, agent, seal, score; what fails of ours becomes the verdict."""
        try:
            async with self._session() as session, self._conversation():
                verdict = await self._run_agent(session)
                if verdict.ending.is_infrastructure:
                    return verdict, ()
                return verdict, await self._world.score(session, self._task, verdict)
        except ToolServerError as error:
            return Verdict(Ending.TOOL_ERROR, str(error)), ()
        except GatewayError as error:
            return Verdict(Ending.GATEWAY_ERROR, str(error)), ()
        except JudgeError as error:
            return Verdict(Ending.JUDGE_ERROR, str(error)), ()
        except SimulatorError as error:
            return Verdict(Ending.SIMULATOR_ERROR, str(error)), ()

    @asynccontextmanager
    async def _session(self) -> AsyncGenerator[Session]:
        session = await self._world.server.open_session(self._task)
        try:
            yield session
        finally:
            await asyncio.shield(_close(session))

    @asynccontextmanager
    async def _conversation(self) -> AsyncGenerator[None]:
        if self._world.users is None:
            yield
            return
        async with self._world.users.talk(self._task) as self._talk:
            yield

    async def _run_agent(self, session: Session) -> Verdict:
        opened = await self._world.gateway.open_rollout(self._request(session))
        try:
            door = self._door(opened)
            about = self._task.for_agent() if self._talk is None else self._talk.task
            result = await run_agent(self._agent, about, door, time_limit_s=self._world.limits.wall_s)
        except BaseException:
            await asyncio.shield(self._seal_quietly())
            raise
        self._output = result.output
        seal = await self._world.gateway.seal(self.record.rollout_id)
        self._metrics |= seal_metrics(seal)
        verdict = judge_ending(result, seal)
        if self._talk is None:
            return verdict
        self._metrics |= self._talk.metrics()
        return judge_conversation(verdict, self._talk)

    async def _seal_quietly(self) -> None:
        """Seal while something else already goes wrong; a gateway that is gone has no live key either."""
        try:
            await self._world.gateway.seal(self.record.rollout_id)
        except GatewayError as error:
            _log.warning("rollout %s could not be sealed: %s", self.record.rollout_id, error)

    def _request(self, session: Session) -> dict[str, Any]:
        return {
            "rollout_id": self.record.rollout_id,
            "run_id": self.record.run_id,
            "group_id": self.record.group_id,
            "task_id": self.record.task_id,
            "trace_id": self.record.trace_id,
            "parent_span_id": self._span_id,
            "model": self._policy.model,
            "policy_version": self._policy.version,
            "sampling": self._world.sampling.to_dict(),
            "limits": self._world.limits.to_dict(),
            "tool_servers": [session.door.to_dict()] if session.door.url else [],
            "allowed_tools": self._task.allowed_tools,
        }

    def _door(self, opened: OpenedRollout) -> Door:
        return Door(
            base_url=opened.model_url,
            api_key=opened.key,
            mcp_url=opened.mcp_url,
            model=self._policy.model,
            max_turns=self._world.limits.turns,
            traceparent=f"00-{self.record.trace_id}-{self._span_id}-01",
            otlp_endpoint=opened.otlp_url,
            user_url="" if self._talk is None else self._talk.url,
        )

    async def end(self, verdict: Verdict, scores: Sequence[Score]) -> Trajectory:
        """Write root span, scores and ending, in this order: an ended rollout has all that it will ever have."""
        end_ns = time.time_ns()
        self._metrics["wall_s"] = (end_ns - self.record.start_ns) / 1e9
        record = replace(
            self.record,
            ending=verdict.ending,
            ending_detail=verdict.detail,
            answer=verdict.answer,
            end_ns=end_ns,
            metrics=self._metrics,
        )
        return await asyncio.to_thread(self._write, record, tuple(scores))

    def _write(self, record: RolloutRecord, scores: tuple[Score, ...]) -> Trajectory:
        store = self._world.store
        place = Place(
            trace_id=str(record.trace_id),
            rollout_id=record.rollout_id,
            group_id=record.group_id,
            run_id=record.run_id,
        )
        store.append_spans([*self._user_spans(place), self._root_span(place, record, scores)])
        if scores:
            store.append_scores(record.rollout_id, scores)
        store.append_rollout(record)
        return store.trajectory(record.rollout_id)

    def _user_spans(self, place: Place) -> list[Span]:
        under = replace(place, parent_id=self._span_id)
        exchanges = self._talk.exchanges if self._talk is not None else []
        return [
            user_span(under, Outcome(start_ns=e.start_ns, end_ns=e.end_ns), e.heard, e.said.text) for e in exchanges
        ]

    def _root_span(self, place: Place, record: RolloutRecord, scores: tuple[Score, ...]) -> Span:
        failed = record.ending is not Ending.ANSWERED and record.ending is not None
        outcome = Outcome(
            start_ns=record.start_ns,
            end_ns=record.end_ns,
            error_type=record.ending.value if failed and record.ending else None,
            error_message=record.ending_detail,
        )
        attributes = {
            semconv.TASK_ID: record.task_id,
            semconv.TASK_KIND: record.kind,
            semconv.TASK_SPLIT: record.split,
            semconv.POLICY_VERSION: record.policy_version,
            semconv.ENDING: record.ending.value if record.ending else "",
            semconv.ENDING_DETAIL: record.ending_detail,
            **({semconv.AGENT_OUTPUT: self._output} if self._output else {}),
        }
        span = agent_span(place, outcome, self._agent.name, attributes, self._span_id)
        return replace(span, events=tuple(score_event(score, record.end_ns) for score in scores))


async def _close(session: Session) -> None:
    try:
        await session.close()
    except ToolServerError as error:
        # The rollout is over and its state graded: a session left behind costs memory, not correctness.
        _log.warning("a session of %s could not be closed: %s", session.door.name, error)
