"""Turns without token ids → ids and log-probabilities under a policy: vLLM's rendering and prompt log-probabilities.

These tokens were not sampled by the policy (law 1's one exception): they are read off another model's words and marked
on the span (`harness.tokens.rescored`) and among the trajectory's evidence gaps (`rescored_tokens`). They are used for
offline training only, and only where it is asked for. It knows nothing about stores or training. Called by offline.py.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import aiohttp
import numpy as np

from harness.errors import EngineError
from harness.gateway.continuation import find_turn_end
from traces import semconv
from traces.span import Span, Tokens
from traces.trajectory import Turn

RESCORED = "rescored_tokens"
_AT_ONCE = 16
_TIMEOUT_S = 300.0
_RENDER = "/v1/chat/completions/render"


class Relabeller:
    """Asks one engine; made once for many trajectories."""

    def __init__(self, http: aiohttp.ClientSession, engine_url: str, model: str) -> None:
        self._http = http
        self._url = engine_url
        self._model = model
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._turn_end: int | None = None

    async def tokens(self, turn: Turn) -> Tokens | None:
        """What the policy would have read and said; None where the template doesn't render the answer after the prompt.

        Raises EngineError where the engine can't be asked or has no such endpoints.
        """
        async with self._slots:
            end = await self._find_turn_end()
            prompt = await self._render(turn.input_messages, turn.tools, open_turn=True)
            whole = await self._render([*turn.input_messages, turn.output_message], turn.tools, open_turn=False)
            said = _said(prompt, whole, end)
            if not said:
                return None
            logprobs = await self._logprobs(prompt + said, len(prompt))
        if logprobs is None:
            return None
        return Tokens(np.array(prompt, np.int32), np.array(said, np.int32), np.array(logprobs, np.float32))

    async def _find_turn_end(self) -> int:
        if self._turn_end is None:
            user = {"role": "user", "content": "q"}
            answers = [[user, {"role": "assistant", "content": text}] for text in ("a", "b")]
            left, right = [await self._render(messages, (), open_turn=False) for messages in answers]
            self._turn_end = find_turn_end(left, right)
            if self._turn_end is None:
                found = "its chat template closes an assistant message with no token of its own"
                raise EngineError(f"rescore with {self._model}", found, "take a model whose template does")
        return self._turn_end

    async def _render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, open_turn: bool
    ) -> list[int]:
        body = {"model": self._model, "messages": list(messages), "add_generation_prompt": open_turn}
        return (await self._post(_RENDER, {**body, "tools": list(tools)} if tools else body))["token_ids"]

    async def _logprobs(self, ids: list[int], start: int) -> list[float] | None:
        """Of ids from `start` on, each given those before it; None where the engine calls one impossible."""
        body = {"model": self._model, "prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        (choice,) = (await self._post("/v1/completions", body))["choices"]
        entries = cast("list[Mapping[str, Any] | None]", choice["prompt_logprobs"])[start:]
        values = [
            float((entry or {})[str(token)]["logprob"]) for entry, token in zip(entries, ids[start:], strict=True)
        ]
        return values if all(math.isfinite(value) for value in values) else None

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        asked = f"POST {path} of the engine at {self._url}"
        fix = "rescoring needs vLLM with --enable-scale-out, as `harness` starts it; see the engine's log"
        try:
            async with self._http.post(f"{self._url}{path}", json=body) as response:
                if response.status != 200:
                    raise EngineError(asked, f"status {response.status}: {(await response.text())[:300]}", fix)
                return await response.json()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise EngineError(asked, f"{type(error).__name__}: {error}", fix) from error


def _said(prompt: list[int], whole: list[int], end: int) -> list[int]:
    """The answer's ids up to the token that closes its turn; empty where it isn't rendered after the prompt."""
    rest = whole[len(prompt) :]
    if whole[: len(prompt)] != prompt or end not in rest:
        return []
    return rest[: len(rest) - rest[::-1].index(end)]


def relabelled(span: Span, tokens: Tokens) -> Span:
    """The span with these tokens, as of policy version 0, marked."""
    attributes = {**span.attributes, semconv.TOKENS_RESCORED: True}
    return replace(span, tokens=tokens, policy_version=0, attributes=attributes)


def open_relabeller(engine_url: str, model: str) -> tuple[aiohttp.ClientSession, Relabeller]:
    """A relabeller and the connections to close after it."""
    http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
    return http, Relabeller(http, engine_url, model)
