"""Which rollout a model call belongs to: each trajectory's code runs in a scope, and a model's rollout opens with its
first call there.

A rollout made this way is run by `run_rollout` like any other, with an agent that waits for the code's end: records,
limits, sessions, seals and endings are the same. It knows nothing about groups, rewards or training. Used by model.py,
gather.py and by the client that `openai_client` returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol
from uuid import uuid4

from harness.agent import Agent, Door
from harness.api.trajectory import rollouts_here
from harness.errors import HarnessError
from harness.policy import Policy
from harness.rollout import World, run_rollout
from harness.task import AgentTask, Task
from traces.trajectory import Ending, Score
from traces.trajectory import Trajectory as Record

AGENT = "api"
"""How traces call the agent of a rollout whose agent is the user's own function."""


class RolloutFailed(HarnessError):
    """A rollout that a failure of infrastructure ended; it has no reward (law 4) and stands in its group as this."""

    def __init__(self, record: Record) -> None:
        super().__init__(
            f"a rollout of task {record.task_id!r} in run {record.run_id!r}",
            f"it ended as {record.ending.value}: {record.ending_detail}",
            f"`harness show` prints it by its id, {record.rollout_id}; try again once the part works that failed",
        )
        self.ending: Ending = record.ending
        """Which part failed."""


class Owner(Protocol):
    """What a scope needs of a model."""

    @property
    def name(self) -> str:
        """Name of the model."""
        ...

    def start_rollout(self, task: Task | None, group_id: str) -> Rollout:
        """A rollout of this model that is about to open."""
        ...


class Rollout:
    """A rollout whose agent is the code that holds it."""

    def __init__(self, task: Task, policy: Policy, world: World, group_id: str) -> None:
        loop = asyncio.get_running_loop()
        self.task: AgentTask = task.for_agent()
        """What the agent is told."""
        self.policy = policy
        """The version that it samples."""
        self.answer: str | None = None
        """The agent's last words; set it before the rollout ends, where a grader reads them."""
        self.record: Record | None = None
        """The record of it; None until it has ended."""
        self._opened: asyncio.Future[Door] = loop.create_future()
        self._finished: asyncio.Future[str | None] = loop.create_future()
        agent = Agent(AGENT, run=self._hold)
        self._running = asyncio.create_task(run_rollout(task, agent, policy, world, group_id=group_id))

    async def opened(self) -> Door:
        """Its two doors. Raises RolloutFailed where they can't be opened."""
        await asyncio.wait({self._running, self._opened}, return_when=asyncio.FIRST_COMPLETED)
        if self._opened.done():
            return self._opened.result()
        raise RolloutFailed(self._running.result())

    @property
    def door(self) -> Door:
        """The doors of a rollout that is open: `base_url`, `api_key`, `mcp_url`, `model`."""
        return self._opened.result()

    @property
    def score(self) -> Score | None:
        """What the task server's checks say; None without a server, and until the rollout has ended."""
        return None if self.record is None else self.record.score()

    async def end(self, error: BaseException | None = None) -> Record | None:
        """Seal it and write its end; `error` is what its code raised. None where it was cancelled."""
        if isinstance(error, asyncio.CancelledError):
            self._running.cancel()
            await asyncio.wait({self._running})
            return None
        if not self._finished.done() and not self._running.done():
            if error is None:
                self._finished.set_result(self.answer)
            else:
                self._finished.set_exception(error)
        self.record = await self._running
        return self.record

    async def _hold(self, task: AgentTask, door: Door) -> str | None:
        self._opened.set_result(door)
        return await self._finished


@dataclass(slots=True)
class Scope:
    """The rollouts of one trajectory's code, one for each model it calls."""

    group_id: str = field(default_factory=lambda: f"g-{uuid4().hex}")
    """The group they are compared in."""
    ids: dict[str, str] = field(default_factory=dict[str, str])
    """Model name → id of its rollout that has ended."""
    version: int = 0
    """Newest policy version that it sampled."""
    broken: Record | None = None
    """The first of its rollouts that a failure of infrastructure ended."""
    _open: dict[str, Rollout] = field(default_factory=dict[str, Rollout])

    async def door(self, owner: Owner) -> Door:
        """The door of this model's rollout, opened by the first call. Raises HarnessError where it has ended."""
        if owner.name in self.ids:
            fix = "make the call inside of the `model.rollout()` block"
            raise HarnessError(f"a call of {owner.name!r}", "the trajectory's rollout has ended", fix)
        if owner.name not in self._open:
            self._start(owner, None)
        return await self._open[owner.name].opened()

    @asynccontextmanager
    async def rollout(self, owner: Owner, task: Task | None) -> AsyncGenerator[Rollout]:
        """This model's rollout for the length of the block, with a session of its own for `task`.

        Raises RolloutFailed where it ends by a failure of infrastructure, HarnessError where the code has one already.
        """
        if owner.name in self._open or owner.name in self.ids:
            raise HarnessError(
                f"a second rollout of {owner.name!r} for one trajectory",
                "one is there already, since a trajectory has one rollout of each model",
                "open it before the first call of the model, and give each trajectory a coroutine of its own",
            )
        rollout = self._start(owner, task)
        try:
            await rollout.opened()
            yield rollout
        except BaseException as error:
            await asyncio.shield(self._end(owner.name, error))
            raise
        record = await self._end(owner.name, None)
        if record is not None and record.ending.is_infrastructure:
            raise RolloutFailed(record)

    async def close(self, error: BaseException | None) -> None:
        """End every rollout that is still open."""
        for name in list(self._open):
            await self._end(name, error)

    def _start(self, owner: Owner, task: Task | None) -> Rollout:
        rollout = self._open[owner.name] = owner.start_rollout(task, self.group_id)
        self.version = max(self.version, rollout.policy.version)
        return rollout

    async def _end(self, name: str, error: BaseException | None) -> Record | None:
        record = await self._open[name].end(error)
        del self._open[name]
        if record is not None:
            self.ids[name] = record.rollout_id
            if record.ending.is_infrastructure:
                self.broken = self.broken or record
        return record


_scope: ContextVar[Scope | None] = ContextVar("scope", default=None)


def current_scope() -> Scope | None:
    """The scope of the code that runs now; None outside of rollouts."""
    return _scope.get()


@contextmanager
def entered(scope: Scope) -> Generator[Scope]:
    """Model calls and trajectories of the block belong to `scope`."""
    outer, outer_ids = _scope.set(scope), rollouts_here.set(scope.ids)
    try:
        yield scope
    finally:
        _scope.reset(outer)
        rollouts_here.reset(outer_ids)
