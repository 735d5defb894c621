"""Messages in two forms: OpenAI chat (what agents send and judges read) and GenAI parts (what spans hold).

It knows nothing about spans or tokens; pure, and lossless for text, tool calls, tool results, reasoning and names.
`build.py` writes spans with it, `assemble.py` and the importers read them with it.
Source of the parts form: semantic-conventions-genai, gen-ai-input-messages.json and gen-ai-output-messages.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

_KNOWN_KEYS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content"})


def genai_message(message: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    """An OpenAI chat message as a GenAI message; `finish_reason` on output messages only."""
    parts: list[dict[str, Any]] = []
    # vLLM says `reasoning`, older servers and DeepSeek's `reasoning_content`.
    for key in ("reasoning", "reasoning_content"):
        if message.get(key):
            parts.append({"type": "reasoning", "content": message[key], "key": key})
    if message.get("role") == "tool":
        parts.append(
            {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": message.get("content")}
        )
    else:
        parts.extend(_content_parts(message.get("content")))
    for call in message.get("tool_calls") or ():
        function: Mapping[str, Any] = call.get("function") or {}
        parts.append(
            {
                "type": "tool_call",
                "id": call.get("id"),
                "name": function.get("name"),
                "arguments": function.get("arguments"),
            }
        )
    result: dict[str, Any] = {"role": message.get("role", ""), "parts": parts}
    if message.get("name"):
        result["name"] = message["name"]
    extra = {key: value for key, value in message.items() if key not in _KNOWN_KEYS and value is not None}
    if extra:
        result["extra"] = extra
    if finish_reason is not None:
        result["finish_reason"] = finish_reason
    return result


def _content_parts(content: Any) -> list[dict[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    parts: list[dict[str, Any]] = []
    for item in content:
        if item.get("type") in ("text", "input_text", "output_text"):
            parts.append({"type": "text", "content": item.get("text", ""), "listed": True})
        else:
            parts.append(dict(item))
    return parts


def chat_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A GenAI message as an OpenAI chat message; one that carries several tool results needs `chat_messages`."""
    return chat_messages(message)[0]


def chat_messages(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A GenAI message as OpenAI chat messages: one, or one for each tool result it carries."""
    parts: list[dict[str, Any]] = list(message.get("parts") or ())
    results = [_tool_message(part) for part in parts if part.get("type") == "tool_call_response"]
    parts = [part for part in parts if part.get("type") != "tool_call_response"]
    if results and not parts:
        return results
    chat: dict[str, Any] = {"role": message.get("role", "")}
    chat["content"] = _chat_content([part for part in parts if part.get("type") not in ("tool_call", "reasoning")])
    for part in parts:
        if part.get("type") == "reasoning":
            chat[part.get("key", "reasoning")] = part.get("content")
    calls = [_chat_call(part) for part in parts if part.get("type") == "tool_call"]
    if calls:
        chat["tool_calls"] = calls
    if message.get("name"):
        chat["name"] = message["name"]
    return [*results, chat | dict(message.get("extra") or {})]


def _tool_message(part: Mapping[str, Any]) -> dict[str, Any]:
    # `result` is the older name of `response`.
    response = part.get("response", part.get("result"))
    if not isinstance(response, str | list):
        response = json.dumps(response)
    return {"role": "tool", "tool_call_id": part.get("id"), "content": response}


def _chat_content(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]] | None:
    if not parts:
        return None
    if len(parts) == 1 and parts[0].get("type") == "text" and not parts[0].get("listed"):
        return str(parts[0].get("content", ""))
    return [
        {"type": "text", "text": part.get("content", "")} if part.get("type") == "text" else dict(part)
        for part in parts
    ]


def _chat_call(part: Mapping[str, Any]) -> dict[str, Any]:
    arguments = part.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
    return {"id": part.get("id"), "type": "function", "function": {"name": part.get("name"), "arguments": text}}


def genai_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """An OpenAI chat tool definition as the flat GenAI one."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return dict(tool)
    return {"type": tool.get("type", "function"), **cast("Mapping[str, Any]", function)}


def chat_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A flat GenAI tool definition as the OpenAI chat one."""
    if "function" in tool:
        return dict(tool)
    return {"type": tool.get("type", "function"), "function": {k: v for k, v in tool.items() if k != "type"}}
