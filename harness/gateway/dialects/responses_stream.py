"""A streamed answer as the events of OpenAI's Responses: text and reasoning as they come, function calls whole.

A function call is told once it is on disk, so that no agent acts on a call that may yet be lost. It knows nothing about
the engine, rollouts or tokens.
Source: OpenAI API reference, responses-streaming. Called by responses.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from harness.gateway.dialects.items import item_id, message_item, output_items, reasoning_item, text_part
from harness.gateway.dialects.response import response_head, response_object
from harness.gateway.failures import Failure
from harness.gateway.replies import ChatChoice
from harness.gateway.request import ModelAnswer, ModelRequest

_PART = {"message": "output_text", "reasoning": "reasoning_text"}


class ResponsesStreamWriter:
    """Writes the events, numbered."""

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
        self._id = ""
        self._events = 0
        self._items: list[tuple[str, str]] = []
        """Kind and text of the items so far; the last one may be open."""
        self._open = False

    def begin(self, answer_id: str, created: int, prompt_tokens: int) -> Iterable[bytes]:
        """The response without output."""
        self._id = answer_id
        head = response_head(self._request, answer_id, created)
        yield self._event("response.created", response=head)
        yield self._event("response.in_progress", response=head)

    def delta(self, choice: ChatChoice) -> Iterable[bytes]:
        """New reasoning and new text."""
        delta = choice.delta or {}
        yield from self._say("reasoning", delta.get("reasoning") or delta.get("reasoning_content"))
        yield from self._say("message", delta.get("content"))

    def _say(self, kind: str, text: str | None) -> Iterable[bytes]:
        if not text:
            return
        if not self._open or self._items[-1][0] != kind:
            yield from self._close()
            yield from self._begin(kind)
        self._items[-1] = (kind, self._items[-1][1] + text)
        more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        yield self._event(f"response.{_PART[kind]}.delta", **self._place(), content_index=0, delta=text, **more)

    def _begin(self, kind: str) -> Iterable[bytes]:
        self._items.append((kind, ""))
        self._open = True
        yield self._event("response.output_item.added", output_index=self._last(), item=self._item(None))
        part = text_part("") if kind == "message" else {"type": "reasoning_text", "text": ""}
        yield self._event("response.content_part.added", **self._place(), content_index=0, part=part)

    def _close(self) -> Iterable[bytes]:
        if not self._open:
            return
        self._open = False
        kind, text = self._items[-1]
        item = self._item(text)
        more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        yield self._event(f"response.{_PART[kind]}.done", **self._place(), content_index=0, text=text, **more)
        part = item["content"][0]
        yield self._event("response.content_part.done", **self._place(), content_index=0, part=part)
        yield self._event("response.output_item.done", output_index=self._last(), item=item)

    def _item(self, text: str | None) -> dict[str, Any]:
        kind = self._items[-1][0]
        write = message_item if kind == "message" else reasoning_item
        status = "in_progress" if text is None else "completed"
        return write(item_id(kind, self._id, self._last()), text, status)

    def _last(self) -> int:
        return len(self._items) - 1

    def _place(self) -> dict[str, Any]:
        return {"item_id": item_id(self._items[-1][0], self._id, self._last()), "output_index": self._last()}

    def finish(self, answer: ModelAnswer) -> Iterable[bytes]:
        """The function calls and the whole response."""
        yield from self._close()
        response = response_object(self._request, answer)
        if not self._items and response["output"][0]["type"] == "message":
            yield from self._begin("message")
            yield from self._close()
        (sampled,) = answer.choices
        for item in output_items(sampled.message, self._id, "completed"):
            if item["type"] == "function_call":
                yield from self._call(item)
        yield self._event(f"response.{response['status']}", response=response)

    def _call(self, item: dict[str, Any]) -> Iterable[bytes]:
        self._items.append(("function_call", ""))
        place = self._place()
        item = {**item, "id": place["item_id"]}
        begun = {**item, "arguments": "", "status": "in_progress"}
        arguments = item["arguments"]
        yield self._event("response.output_item.added", output_index=self._last(), item=begun)
        yield self._event("response.function_call_arguments.delta", **place, delta=arguments)
        yield self._event("response.function_call_arguments.done", **place, arguments=arguments, name=item["name"])
        yield self._event("response.output_item.done", output_index=self._last(), item=item)

    def fail(self, failure: Failure) -> Iterable[bytes]:
        """The error as an event: flat as OpenAI writes it, and nested as its clients look for it when they raise."""
        words = {"code": failure.code, "message": failure.message, "param": failure.param}
        yield self._event("error", **words, error={"type": failure.kind, **words})

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._events, **fields}
        self._events += 1
        return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
