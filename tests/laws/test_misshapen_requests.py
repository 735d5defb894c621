"""Any JSON in any place of a request is read or refused in words, in every dialect; nothing else comes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from harness.gateway.dialects import Dialect, chat, completions, messages, responses
from harness.gateway.prompts import Prompt
from harness.gateway.record import AnswerRecord
from harness.gateway.request import BadRequest
from harness.gateway.sampling import Policy, engine_body
from harness.gateway.transcript import Transcript

TEXT = {"type": "text", "text": "x"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
SCHEMA: dict[str, Any] = {"type": "json_schema", "name": "s", "schema": {}, "strict": True}
KNOWN = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "known"}]}
WHOLE: dict[str, tuple[Dialect, dict[str, Any]]] = {
    "chat": (
        chat,
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "name": "n", "content": [TEXT, {"type": "image_url", "image_url": {"url": "u"}}]},
                {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c", "content": "r"},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}],
            "n": 2,
            "stream": False,
            "stream_options": {"include_usage": True},
            "max_tokens": 4,
            "logprobs": True,
            "top_logprobs": 2,
            "temperature": 1,
            "stop": ["x"],
            "tool_choice": "auto",
            "modalities": ["text"],
        },
    ),
    "responses": (
        responses,
        {
            "model": "m",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
                {"role": "user", "content": [{"type": "input_image", "image_url": "u", "detail": "low"}]},
                {"type": "reasoning", "id": "r", "content": [{"type": "reasoning_text", "text": "t"}]},
                {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "t"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
                {"type": "item_reference", "id": "known"},
            ],
            "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {}, "strict": True}],
            "tool_choice": {"type": "function", "name": "f"},
            "parallel_tool_calls": True,
            "max_output_tokens": 5,
            "instructions": "i",
            "reasoning": {"effort": "low"},
            "text": {"format": SCHEMA},
            "store": True,
            "include": ["a"],
            "metadata": {"a": "b"},
            "stream": False,
            "previous_response_id": None,
        },
    ),
    "messages": (
        messages,
        {
            "model": "m",
            "max_tokens": 5,
            "system": [TEXT],
            "messages": [
                {"role": "user", "content": [TEXT, {"type": "image", "source": {"type": "url", "url": "u"}}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "t", "signature": "s"},
                        TEXT,
                        {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [TEXT]}]},
            ],
            "tools": [{"name": "f", "description": "d", "input_schema": {}}],
            "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
            "stop_sequences": ["x"],
            "stream": False,
            "thinking": {"type": "disabled"},
            "temperature": 1,
            "output_config": {"effort": "low", "format": SCHEMA},
        },
    ),
    "completions": (
        completions,
        {
            "model": "m",
            "prompt": ["x"],
            "n": 1,
            "max_tokens": 4,
            "stream": False,
            "logprobs": 1,
            "stop": ["x"],
            "stream_options": {"include_usage": True},
            "echo": False,
            "suffix": "",
            "best_of": 1,
            "temperature": 1,
        },
    ),
}
OTHERS: list[Any] = [
    *(None, True, 0, -1, 1.5, 2**63, 10**30, "", "x", "{", "\ud800"),
    *([], [5], [None], ["x"], [["x"]], [{"type": {}}], {}, {"type": ["x"]}, {"a": "b"}),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to everything in a JSON value, itself included."""
    yield path
    inner: dict[Any, Any] = {}
    if isinstance(value, dict):
        inner = cast("dict[Any, Any]", value)
    elif isinstance(value, list):
        inner = dict(enumerate(cast("list[Any]", value)))
    for key, one in inner.items():
        yield from places(one, (*path, key))


def put(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """The value with another one at that path."""
    if not path:
        return other
    copy = value.copy()
    copy[path[0]] = put(value[path[0]], path[1:], other)
    return copy


def is_served(dialect: Dialect, content: bytes) -> bool:
    """Whether the engine would be asked; False where the client is told what is wrong."""
    try:
        request = dialect.parse(content, AnswerRecord(items={"known": KNOWN}))
        reading = Transcript().read(request)
    except BadRequest:
        return False
    assert msgspec.json.encode(engine_body(Policy("m", {}, None), request, reading, Prompt(None, None, "rendered")))
    return True


@pytest.mark.parametrize("name", WHOLE)
def test_any_value_in_any_place_is_read_or_refused_in_words(name: str) -> None:
    dialect, body = WHOLE[name]
    assert is_served(dialect, json.dumps(body).encode())
    served = [
        is_served(dialect, json.dumps(put(body, path, other)).encode()) for path in places(body) for other in OTHERS
    ]
    assert True in served
    assert False in served


@pytest.mark.parametrize("depth", [100, 900, 1100, 100_000])
@pytest.mark.parametrize("name", WHOLE)
def test_a_value_nested_to_any_depth_is_read_or_refused_in_words(name: str, depth: int) -> None:
    dialect, body = WHOLE[name]
    nested = b"[" * depth + b"]" * depth
    for field in (*body, "unknown_field"):
        rest = json.dumps({key: value for key, value in body.items() if key != field}).encode()
        is_served(dialect, rest[:-1] + b', "%s": %s}' % (field.encode(), nested))
