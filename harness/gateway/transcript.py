"""What the requests of a rollout say, each message worked out once: agents send their whole history with every call.

It knows nothing about HTTP, engines or tokens. Dialects hand it messages as the JSON they came in; model.py reads every
request through the rollout's transcript, so that a call costs as much as what is new in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from harness.gateway.request import BadRequest, ModelRequest
from traces.conversation import Conversation, link_conversation, message_key, tools_key
from traces.messages import genai_message, genai_tool

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_REFUSED_PARTS = frozenset({"input_audio", "file"})
_TEXT_PARTS = frozenset({"text", "refusal"})
_KNOWN_TOOLS = 256

_MESSAGE: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])
_TOOLS: msgspec.json.Decoder[list[dict[str, Any]] | None] = msgspec.json.Decoder(list[dict[str, Any]] | None)


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """One message."""

    raw: msgspec.Raw
    """The JSON it came in."""
    message: dict[str, Any]
    """OpenAI chat form."""
    key: bytes
    """Equal for messages that say the same."""
    span_form: dict[str, Any]
    """As spans hold it."""
    has_media: bool
    """It holds something other than text."""


@dataclass(frozen=True, slots=True)
class KnownTools:
    """A list of tool definitions."""

    raw: msgspec.Raw | None
    """The JSON it came in; None for no tools."""
    key: bytes
    """Equal for lists that say the same."""
    span_form: list[dict[str, Any]]
    """As spans hold it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A request, read."""

    messages: list[KnownMessage]
    """Its messages."""
    tools: KnownTools
    """Its tools."""
    conversation: Conversation
    """Their keys."""

    @property
    def has_media(self) -> bool:
        """True where ids alone can't carry the request to the engine."""
        return any(known.has_media for known in self.messages)

    @property
    def raws(self) -> list[msgspec.Raw]:
        """The messages' JSON."""
        return [known.raw for known in self.messages]


_tools_by_json: dict[bytes, KnownTools] = {}
"""Tool lists are the same for all rollouts of a task server."""


@dataclass(slots=True)
class Transcript:
    """The messages that a rollout's requests have brought so far."""

    _messages: dict[bytes, KnownMessage] = field(default_factory=dict[bytes, KnownMessage])

    def read(self, request: ModelRequest) -> Reading:
        """The request's messages and tools; raises BadRequest."""
        known = [self._message(raw, index) for index, raw in enumerate(request.messages)]
        tools = _tools(request.tools)
        assistant_at = tuple(i for i, one in enumerate(known) if one.message["role"] == "assistant")
        conversation = link_conversation(tools.key, [one.key for one in known], assistant_at)
        return Reading(known, tools, conversation)

    def _message(self, raw: msgspec.Raw, index: int) -> KnownMessage:
        content = bytes(raw)
        known = self._messages.get(content)
        if known is None:
            known = self._messages[content] = _read_message(content, index)
        return known


def _read_message(content: bytes, index: int) -> KnownMessage:
    try:
        message = _MESSAGE.decode(content)
        has_media = _check(message, index)
        key = message_key(message)
        return KnownMessage(msgspec.Raw(content), message, key, genai_message(message), has_media)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"messages[{index}] can't be read: {error}", f"messages[{index}]") from error
    except (AttributeError, TypeError) as error:
        raise BadRequest(f"messages[{index}] has not the form of a chat message", f"messages[{index}]") from error


def _check(message: dict[str, Any], index: int) -> bool:
    """Whether it holds media; raises BadRequest for what can't be served."""
    if message.get("role") not in _ROLES:
        raise BadRequest(f"messages[{index}].role is {message.get('role')!r}", f"messages[{index}].role")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return False
    if not isinstance(content, list):
        raise BadRequest(f"messages[{index}].content is a {type(content).__name__}", f"messages[{index}].content")
    kinds = [_kind(part) for part in cast("list[Any]", content)]
    refused = next((kind for kind in kinds if kind in _REFUSED_PARTS or kind is None), "")
    if refused != "":
        raise BadRequest(f"messages[{index}] holds a part {refused!r}, which can't be served", f"messages[{index}]")
    return not _TEXT_PARTS.issuperset(cast("list[str]", kinds))


def _kind(part: Any) -> str | None:
    return str(cast("dict[str, Any]", part).get("type")) if isinstance(part, dict) else None


def _tools(raw: msgspec.Raw) -> KnownTools:
    content = bytes(raw)
    known = _tools_by_json.get(content)
    if known is None:
        if len(_tools_by_json) >= _KNOWN_TOOLS:
            _tools_by_json.clear()
        known = _tools_by_json[content] = _read_tools(content)
    return known


def _read_tools(content: bytes) -> KnownTools:
    try:
        tools = _TOOLS.decode(content) or []
        return KnownTools(msgspec.Raw(content) if tools else None, tools_key(tools), _span_form(tools))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise BadRequest(f"tools can't be read: {error}", "tools") from error


def _span_form(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [genai_tool(tool) for tool in tools]
