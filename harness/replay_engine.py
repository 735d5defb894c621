"""An engine that answers from one recorded trajectory: the turn whose messages are asked about, token for token.

It has the endpoints of a plain vLLM server (chat completions with token ids), no model and no templates: a prompt's ids
are those on record. A request that is not on record is refused, and where it first departs from the record is kept.
It knows nothing about gateways, agents or tools. Served by replay.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from traces.conversation import message_key, read_conversation
from traces.trajectory import Trajectory, Turn

_SHOWN_CHARS = 200


class TapeEngine:
    """Plays the turns of a trajectory, each once."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._left = list(trajectory.turns)
        self.model = trajectory.turns[0].model
        """Name it serves."""
        self.departure: str | None = None
        """The first request that is not on record, in words; None while all were."""

    def app(self) -> Starlette:
        """The server."""
        return Starlette(
            routes=[
                Route("/health", self._health, methods=["GET"]),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
            ]
        )

    def _health(self, request: Request) -> Response:
        del request
        return Response()

    def _models(self, request: Request) -> Response:
        del request
        return JSONResponse({"data": [{"id": self.model, "root": "recorded"}]})

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        turns = self._take(body)
        if turns is None:
            error = {"message": f"not on record: {self.departure}", "type": "NotRecorded"}
            return JSONResponse({"error": error}, 400)
        reply = _reply(turns)
        if body.get("stream"):
            return StreamingResponse(_events(reply), media_type="text/event-stream")
        return JSONResponse(reply)

    def _take(self, body: Mapping[str, Any]) -> list[Turn] | None:
        """As many turns with these messages as answers are asked for, off the tape; None where there are fewer."""
        wanted = int(body.get("n") or 1)
        asked = read_conversation(body["messages"], body.get("tools") or ()).chain
        found = [turn for turn in self._left if read_conversation(turn.input_messages, turn.tools).chain == asked]
        if len(found) < wanted:
            self.departure = self.departure or self._describe(body)
            return None
        for turn in found[:wanted]:
            self._left.remove(turn)
        return found[:wanted]

    def _describe(self, body: Mapping[str, Any]) -> str:
        if not self._left:
            return f"a model call after the last recorded one, with {len(body['messages'])} messages"
        turn = self._left[0]
        messages: list[dict[str, Any]] = body["messages"]
        for index, (was, now) in enumerate(zip(turn.input_messages, messages, strict=False)):
            if message_key(was) != message_key(now):
                return f"turn {turn.index}, message {index} ({now.get('role')}): {difference(was, now)}"
        if len(turn.input_messages) != len(messages):
            return f"turn {turn.index}: recorded {len(turn.input_messages)} messages, now {len(messages)}"
        return f"turn {turn.index}, tools: {difference(turn.tools, body.get('tools') or [])}"


def difference(was: Any, now: Any) -> str:
    """Both values from a little before where their JSON first differs."""
    left, right = (value if isinstance(value, str) else json.dumps(value, sort_keys=True) for value in (was, now))
    same = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    start = max(0, same - _SHOWN_CHARS // 4)
    shown = [repr(text[start : start + _SHOWN_CHARS]) for text in (left, right)]
    return f"recorded {shown[0]}, now {shown[1]} (from character {start})"


def _reply(turns: Sequence[Turn]) -> dict[str, Any]:
    choices = [
        {
            "index": index,
            "message": turn.output_message,
            "finish_reason": turn.finish_reason or None,
            "stop_reason": None,
            "token_ids": turn.completion_ids_T.tolist(),
            "logprobs": {"content": [{"token": "", "logprob": float(value)} for value in turn.logprobs_T]},
        }
        for index, turn in enumerate(turns)
    ]
    first = turns[0]
    sampled = sum(len(turn.completion_ids_T) for turn in turns)
    read = len(first.prompt_ids_T)
    return {
        "id": f"recorded-{first.span_id}",
        "created": first.start_ns // 10**9,
        "choices": choices,
        "prompt_token_ids": first.prompt_ids_T.tolist(),
        "usage": {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled},
    }


def _events(reply: Mapping[str, Any]) -> Iterator[bytes]:
    """The reply as an event stream, each answer in one piece."""
    head = {"id": reply["id"], "created": reply["created"]}
    yield _event({**head, "prompt_token_ids": reply["prompt_token_ids"], "choices": []})
    for choice in reply["choices"]:
        message: dict[str, Any] = choice["message"]
        asked: list[dict[str, Any]] = message.get("tool_calls") or []
        calls = [{**call, "index": index} for index, call in enumerate(asked)]
        delta = message | ({"tool_calls": calls} if calls else {})
        rest = {key: value for key, value in choice.items() if key != "message"}
        yield _event({**head, "choices": [{**rest, "delta": delta}]})
    yield _event({**head, "choices": [], "usage": reply["usage"]})
    yield b"data: [DONE]\n\n"


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
