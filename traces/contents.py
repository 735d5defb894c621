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
_ITEMWISE = frozenset({semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES})
"""Lists that grow from turn to turn: each item is kept once."""
_WHOLE = frozenset({semconv.TOOL_DEFINITIONS, semconv.SYSTEM_INSTRUCTIONS})
"""Lists that stay as they are: kept once as a whole."""
CONTENT_ATTRIBUTES = _ITEMWISE | _WHOLE
_ITEMS_KEY = "$items"
_WHOLE_KEY = "$whole"


def content_hash(body: bytes) -> bytes:
    """The name of a content item."""
    return hashlib.blake2b(body, digest_size=HASH_BYTES).digest()


def _plain(value: object) -> Any:
    if isinstance(value, np.generic):
        return cast("Any", value.item())
    raise TypeError(f"span attributes hold JSON values, got {type(value).__name__}: {value!r:.100}")


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain)


def dump_json(value: Any) -> str:
    """Compact ASCII JSON: lone surrogates that models emit stay escaped, so that SQLite can keep them.

    Raises TypeError where a value is not JSON.
    """
    return _ENCODER.encode(value)


def dump_attributes(attributes: Mapping[str, Any]) -> tuple[str, dict[bytes, str]]:
    """Attributes as JSON text in which messages and tool lists are named by hash, and those contents by hash."""
    contents: dict[bytes, str] = {}
    plain: dict[str, Any] = {}
    for key, value in attributes.items():
        if key not in CONTENT_ATTRIBUTES or not isinstance(value, list):
            plain[key] = value
            continue
        items: list[Any] = cast("list[Any]", value) if key in _ITEMWISE else [value]
        names: list[bytes] = []
        for item in items:
            body = dump_json(item)
            names.append(content_hash(body.encode("ascii")))
            contents[names[-1]] = body
        marker = _ITEMS_KEY if key in _ITEMWISE else _WHOLE_KEY
        plain[key] = {marker: base64.b64encode(b"".join(names)).decode("ascii")}
    return dump_json(plain), contents


def content_names(stored: Mapping[str, Any]) -> Iterator[bytes]:
    """Hashes of the contents that stored attributes refer to."""
    for key in CONTENT_ATTRIBUTES & stored.keys():
        yield from _names(stored[key])[1]


def _names(value: Any) -> tuple[str, list[bytes]]:
    """Which marker the stored value carries, empty for none, and the hashes it names."""
    if isinstance(value, dict) and len(cast("dict[str, Any]", value)) == 1:
        ((marker, text),) = cast("dict[str, Any]", value).items()
        if marker in (_ITEMS_KEY, _WHOLE_KEY):
            joined = base64.b64decode(text)
            return marker, [joined[start : start + HASH_BYTES] for start in range(0, len(joined), HASH_BYTES)]
    return "", []


def load_attributes(stored: Mapping[str, Any], contents: Mapping[bytes, Any]) -> dict[str, Any]:
    """Attributes as they were appended, `contents` parsed; raises KeyError where one is absent.

    Contents that several spans share are the same objects in all of them: not to be changed in place.
    """
    loaded = dict(stored)
    for key in CONTENT_ATTRIBUTES & stored.keys():
        marker, names = _names(stored[key])
        if marker:
            loaded[key] = [contents[name] for name in names] if marker == _ITEMS_KEY else contents[names[0]]
    return loaded
