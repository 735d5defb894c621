"""Clients' bodies, decoded: the fields that are acted on, everything else left alone, errors in words.

It knows no dialect. Called by the dialects.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from harness.gateway.request import BadRequest

T = TypeVar("T")

# No sets: what a client sends in place of a string may not be hashable.
_TEXT_KINDS = ("text", "input_text", "output_text")


def picker(names: str) -> msgspec.json.Decoder[msgspec.Struct]:
    """Decodes the named fields of a body, those that are absent or null left out, and looks at nothing else."""
    fields: list[tuple[str, Any, Any]] = [(name, Any, None) for name in names.split()]
    return msgspec.json.Decoder(msgspec.defstruct("Picked", fields, omit_defaults=True))


def decode_body(decoder: msgspec.json.Decoder[T], content: bytes) -> T:
    """The decoded body; raises BadRequest."""
    try:
        return decoder.decode(content)
    except msgspec.ValidationError as error:
        raise BadRequest(f"invalid request: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from error


def pick(decoder: msgspec.json.Decoder[msgspec.Struct], content: bytes) -> dict[str, Any]:
    """The fields a `picker` names; raises BadRequest."""
    return msgspec.to_builtins(decode_body(decoder, content))


def encode_messages(messages: list[dict[str, Any]]) -> list[msgspec.Raw]:
    """Chat messages as the JSON that the transcript reads; equal messages give equal JSON."""
    return [msgspec.Raw(msgspec.json.encode(message)) for message in messages]


def chat_content(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Chat parts as a message's content: one text is just a string, as most clients of chat send it."""
    if not parts:
        return ""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts


def text_of(part: dict[str, Any], where: str) -> str | None:
    """The text of a text part, None for other kinds; raises BadRequest for a text part without text."""
    if part.get("type") not in _TEXT_KINDS:
        return None
    text = part.get("text")
    if not isinstance(text, str):
        raise BadRequest(f"{where}.text is a {type(text).__name__}, not a string", f"{where}.text")
    return text


def response_format(name: str, schema: Any, strict: bool) -> dict[str, Any]:
    """Chat's form of a JSON schema that the answer must follow."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": strict}}
