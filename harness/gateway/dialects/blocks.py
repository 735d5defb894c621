"""Anthropic's content blocks as chat messages, and back; pure.

An assistant message of blocks is one chat message, whatever the blocks' number, so that what the gateway split apart
comes together again and continues the sampled turn. It knows nothing about HTTP or answers' ends.
Source: Anthropic API reference, messages. Called by messages.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from harness.gateway.dialects.bodies import chat_content, text_of
from harness.gateway.request import BadRequest

# Claude Code's first system block holds a hash that differs with every request: no part of what the policy is told.
_BILLING_HEADER = "x-anthropic-billing-header"


def read_system(system: str | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The system prompt as chat messages, one or none; raises BadRequest."""
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system or []
    parts = [_user_part(block, f"system[{at}]") for at, block in enumerate(blocks)]
    parts = [part for part in parts if not str(part.get("text")).startswith(_BILLING_HEADER)]
    return [{"role": "system", "content": chat_content(parts)}] if parts else []


def read_messages(messages: list[dict[str, Any]], sampled: Mapping[str, str]) -> list[dict[str, Any]]:
    """Messages as chat messages; `sampled` are the arguments of known tool calls by id. Raises BadRequest."""
    chat: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        where, role = f"messages[{index}]", message.get("role")
        blocks = _blocks(message.get("content"), where)
        if role == "assistant":
            chat.append(_assistant(blocks, where, sampled))
        elif role in ("user", "system"):
            chat += _user(blocks, str(role), where)
        else:
            raise BadRequest(f"{where}.role is {role!r}: use user or assistant", f"{where}.role")
    return chat


def _blocks(content: Any, where: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in cast("list[Any]", content)):
        raise BadRequest(f"{where}.content is neither a string nor a list of blocks", f"{where}.content")
    return cast("list[dict[str, Any]]", content)


def _assistant(blocks: list[dict[str, Any]], where: str, sampled: Mapping[str, str]) -> dict[str, Any]:
    texts: list[str] = []
    thinking: list[str] = []
    calls: list[dict[str, Any]] = []
    for at, block in enumerate(blocks):
        here = f"{where}.content[{at}]"
        kind = block.get("type")
        if kind == "text":
            texts.append(text_of(block, here) or "")
        elif kind == "thinking":
            thinking.append(str(block.get("thinking", "")))
        elif kind == "tool_use":
            calls.append(_call(block, sampled))
        else:
            raise BadRequest(f"{here} is a block {kind!r}, which no answer of this model holds", here)
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thinking:
        message["reasoning"] = "".join(thinking)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: dict[str, Any], sampled: Mapping[str, str]) -> dict[str, Any]:
    call_id = str(block.get("id"))
    given: dict[str, Any] = block.get("input") or {}
    arguments = sampled.get(call_id)
    # A client's JSON may write the same numbers in another way: then the sampled text is what was said.
    if arguments is None or tool_input(arguments) != given:
        arguments = msgspec.json.encode(given).decode()
    function = {"name": str(block.get("name")), "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _user(blocks: list[dict[str, Any]], role: str, where: str) -> list[dict[str, Any]]:
    """Tool results as messages of their own, in order with what is said between them."""
    messages: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []

    def flush() -> None:
        if parts:
            messages.append({"role": role, "content": chat_content(list(parts))})
            parts.clear()

    for at, block in enumerate(blocks):
        here = f"{where}.content[{at}]"
        if block.get("type") == "tool_result":
            flush()
            inner = [_user_part(one, here) for one in _blocks(block.get("content") or "", here)]
            result = {"role": "tool", "tool_call_id": str(block.get("tool_use_id")), "content": chat_content(inner)}
            messages.append(result)
        else:
            parts.append(_user_part(block, here))
    flush()
    return messages or [{"role": role, "content": ""}]


def _user_part(block: dict[str, Any], where: str) -> dict[str, Any]:
    text = text_of(block, where)
    if text is not None:
        return {"type": "text", "text": text}
    if block.get("type") != "image":
        raise BadRequest(
            f"{where} is a block {block.get('type')!r}, which can't be served: only text and images", where
        )
    source = block.get("source")
    if not isinstance(source, dict):
        raise BadRequest(f"{where}.source is {source!r}, not an object", f"{where}.source")
    source = cast("dict[str, Any]", source)
    if source.get("type") == "url":
        url = source.get("url")
    elif source.get("type") == "base64":
        url = f"data:{source.get('media_type')};base64,{source.get('data')}"
    else:
        raise BadRequest(f"{where}.source is {source.get('type')!r}, which can't be served: use base64 or url", where)
    return {"type": "image_url", "image_url": {"url": url}}


def read_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Client tools as chat tools; raises BadRequest for tools that run on Anthropic's servers."""
    chat: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        if tool.get("type") not in (None, "custom"):
            message = f"tools[{index}] is a {tool.get('type')!r} tool, which can't be served: only tools of your own"
            raise BadRequest(message, f"tools[{index}]")
        function = {name: tool[name] for name in ("name", "description", "strict") if tool.get(name) is not None}
        function["parameters"] = tool.get("input_schema") or {"type": "object", "properties": {}}
        chat.append({"type": "function", "function": function})
    return chat


def answer_blocks(message: Mapping[str, Any], signature: str) -> list[dict[str, Any]]:
    """A chat answer as blocks: thinking, text, tool uses."""
    blocks: list[dict[str, Any]] = []
    thinking = message.get("reasoning") or message.get("reasoning_content")
    if thinking:
        blocks.append({"type": "thinking", "thinking": thinking, "signature": signature})
    if message.get("content"):
        blocks.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls") or ():
        function: dict[str, Any] = call.get("function") or {}
        given = tool_input(str(function.get("arguments")))
        blocks.append({"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": given})
    return blocks


def tool_input(arguments: str) -> dict[str, Any]:
    """Arguments as the object that Anthropic's clients want; empty where the policy wrote no JSON object."""
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return {}
