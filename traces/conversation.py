"""What a request's messages say, reduced to keys that can be compared: is this a continuation of that answer?

It knows nothing about token ids, spans or HTTP; pure.
The token forest finds fork causes with it; the model gateway finds the turn that a request continues.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

_SYSTEM_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class Conversation:
    """One request and, once it is answered, its answer, as keys.

    Two messages have the same key where a policy would read the same: reasoning, call ids, JSON spacing, empty
    content and keys that only SDKs care for make no difference.
    """

    chain: tuple[bytes, ...]
    """`chain[i]` stands for the tools and the first i messages, so `chain[0]` for the tools alone."""
    messages: tuple[bytes, ...]
    """Key of each message by itself."""
    assistant_at: tuple[int, ...]
    """Indices of the assistant messages in the request."""
    output: bytes | None = None
    """Key of the answer; None before it is known."""
    history: bytes = b""
    """What the chain is once the answer is appended; a request continues this turn where its chain holds this."""
    has_reasoning: bool = False
    """The answer carried reasoning."""
    has_tool_calls: bool = False
    """The answer called tools."""

    def answered(self, output: Mapping[str, Any]) -> Conversation:
        """The same request with its answer."""
        key = message_key(output)
        return Conversation(
            self.chain,
            self.messages,
            self.assistant_at,
            key,
            _link(self.chain[-1], key),
            bool(output.get("reasoning") or output.get("reasoning_content")),
            bool(output.get("tool_calls")),
        )


def read_conversation(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> Conversation:
    """The keys of a request in OpenAI chat form."""
    assistants = tuple(i for i, message in enumerate(messages) if message.get("role") == "assistant")
    return link_conversation(tools_key(tools), [message_key(message) for message in messages], assistants)


def link_conversation(tools: bytes, messages: Sequence[bytes], assistant_at: tuple[int, ...]) -> Conversation:
    """The same from keys that are known already: of the tools and of each message."""
    chain = [tools]
    for key in messages:
        chain.append(_link(chain[-1], key))
    return Conversation(tuple(chain), tuple(messages), assistant_at)


def tools_key(tools: Sequence[Mapping[str, Any]]) -> bytes:
    """16 bytes that are equal for tool lists that say the same."""
    return _digest(json.dumps(list(tools), sort_keys=True))


def message_key(message: Mapping[str, Any]) -> bytes:
    """16 bytes that are equal for messages that say the same."""
    role = message.get("role")
    calls = [_call(cast("Mapping[str, Any]", call)) for call in message.get("tool_calls") or ()]
    said = ["system" if role in _SYSTEM_ROLES else role, _text(message.get("content")), calls, message.get("name")]
    return _digest(json.dumps(said))


def _text(content: Any) -> Any:
    if not content:
        return ""
    if isinstance(content, str):
        return content
    parts = cast("list[Any]", content)
    if all(isinstance(part, Mapping) and "text" in part for part in parts):
        return "".join(str(part["text"]) for part in parts)
    return parts


def _call(call: Mapping[str, Any]) -> list[Any]:
    function = cast("Mapping[str, Any]", call.get("function") or {})
    arguments = function.get("arguments") or "{}"
    try:
        parsed: Any = json.loads(arguments) if isinstance(arguments, str) else arguments
        return [function.get("name"), json.dumps(parsed, sort_keys=True)]
    except (ValueError, RecursionError):
        # The policy wrote broken JSON, or nested it without end: as text it is as good a key.
        return [function.get("name"), json.dumps(arguments)]


def _link(chain: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(chain + key, digest_size=16).digest()


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
