"""Span attributes as JSON in which repeated messages, tools and answers are named by hash and kept once.

It knows nothing about SQL or what messages mean.
`spanlog.py` dumps before it writes and loads what it reads; `tokenrows.py` names chunks of ids the same way.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np

from traces import semconv

HASH_BYTES = 16
CONTENT_ATTRIBUTES = frozenset(
    {semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES, semconv.TOOL_DEFINITIONS, semconv.SYSTEM_INSTRUCTIONS}
)
"""Lists whose items repeat from turn to turn and from rollout to rollout."""
_KEY = "$content"


def content_hash(body: bytes) -> bytes:
    """The name of a content item."""
    return hashlib.blake2b(body, digest_size=HASH_BYTES).digest()


def dump_json(value: Any) -> str:
    """Compact ASCII JSON: lone surrogates that models emit stay escaped, so that SQLite can keep them.

    Raises TypeError where a value is not JSON.
    """
    return json.dumps(value, separators=(",", ":"), default=_plain)


def _plain(value: object) -> Any:
    if isinstance(value, np.generic):
        return cast("Any", value.item())
    raise TypeError(f"span attributes hold JSON values, got {type(value).__name__}: {value!r:.100}")


def dump_attributes(attributes: Mapping[str, Any]) -> tuple[str, dict[bytes, str]]:
    """Attributes as JSON text in which items of content lists are named by hash, and those items by hash."""
    contents: dict[bytes, str] = {}
    plain: dict[str, Any] = {}
    for key, value in attributes.items():
        if key not in CONTENT_ATTRIBUTES or not isinstance(value, list):
            plain[key] = value
            continue
        names: list[bytes] = []
        for item in cast("list[Any]", value):
            body = dump_json(item)
            names.append(content_hash(body.encode()))
            contents[names[-1]] = body
        plain[key] = {_KEY: base64.b64encode(b"".join(names)).decode()}
    return dump_json(plain), contents


def content_names(stored: Mapping[str, Any]) -> Iterator[bytes]:
    """Hashes of the content items that stored attributes refer to."""
    for key in CONTENT_ATTRIBUTES & stored.keys():
        yield from _names(stored[key])


def _names(value: Any) -> list[bytes]:
    if not isinstance(value, dict) or _KEY not in value:
        return []
    joined = base64.b64decode(cast("dict[str, str]", value)[_KEY])
    return [joined[start : start + HASH_BYTES] for start in range(0, len(joined), HASH_BYTES)]


def load_attributes(stored: Mapping[str, Any], contents: Mapping[bytes, str | bytes]) -> dict[str, Any]:
    """Attributes as they were appended; raises KeyError where a content item is absent."""
    loaded = dict(stored)
    for key in CONTENT_ATTRIBUTES & stored.keys():
        value = stored[key]
        if isinstance(value, dict) and _KEY in value:
            loaded[key] = [json.loads(contents[name]) for name in _names(cast("Any", value))]
    return loaded
