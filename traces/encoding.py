"""How spans become bytes and back: token arrays with shared prefixes stored once, messages stored by their content.

It knows nothing about SQL or what messages mean.
`spanlog.py` encodes before it writes and decodes what it reads.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from traces import semconv
from traces.span import Tokens
from traces.trajectory import Ids

IDS_DTYPE = np.dtype("<i4")
LOGPROBS_DTYPE = np.dtype("<f4")
CONTENT_ATTRIBUTES = frozenset(
    {semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES, semconv.TOOL_DEFINITIONS, semconv.SYSTEM_INSTRUCTIONS}
)
"""Lists whose items repeat from turn to turn and from rollout to rollout."""
CONTENT_KEY = "$content"
_MIN_SHARED = 16
_CACHED_TOKENS = 16_000_000


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One row of the `tokens` table: the prompt is the base's first `base_length` ids, then `prompt`."""

    base_seq: int | None
    """Span whose prompt and completion the prompt begins with; None where it is stored whole."""
    base_length: int
    """How many ids of the base are shared."""
    prompt_length: int
    """Ids in the whole prompt."""
    prompt: bytes
    """The rest of the prompt, little-endian int32."""
    completion: bytes
    """Little-endian int32."""
    logprobs: bytes
    """Little-endian float32."""


class PrefixCache:
    """Sequences lately written per rollout, so that a turn's prompt is stored as what is new in it.

    Forgetting is always safe: a prompt without a known base is stored whole.
    """

    def __init__(self, capacity_tokens: int = _CACHED_TOKENS) -> None:
        self._sequences: OrderedDict[str, list[tuple[int, Ids]]] = OrderedDict()
        self._capacity = capacity_tokens
        self._held = 0

    def encode(self, rollout_id: str | None, tokens: Tokens) -> TokenRow:
        """The row for these tokens, against the longest shared beginning of this rollout."""
        prompt = np.ascontiguousarray(tokens.prompt_ids_T, dtype=IDS_DTYPE)
        base_seq, shared = self._longest_base(rollout_id, prompt)
        return TokenRow(
            base_seq,
            shared,
            len(prompt),
            prompt[shared:].tobytes(),
            np.ascontiguousarray(tokens.completion_ids_T, dtype=IDS_DTYPE).tobytes(),
            np.ascontiguousarray(tokens.logprobs_T, dtype=LOGPROBS_DTYPE).tobytes(),
        )

    def _longest_base(self, rollout_id: str | None, prompt: Ids) -> tuple[int | None, int]:
        best_seq, best = None, _MIN_SHARED - 1
        for seq, sequence in reversed(self._sequences.get(rollout_id or "", ())):
            shared = shared_length(sequence, prompt)
            if shared > best:
                best_seq, best = seq, shared
            if shared == len(sequence):
                break
        return (best_seq, best) if best_seq is not None else (None, 0)

    def remember(self, rollout_id: str | None, seq: int, tokens: Tokens) -> None:
        """Keep a written sequence as a possible base."""
        if rollout_id is None:
            return
        sequence = np.concatenate([tokens.prompt_ids_T, tokens.completion_ids_T]).astype(IDS_DTYPE, copy=False)
        self._sequences.setdefault(rollout_id, []).append((seq, sequence))
        self._sequences.move_to_end(rollout_id)
        self._held += len(sequence)
        while self._held > self._capacity and len(self._sequences) > 1:
            _, dropped = self._sequences.popitem(last=False)
            self._held -= sum(len(sequence) for _, sequence in dropped)

    def clear(self) -> None:
        """Forget all, as after a transaction that was undone."""
        self._sequences.clear()
        self._held = 0


def shared_length(left: Ids, right: Ids) -> int:
    """How many ids both begin with."""
    length = min(len(left), len(right))
    different = left[:length] != right[:length]
    if not length or not different.any():
        return length
    return int(different.argmax())


def decode_tokens(row: TokenRow, sequences: Mapping[int, Ids]) -> Tokens:
    """The inverse of `PrefixCache.encode`; `sequences` holds prompt + completion of earlier spans by seq.

    Raises KeyError where the base is absent.
    """
    prompt = np.frombuffer(row.prompt, IDS_DTYPE)
    if row.base_seq is not None:
        prompt = np.concatenate([sequences[row.base_seq][: row.base_length], prompt])
    if len(prompt) != row.prompt_length:
        raise ValueError(f"prompt of {len(prompt)} ids where {row.prompt_length} were stored")
    return Tokens(prompt, np.frombuffer(row.completion, IDS_DTYPE), np.frombuffer(row.logprobs, LOGPROBS_DTYPE))


def dump_json(value: Any) -> str:
    """Compact ASCII JSON: lone surrogates that models emit stay escaped, so that SQLite can keep them."""
    return json.dumps(value, separators=(",", ":"), default=_plain)


def _plain(value: object) -> Any:
    if isinstance(value, np.generic):
        return cast("Any", value.item())
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"span attributes hold JSON values, got {type(value).__name__}: {value!r:.100}")


def dump_attributes(attributes: Mapping[str, Any]) -> tuple[str, dict[bytes, str]]:
    """Attributes as JSON text in which items of content lists are named by hash, and those items by hash."""
    contents: dict[bytes, str] = {}
    plain: dict[str, Any] = {}
    for key, value in attributes.items():
        if key not in CONTENT_ATTRIBUTES or not isinstance(value, list):
            plain[key] = value
            continue
        names: list[str] = []
        for item in cast("list[Any]", value):
            body = dump_json(item)
            digest = hashlib.blake2b(body.encode(), digest_size=16).digest()
            contents[digest] = body
            names.append(digest.hex())
        plain[key] = {CONTENT_KEY: names}
    return dump_json(plain), contents


def content_hashes(attributes: Mapping[str, Any]) -> Iterable[str]:
    """Names of the content items that these stored attributes refer to."""
    for key in CONTENT_ATTRIBUTES & attributes.keys():
        value = attributes[key]
        if isinstance(value, dict) and CONTENT_KEY in value:
            yield from value[CONTENT_KEY]


def load_attributes(stored: dict[str, Any], contents: Mapping[str, str]) -> dict[str, Any]:
    """Attributes as they were appended; raises KeyError where a content item is absent."""
    for key in CONTENT_ATTRIBUTES & stored.keys():
        value = stored[key]
        if isinstance(value, dict) and CONTENT_KEY in value:
            names = cast("list[str]", value[CONTENT_KEY])
            stored[key] = [json.loads(contents[name]) for name in names]
    return stored
