"""Token arrays as rows of bytes: what a turn shares with an earlier one, or many rollouts with each other, only once.

It knows nothing about SQL.
`spanlog.py` encodes before it writes and decodes what it reads; ids are little-endian int32, log-probabilities float32.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from traces.contents import HASH_BYTES, content_hash
from traces.span import Tokens
from traces.trajectory import Ids

IDS_DTYPE = np.dtype("<i4")
LOGPROBS_DTYPE = np.dtype("<f4")
CHUNK_BYTES = 256 * IDS_DTYPE.itemsize
_MIN_SHARED = 16
_CACHED_TOKENS = 16_000_000


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One row of the `tokens` table: the prompt is the base's first `base_length` ids, the chunks, then `prompt`."""

    base_seq: int | None
    """Span whose prompt and completion the prompt begins with; None where it begins a conversation."""
    base_length: int
    """How many ids of the base are shared."""
    prompt_length: int
    """Ids in the whole prompt."""
    chunks: bytes
    """Hashes of full chunks, one after another: what many rollouts begin with is stored once."""
    prompt: bytes
    """The rest of the prompt."""
    completion: bytes
    """Sampled ids."""
    logprobs: bytes
    """Their log-probabilities."""


class PrefixCache:
    """Sequences lately written under one key, so that a turn's prompt is stored as what is new in it.

    Forgetting is always safe: a prompt without a known base is stored whole.
    """

    def __init__(self, capacity_tokens: int = _CACHED_TOKENS) -> None:
        self._sequences: OrderedDict[str, list[tuple[int, Ids]]] = OrderedDict()
        self._capacity = capacity_tokens
        self._held = 0

    def encode(self, key: str, tokens: Tokens) -> tuple[TokenRow, dict[bytes, bytes]]:
        """The row against the longest shared beginning under the same key, and the chunks it names by hash."""
        prompt = np.ascontiguousarray(tokens.prompt_ids_T, dtype=IDS_DTYPE)
        base_seq, shared = self._longest_base(key, prompt)
        rest, hashes, chunks = prompt[shared:].tobytes(), b"", dict[bytes, bytes]()
        if base_seq is None:
            hashes, chunks, rest = _split(rest)
        row = TokenRow(
            base_seq,
            shared,
            len(prompt),
            hashes,
            rest,
            np.ascontiguousarray(tokens.completion_ids_T, dtype=IDS_DTYPE).tobytes(),
            np.ascontiguousarray(tokens.logprobs_T, dtype=LOGPROBS_DTYPE).tobytes(),
        )
        return row, chunks

    def _longest_base(self, key: str, prompt: Ids) -> tuple[int | None, int]:
        best_seq, best = None, _MIN_SHARED - 1
        for seq, sequence in reversed(self._sequences.get(key, ())):
            shared = shared_length(sequence, prompt)
            if shared > best:
                best_seq, best = seq, shared
            if shared == len(sequence):
                break
        return (best_seq, best) if best_seq is not None else (None, 0)

    def remember(self, key: str, seq: int, tokens: Tokens) -> None:
        """Keep a written sequence as a possible base."""
        sequence = np.concatenate([tokens.prompt_ids_T, tokens.completion_ids_T]).astype(IDS_DTYPE, copy=False)
        self._sequences.setdefault(key, []).append((seq, sequence))
        self._sequences.move_to_end(key)
        self._held += len(sequence)
        while self._held > self._capacity and len(self._sequences) > 1:
            _, dropped = self._sequences.popitem(last=False)
            self._held -= sum(len(sequence) for _, sequence in dropped)

    def clear(self) -> None:
        """Forget all, as after a transaction that was undone."""
        self._sequences.clear()
        self._held = 0


def _split(prompt: bytes) -> tuple[bytes, dict[bytes, bytes], bytes]:
    """Hashes of the full chunks, the chunks by hash, and what is left over."""
    whole = len(prompt) - len(prompt) % CHUNK_BYTES
    hashed = [
        (content_hash(chunk), chunk)
        for chunk in (prompt[start : start + CHUNK_BYTES] for start in range(0, whole, CHUNK_BYTES))
    ]
    return b"".join(name for name, _ in hashed), dict(hashed), prompt[whole:]


def chunk_names(row: TokenRow) -> list[bytes]:
    """Hashes of the chunks that the row's prompt needs, in order."""
    return [row.chunks[start : start + HASH_BYTES] for start in range(0, len(row.chunks), HASH_BYTES)]


def decode_tokens(row: TokenRow, sequences: Mapping[int, Ids], contents: Mapping[bytes, Any]) -> Tokens:
    """The inverse of `PrefixCache.encode`; `sequences` holds prompt + completion of earlier spans by seq.

    Raises KeyError where the base or a chunk is absent, ValueError where the lengths contradict each other.
    """
    parts = [sequences[row.base_seq][: row.base_length]] if row.base_seq is not None else []
    parts.extend(np.frombuffer(contents[name], IDS_DTYPE) for name in chunk_names(row))
    parts.append(np.frombuffer(row.prompt, IDS_DTYPE))
    prompt = np.concatenate(parts) if len(parts) > 1 else parts[0]
    if len(prompt) != row.prompt_length:
        raise ValueError(f"prompt of {len(prompt)} ids where {row.prompt_length} were stored")
    return Tokens(prompt, np.frombuffer(row.completion, IDS_DTYPE), np.frombuffer(row.logprobs, LOGPROBS_DTYPE))


def shared_length(left: Ids, right: Ids) -> int:
    """How many ids both begin with."""
    length = min(len(left), len(right))
    different = left[:length] != right[:length]
    first = int(different.argmax()) if length else 0
    return first if length and different[first] else length
