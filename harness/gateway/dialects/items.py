"""The items of OpenAI's Responses as chat messages, and an answer as items; pure.

Neighbouring reasoning, message and function_call items are one turn of the model and become one chat message, so that
what the gateway split apart comes together again and continues the sampled turn. It knows nothing about HTTP or the
response around the items.
Source: OpenAI API reference, responses/create, "input" and "output". Called by responses.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from harness.gateway.dialects.bodies import chat_content, text_of
from harness.gateway.request import BadRequest

_ROLES = ("user", "system", "developer", "assistant")  # no set: what a client sends may not be hashable


def read_input(given: str | list[dict[str, Any]], known: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Input as chat messages; `known` are this rollout's own output items by id. Raises BadRequest."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    reader = _Reader()
    for index, item in enumerate(given):
        where = f"input[{index}]"
        if item.get("type") == "item_reference":
            item_id = str(item.get("id"))
            if item_id not in known:
                raise BadRequest(f"{where} refers to item {item_id!r}, which this rollout has not produced", where)
            item = known[item_id]
        reader.read(item, where)
    return reader.messages


class _Reader:
    """Puts a turn's items together."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._turn: dict[str, Any] | None = None
        """The assistant message that the next item may belong to."""

    def read(self, item: dict[str, Any], where: str) -> None:
        kind = item.get("type") or "message"
        if kind == "message":
            self._read_message(item, where)
        elif kind == "function_call":
            function = {"name": str(item.get("name")), "arguments": str(item.get("arguments") or "")}
            call = {"id": str(item.get("call_id")), "type": "function", "function": function}
            self._same_turn().setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            output: Any = item.get("output")
            content = output if isinstance(output, str) else chat_content(_parts(output, where))
            self._add({"role": "tool", "tool_call_id": str(item.get("call_id")), "content": content})
        elif kind == "reasoning":
            self._new_turn()["reasoning"] = _reasoning(item, where)
        else:
            raise BadRequest(f"{where} is an item {kind!r}, which can't be served", where)

    def _read_message(self, item: dict[str, Any], where: str) -> None:
        role, content = item.get("role"), item.get("content")
        if role not in _ROLES:
            raise BadRequest(f"{where}.role is {role!r}: use user, assistant, system or developer", f"{where}.role")
        if role != "assistant":
            self._add({"role": role, "content": content if isinstance(content, str) else _content(content, where)})
            return
        turn = self._turn if self._turn is not None and not self._turn["content"] else self._new_turn()
        turn["content"] = content if isinstance(content, str) else _said(content, where)

    def _add(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self._turn = None

    def _new_turn(self) -> dict[str, Any]:
        turn: dict[str, Any] = {"role": "assistant", "content": ""}
        self.messages.append(turn)
        self._turn = turn
        return turn

    def _same_turn(self) -> dict[str, Any]:
        return self._turn if self._turn is not None else self._new_turn()


def _content(content: Any, where: str) -> str | list[dict[str, Any]]:
    return chat_content(_parts(content, where))


def _listed(content: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in cast("list[Any]", content)):
        raise BadRequest(f"{where} holds neither a string nor a list of parts", where)
    return cast("list[dict[str, Any]]", content)


def _parts(content: Any, where: str) -> list[dict[str, Any]]:
    return [_part(part, f"{where}.content[{at}]") for at, part in enumerate(_listed(content, where))]


def _part(part: dict[str, Any], where: str) -> dict[str, Any]:
    text = text_of(part, where)
    if text is not None:
        return {"type": "text", "text": text}
    if part.get("type") != "input_image" or not part.get("image_url"):
        kind = part.get("type")
        raise BadRequest(f"{where} is a part {kind!r}, which can't be served: only text and images by URL", where)
    detail = {"detail": part["detail"]} if part.get("detail") else {}
    return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}


def _said(content: Any, where: str) -> str:
    """The text of an assistant's message: its parts were split by nobody but us."""
    said: list[str] = []
    for at, part in enumerate(_listed(content, where)):
        text = part.get("refusal") if part.get("type") == "refusal" else text_of(part, f"{where}.content[{at}]")
        if not isinstance(text, str):
            raise BadRequest(f"{where}.content[{at}] is a part {part.get('type')!r}, not text", where)
        said.append(text)
    return "".join(said)


def _reasoning(item: dict[str, Any], where: str) -> str:
    parts = _listed(item.get("content") or item.get("summary") or [], where)
    return "".join(str(part.get("text", "")) for part in parts)


def read_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Function tools as chat tools; raises BadRequest for tools that run at OpenAI or take free text."""
    chat: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        if tool.get("type") != "function":
            message = f"tools[{index}] is a {tool.get('type')!r} tool, which can't be served: only function tools"
            raise BadRequest(message, f"tools[{index}]")
        function = {name: tool[name] for name in ("name", "description", "strict") if tool.get(name) is not None}
        function["parameters"] = tool.get("parameters") or {"type": "object", "properties": {}}
        chat.append({"type": "function", "function": function})
    return chat


def output_items(message: Mapping[str, Any], answer_id: str, status: str) -> list[dict[str, Any]]:
    """A chat answer as output items: reasoning, message, function calls; their ids follow from their places."""
    items: list[dict[str, Any]] = []
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    if reasoning:
        items.append(reasoning_item(item_id("reasoning", answer_id, len(items)), reasoning, status))
    calls: list[dict[str, Any]] = message.get("tool_calls") or []
    if message.get("content") or not calls:
        text = message.get("content") or ""
        items.append(message_item(item_id("message", answer_id, len(items)), text, status))
    for call in calls:
        items.append(call_item(item_id("function_call", answer_id, len(items)), call, status))
    return items


def item_id(kind: str, answer_id: str, place: int) -> str:
    """An id that is the same however the answer is written."""
    prefix = {"reasoning": "rs", "message": "msg", "function_call": "fc"}[kind]
    return f"{prefix}_{answer_id}_{place}"


def reasoning_item(item: str, text: str | None, status: str) -> dict[str, Any]:
    """A reasoning item; without its text it has just begun."""
    content = [{"type": "reasoning_text", "text": text}] if text is not None else []
    return {"type": "reasoning", "id": item, "summary": [], "content": content, "status": status}


def message_item(item: str, text: str | None, status: str) -> dict[str, Any]:
    """A message item; without its text it has just begun."""
    content = [text_part(text)] if text is not None else []
    return {"type": "message", "id": item, "role": "assistant", "status": status, "content": content}


def text_part(text: str) -> dict[str, Any]:
    """The part of a message item."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def call_item(item: str, call: Mapping[str, Any], status: str) -> dict[str, Any]:
    """A function call item."""
    function: Mapping[str, Any] = call.get("function") or {}
    return {
        "type": "function_call",
        "id": item,
        "call_id": call.get("id"),
        "name": function.get("name"),
        "arguments": function.get("arguments"),
        "status": status,
    }
