"""The once law within one rollout: which tool calls are new, and which repeat one whose reply was lost on the way.

A repeat is (a) a call under an idempotency key that the agent's client gave before, or (b) the same tool with the same
arguments as a call whose connection broke before its reply was sent. JSON-RPC ids can't tell: every new client of an
agent starts them again. A repeat shares the first call's outcome, while it still runs too.
It knows nothing about HTTP, MCP or spans. Called by tools.py.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.gateway.exchange import Exchange, Reply


@dataclass(slots=True)
class Call:
    """One tool call that takes effect once."""

    key: str
    """Unique over all rollouts; the tool server sees it on every attempt."""
    exchange: Exchange
    """The latest request that waits for the outcome."""
    cancelled: bool = False
    """True once the agent has taken it back."""
    outcome: asyncio.Task[Reply] = field(init=False)
    """Runs to its end whoever waits."""


class CallLedger:
    """All tool calls of one rollout."""

    def __init__(self, rollout_id: str) -> None:
        self._rollout_id = rollout_id
        self._numbers = itertools.count(1)
        self._by_content: dict[str, Call] = {}
        self._by_agent_key: dict[str, Call] = {}
        self._running: set[asyncio.Task[Reply]] = set()

    def claim(
        self,
        params: Mapping[str, Any],
        exchange: Exchange,
        *,
        agent_key: str | None,
        perform: Callable[[Call], Coroutine[Any, Any, Reply]],
    ) -> tuple[Call, bool]:
        """The call that this request is about, and whether it repeats an earlier request.

        `params` are the request's without `_meta`. `perform(call)` is started, in a task of its own, for a new call
        only. A call that was taken back is made anew, under its old key: a server that keeps the once law then knows
        whether it had taken effect.
        """
        content = json.dumps(params, sort_keys=True)
        earlier = self._by_agent_key.get(agent_key) if agent_key else self._lost(content)
        if earlier is not None and not earlier.cancelled:
            earlier.exchange = exchange
            return earlier, True
        key = earlier.key if earlier is not None else f"{self._rollout_id}:{next(self._numbers)}"
        call = Call(key, exchange)
        call.outcome = asyncio.create_task(perform(call))
        self._running.add(call.outcome)
        call.outcome.add_done_callback(self._ended)
        self._by_content[content] = call
        if agent_key:
            self._by_agent_key[agent_key] = call
        return call, False

    def _lost(self, content: str) -> Call | None:
        call = self._by_content.get(content)
        return call if call is not None and call.exchange.reply_lost else None

    def _ended(self, outcome: asyncio.Task[Reply]) -> None:
        self._running.discard(outcome)
        if not outcome.cancelled():
            # Marks a failure as seen, for a call that nobody waits for any more.
            outcome.exception()

    async def settle(self, timeout_s: float) -> int:
        """Wait for running calls, at most `timeout_s`, then stop waiting; how many had to be given up."""
        if not self._running:
            return 0
        _, unfinished = await asyncio.wait(set(self._running), timeout=timeout_s)
        for outcome in unfinished:
            outcome.cancel()
        if unfinished:
            await asyncio.wait(unfinished)
        return len(unfinished)
