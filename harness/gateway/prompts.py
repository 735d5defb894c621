"""The prompt of a request: as the engine renders it, with sampled turns spliced in where the messages continue one.

A request that continues nothing needs no work here: the engine renders and samples it in one call. It knows vLLM's
render call and nothing of HTTP, limits or spans. Called by model.py and stream.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from harness.gateway.continuation import TurnEnd, find_turn_end, splice, tail_after_turn, tail_by_count
from harness.gateway.transcript import Reading
from harness.gateway.turns import Continued
from harness.gateway.upstream import EngineRefusal, Upstream

_TEMPLATE_ARGUMENTS = ("chat_template_kwargs", "reasoning_effort", "tool_choice")
_NO_SUCH_ENDPOINT = frozenset({403, 404, 405, 501})


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a request matters to its prompt."""

    reading: Reading
    """Messages and tools."""
    constraints: Mapping[str, Any]
    """Template arguments among others."""
    is_text: bool = False
    """A text to complete: nothing is rendered."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine is to read."""

    ids: list[int] | None
    """Ids to sample from; None leaves rendering to the engine."""
    rendered: list[int] | None
    """The template's own rendering; None until the engine's answer tells it."""
    how: str
    """`rendered`, `spliced` or `unspliced` (the template gave no place for the splice, or the engine can't render)."""


class PromptMaker:
    """Makes prompts for one engine."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._ends: dict[str, TurnEnd | None] = {}
        self._probing = asyncio.Lock()
        self._can_render = True
        self._quick_agrees: dict[tuple[Any, ...], bool] = {}

    async def make(self, model: str, asked: Asked, continued: Continued | None) -> Prompt:
        """The prompt of a request to `model`; raises EngineFailure or EngineRefusal."""
        if continued is None:
            return Prompt(None, None, "rendered")
        if asked.is_text:
            return await self._continue_text(model, asked, continued)
        if asked.reading.has_media or not self._can_render:
            return Prompt(None, None, "unspliced")
        try:
            rendered = await self._upstream.render(_render_body(model, asked, asked.reading.raws))
        except EngineRefusal as refusal:
            _raise_unless_absent(refusal)
            self._can_render = False
            return Prompt(None, None, "unspliced")
        tail = await self._tail(model, asked, continued, rendered)
        if tail is None:
            return Prompt(rendered, rendered, "unspliced")
        return Prompt(splice(continued.sequence, tail, continued.turn), rendered, "spliced")

    async def count(self, model: str, asked: Asked, continued: Continued | None) -> int:
        """How many tokens a request's prompt has; raises EngineFailure or EngineRefusal."""
        prompt = await self.make(model, asked, continued)
        ids = prompt.ids or await self._upstream.render(_render_body(model, asked, asked.reading.raws))
        return len(ids)

    async def _continue_text(self, model: str, asked: Asked, continued: Continued) -> Prompt:
        rest = "".join(known.message.get("content") or "" for known in asked.reading.messages[continued.messages :])
        try:
            ids = continued.sequence + (await self._upstream.tokenize(model, rest) if rest else [])
        except EngineRefusal as refusal:
            _raise_unless_absent(refusal)
            return Prompt(None, None, "unspliced")
        return Prompt(ids, ids, "spliced")

    async def _tail(self, model: str, asked: Asked, continued: Continued, rendered: list[int]) -> list[int] | None:
        end = await self._turn_end(model)
        if end is None:
            return None
        quick = None
        if end.text not in str(asked.reading.messages[continued.messages - 1].message):
            quick = tail_after_turn(rendered, continued.turn.rendered, end.token)
        shape = _shape(asked, continued.messages)
        if quick is not None and self._quick_agrees.get(shape):
            return quick
        body = _render_body(model, asked, asked.reading.raws[: continued.messages])
        upto = await self._upstream.render({**body, "add_generation_prompt": False})
        counted = tail_by_count(rendered, upto, end.token)
        if quick is not None:
            self._quick_agrees[shape] = self._quick_agrees.get(shape, True) and quick == counted
        return counted

    async def _turn_end(self, model: str) -> TurnEnd | None:
        """The token that closes a message in the model's chat template; found once, from two renderings."""
        if model in self._ends:
            return self._ends[model]
        async with self._probing:
            if model not in self._ends:
                self._ends[model] = await self._probe(model)
            return self._ends[model]

    async def _probe(self, model: str) -> TurnEnd | None:
        bodies = [
            {
                "model": model,
                "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}],
                "add_generation_prompt": False,
            }
            for answer in ("a", "b")
        ]
        left, right = [await self._upstream.render(body) for body in bodies]
        token = find_turn_end(left, right)
        return None if token is None else TurnEnd(token, await self._upstream.detokenize(model, [token]))


def _raise_unless_absent(refusal: EngineRefusal) -> None:
    """Pass a refusal on, unless it says that the engine has no such endpoint."""
    if refusal.status not in _NO_SUCH_ENDPOINT or "model" in str(refusal):
        raise refusal


def _render_body(model: str, asked: Asked, messages: list[msgspec.Raw]) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "messages": messages}
    if asked.reading.tools.raw is not None:
        body["tools"] = asked.reading.tools.raw
    return body | _template_arguments(asked.constraints)


def _template_arguments(constraints: Mapping[str, Any]) -> dict[str, Any]:
    return {name: constraints[name] for name in _TEMPLATE_ARGUMENTS if name in constraints}


def _shape(asked: Asked, upto: int) -> tuple[Any, ...]:
    """What a template may treat differently: the kind of the continued answer and of what follows it."""
    answer = asked.reading.messages[upto - 1].message
    following = tuple(dict.fromkeys(known.message["role"] for known in asked.reading.messages[upto:]))
    kind = (bool(answer.get("content")), bool(answer.get("tool_calls")), asked.reading.tools.raw is not None)
    return (*kind, following, str(_template_arguments(asked.constraints)))
