"""A judge to be asked from many tasks at once: it waits its turn, retries, counts cost, remembers accepted answers.

It knows nothing about trajectories, rubrics, or what a good answer is. Called by ballot.py and independent.py.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from typing import Any

from harness.scoring.judge_cache import JudgeCache
from harness.scoring.litellm_call import (
    EndpointBusy,
    JudgeSpec,
    JudgeUsage,
    Messages,
    Reply,
    SchemaRefused,
    complete,
    failed,
)

LONGEST_WAIT_S = 30.0


class Judge:
    """One judge of a run; its limits and its count of cost hold over all that ask it."""

    def __init__(self, spec: JudgeSpec, cache: JudgeCache | None = None) -> None:
        self.spec = spec
        self.usage = JudgeUsage()
        """Sum over all questions so far."""
        self._cache = cache
        self._gate = asyncio.Semaphore(spec.concurrency)
        self._send_schema = spec.json_schema
        self._resume_at = 0.0
        self._random = random.Random(0)

    def key(self, messages: Messages, vote: int = 0) -> str:
        """Cache key of a question: content, judge and how it is asked; `vote` tells independent samples apart."""
        spec = self.spec
        parts = [spec.model, spec.api_base, spec.temperature, spec.max_answer_tokens, vote, list(messages)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()

    def recall(self, key: str) -> str | None:
        """An accepted answer from the cache; None when there is none."""
        text = None if self._cache is None else self._cache.get(key)
        if text is not None:
            self.usage.cached += 1
        return text

    def remember(self, key: str, text: str) -> None:
        """Keep an answer that was accepted."""
        if self._cache is not None:
            self._cache.put(key, self.spec.model, text)

    async def ask(self, messages: Messages, schema: dict[str, Any]) -> Reply:
        """One answer from the endpoint; its usage holds the retries it took.

        Raises JudgeFailed when attempts run out or the endpoint refuses this question, and JudgeError when no question
        can succeed: no such model, no key, no right, no LiteLLM.
        """
        fault: EndpointBusy | None = None
        for attempt in range(self.spec.attempts):
            if fault is not None:
                await asyncio.sleep(self._wait_s(attempt, fault))
            try:
                async with self._gate:
                    await self._wait_for_rate_limit()
                    reply = await self._once(messages, schema)
            except EndpointBusy as error:
                fault = error
                # A Retry-After holds for every question to this judge, not just for the one that met it.
                self._resume_at = max(self._resume_at, time.monotonic() + error.retry_after_s)
                continue
            reply.usage.retries = attempt
            self.usage.add(reply.usage)
            return reply
        self.usage.retries += self.spec.attempts - 1
        raise failed(self.spec, f"{self.spec.attempts} attempts failed, the last with {fault}")

    async def _once(self, messages: Messages, schema: dict[str, Any]) -> Reply:
        if self._send_schema:
            try:
                return await complete(self.spec, messages, schema)
            except SchemaRefused:
                # Maybe it was something else: the schema is given up only when it turns out to have been the reason.
                reply = await complete(self.spec, messages, None)
                self._send_schema = False
                return reply
        return await complete(self.spec, messages, None)

    def _wait_s(self, attempt: int, fault: EndpointBusy) -> float:
        wait = min(LONGEST_WAIT_S, self.spec.backoff_s * 2 ** (attempt - 1)) * self._random.uniform(0.5, 1.5)
        return max(wait, fault.retry_after_s)

    async def _wait_for_rate_limit(self) -> None:
        remaining = self._resume_at - time.monotonic()
        if remaining > 0:
            await asyncio.sleep(remaining)
