"""The spans of a store: appended in one transaction, read back by rollout or trace.

It knows nothing about trajectories, scores or OTLP.
Gateways, importers and the OTLP receiver append; assembly, export and the command line read.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from traces.contents import content_names, dump_attributes, dump_json, load_attributes
from traces.database import Database, StoreError, clean_text
from traces.span import Span, SpanEvent, SpanKind, SpanStatus
from traces.tokenrows import PrefixCache, TokenRow, chunk_names, decode_tokens
from traces.trajectory import Ids

_SPAN_COLUMNS = (
    "trace_id, span_id, parent_id, name, kind, start_ns, end_ns, status, status_message, rollout_id, group_id,"
    " run_id, policy_version, source, attributes, events"
)
_TOKEN_COLUMNS = "base_seq, base_length, prompt_length, chunks, prompt, completion, logprobs"
_INSERT_SPAN = f"INSERT OR IGNORE INTO spans ({_SPAN_COLUMNS}) VALUES ({', '.join('?' * 16)})"
_INSERT_TOKENS = f"INSERT INTO tokens (seq, {_TOKEN_COLUMNS}) VALUES ({', '.join('?' * 8)})"
_READ_SPANS = f"SELECT s.seq, {_TOKEN_COLUMNS}, {_SPAN_COLUMNS} FROM spans s LEFT JOIN tokens t ON t.seq=s.seq"
_KNOWN_CONTENTS = 200_000


@dataclass(frozen=True, slots=True)
class _Encoded:
    span: Span
    """What is written."""
    attributes: str
    """JSON text that names contents by hash."""
    contents: Mapping[bytes, str]
    """Those contents."""
    events: str | None
    """JSON text; None without events."""


class SpanLog(Database):
    """Appends and reads spans with their tokens."""

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        """As `Database`."""
        super().__init__(path, create=create)
        self._prefixes = PrefixCache()
        self._known: set[bytes] = set()

    def append_spans(self, spans: Sequence[Span]) -> int:
        """Write finished spans, all or none, committed on return; how many were new (a span is kept once).

        Raises StoreError; TypeError where an attribute is not JSON.
        """
        encoded = [_Encoded(span, *dump_attributes(span.attributes), _events_json(span)) for span in spans]
        fresh: set[bytes] = set()
        with self._write_lock:
            try:
                with self.transaction(f"append {len(spans)} spans") as connection:
                    added = sum(self._insert(connection, item, fresh) for item in encoded)
            except BaseException:
                # What was remembered in the undone transaction has no row.
                self._prefixes.clear()
                raise
            if len(self._known) > _KNOWN_CONTENTS:
                self._known.clear()
            self._known |= fresh
        return added

    def _insert(self, connection: sqlite3.Connection, item: _Encoded, fresh: set[bytes]) -> int:
        span = item.span
        cursor = connection.execute(_INSERT_SPAN, _span_row(item))
        if cursor.rowcount != 1 or cursor.lastrowid is None:
            return 0
        self._insert_contents(connection, item.contents, fresh)
        if span.tokens is not None:
            # A base must be read wherever its span is: by rollout and by trace.
            key = f"{span.trace_id} {span.rollout_id}"
            row, chunks = self._prefixes.encode(key, span.tokens)
            self._insert_contents(connection, chunks, fresh)
            connection.execute(_INSERT_TOKENS, (cursor.lastrowid, *_token_values(row)))
            self._prefixes.remember(key, cursor.lastrowid, span.tokens)
        return 1

    def _insert_contents(
        self, connection: sqlite3.Connection, contents: Mapping[bytes, str | bytes], fresh: set[bytes]
    ) -> None:
        missing = [item for item in contents.items() if item[0] not in self._known and item[0] not in fresh]
        if missing:
            connection.executemany("INSERT OR IGNORE INTO contents VALUES (?, ?)", missing)
            fresh.update(name for name, _ in missing)

    def spans(self, rollout_id: str) -> list[Span]:
        """All spans of a rollout in the order of appending, tokens included."""
        return [span for _, span in self.numbered_spans(rollout_id)]

    def numbered_spans(self, rollout_id: str) -> list[tuple[int, Span]]:
        """The same, each with its sequence number in this store."""
        return self._read_spans(f"read spans of rollout {rollout_id!r}", "s.rollout_id=?", (rollout_id,))

    def spans_of_trace(self, trace_id: str) -> list[Span]:
        """All spans of one trace in the order of appending, those of the agent's own instrumentation included."""
        found = self._read_spans(f"read spans of trace {trace_id!r}", "s.trace_id=?", (trace_id,))
        return [span for _, span in found]

    def _read_spans(self, asked: str, where: str, values: tuple[Any, ...]) -> list[tuple[int, Span]]:
        rows = self.query(asked, f"{_READ_SPANS} WHERE {where} ORDER BY s.seq", values)
        try:
            attributes: list[dict[str, Any]] = [json.loads(row[-2]) for row in rows]
            token_rows = [TokenRow(*row[1:8]) if row[3] is not None else None for row in rows]
            names = {name for stored in attributes for name in content_names(stored)}
            names |= {name for row in token_rows if row is not None for name in chunk_names(row)}
            contents = self._contents(names)
            reader = _Reader(contents)
            return [
                (row[0], reader.span(row, load_attributes(stored, contents), tokens))
                for row, stored, tokens in zip(rows, attributes, token_rows, strict=True)
            ]
        except (KeyError, ValueError) as error:
            found = f"a stored span does not decode ({type(error).__name__} {error})"
            raise StoreError(f"{asked} in {self.path}", found, "the file is damaged; keep it aside") from error

    def _contents(self, names: Iterable[bytes]) -> dict[bytes, Any]:
        """JSON contents parsed, chunks of ids as bytes, each once."""
        wanted = list(names)
        found: dict[bytes, Any] = {}
        for start in range(0, len(wanted), 500):
            part = wanted[start : start + 500]
            sql = f"SELECT hash, body FROM contents WHERE hash IN ({', '.join('?' * len(part))})"
            for name, body in self.query("read contents", sql, tuple(part)):
                found[name] = json.loads(body) if isinstance(body, str) else body
        return found


class _Reader:
    """Turns rows of one rollout or trace into spans, in the order of appending: a base comes before what needs it."""

    def __init__(self, contents: Mapping[bytes, Any]) -> None:
        self._contents = contents
        self._sequences: dict[int, Ids] = {}

    def span(self, row: tuple[Any, ...], attributes: dict[str, Any], token_row: TokenRow | None) -> Span:
        values = dict(zip(_SPAN_COLUMNS.split(", "), row[8:], strict=True))
        tokens = None
        if token_row is not None:
            tokens = decode_tokens(token_row, self._sequences, self._contents)
            self._sequences[row[0]] = np.concatenate([tokens.prompt_ids_T, tokens.completion_ids_T])
        values["kind"], values["status"] = SpanKind(values["kind"]), SpanStatus(values["status"])
        values["attributes"] = attributes
        values["events"] = tuple(SpanEvent(*event) for event in json.loads(values["events"] or "[]"))
        return Span(**values, tokens=tokens)


def _events_json(span: Span) -> str | None:
    if not span.events:
        return None
    return dump_json([[event.name, event.time_ns, dict(event.attributes)] for event in span.events])


def _span_row(item: _Encoded) -> tuple[Any, ...]:
    span = item.span
    return (
        span.trace_id, span.span_id, span.parent_id, span.name, span.kind.value, span.start_ns, span.end_ns,
        span.status.value, clean_text(span.status_message), span.rollout_id, span.group_id, span.run_id,
        span.policy_version,
        span.source, item.attributes, item.events,
    )  # fmt: skip


def _token_values(row: TokenRow) -> tuple[Any, ...]:
    return (
        row.base_seq, row.base_length, row.prompt_length, row.chunks, row.prompt, row.completion, row.logprobs,
    )  # fmt: skip
