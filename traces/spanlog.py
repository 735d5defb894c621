"""The spans of a store: appended in one transaction, read back by rollout, run or sequence number.

It knows nothing about trajectories, scores or OTLP.
Gateways, importers and the OTLP receiver append; assembly, export and the command line read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from traces.database import Database, StoreError
from traces.encoding import (
    PrefixCache,
    TokenRow,
    content_hashes,
    decode_tokens,
    dump_attributes,
    dump_json,
    load_attributes,
)
from traces.span import Span, SpanEvent, SpanKind, SpanStatus
from traces.trajectory import Ids

_SPAN_COLUMNS = (
    "trace_id, span_id, parent_id, name, kind, start_ns, end_ns, status, status_message, rollout_id, group_id,"
    " run_id, policy_version, source, attributes, events"
)
_INSERT_SPAN = f"INSERT OR IGNORE INTO spans ({_SPAN_COLUMNS}) VALUES ({', '.join('?' * 16)})"
_KNOWN_CONTENTS = 200_000


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
        encoded = [(span, *dump_attributes(span.attributes), _events_json(span)) for span in spans]
        added = 0
        fresh: set[bytes] = set()
        with self._write_lock:
            try:
                with self.transaction(f"append {len(spans)} spans") as connection:
                    for span, attributes, contents, events in encoded:
                        cursor = connection.execute(_INSERT_SPAN, _span_row(span, attributes, events))
                        if cursor.rowcount != 1 or cursor.lastrowid is None:
                            continue
                        added += 1
                        missing = [(h, body) for h, body in contents.items() if h not in self._known and h not in fresh]
                        connection.executemany("INSERT OR IGNORE INTO contents VALUES (?, ?)", missing)
                        fresh.update(h for h, _ in missing)
                        if span.tokens is not None:
                            row = self._prefixes.encode(span.rollout_id, span.tokens)
                            connection.execute(
                                "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?)",
                                (cursor.lastrowid, row.base_seq, row.base_length, row.prompt_length)
                                + (row.prompt, row.completion, row.logprobs),
                            )
                            self._prefixes.remember(span.rollout_id, cursor.lastrowid, span.tokens)
            except BaseException:
                self._prefixes.clear()
                raise
            if len(self._known) > _KNOWN_CONTENTS:
                self._known.clear()
            self._known |= fresh
        return added

    def spans(self, rollout_id: str) -> list[Span]:
        """All spans of a rollout in the order of appending, tokens included."""
        return self._read_spans(f"read spans of rollout {rollout_id!r}", "rollout_id=?", (rollout_id,))

    def spans_of_trace(self, trace_id: str) -> list[Span]:
        """All spans of one trace in the order of appending, those of the agent's own instrumentation included."""
        return self._read_spans(f"read spans of trace {trace_id!r}", "trace_id=?", (trace_id,))

    def _read_spans(self, asked: str, where: str, values: tuple[Any, ...]) -> list[Span]:
        sql = (
            f"SELECT s.seq, t.base_seq, t.base_length, t.prompt_length, t.prompt, t.completion, t.logprobs,"
            f" {_SPAN_COLUMNS} FROM spans s LEFT JOIN tokens t ON t.seq=s.seq WHERE s.{where} ORDER BY s.seq"
        )
        rows = self.query(asked, sql, values)
        attributes = [json.loads(row[21]) for row in rows]
        contents = self._contents({name for stored in attributes for name in content_hashes(stored)})
        sequences: dict[int, Ids] = {}
        try:
            return [
                _span(row, load_attributes(stored, contents), sequences)
                for row, stored in zip(rows, attributes, strict=True)
            ]
        except (KeyError, ValueError) as error:
            found = f"a stored span does not decode: {error}"
            raise StoreError(f"{asked} in {self.path}", found, "The file is damaged; keep it aside.") from error

    def _contents(self, names: Iterable[str]) -> dict[str, str]:
        wanted = [bytes.fromhex(name) for name in names]
        found: dict[str, str] = {}
        for start in range(0, len(wanted), 500):
            part = wanted[start : start + 500]
            sql = f"SELECT hash, body FROM contents WHERE hash IN ({', '.join('?' * len(part))})"
            found |= {digest.hex(): body for digest, body in self.query("read contents", sql, tuple(part))}
        return found


def _events_json(span: Span) -> str | None:
    if not span.events:
        return None
    return dump_json([[event.name, event.time_ns, dict(event.attributes)] for event in span.events])


def _span_row(span: Span, attributes: str, events: str | None) -> tuple[Any, ...]:
    return (
        span.trace_id, span.span_id, span.parent_id, span.name, span.kind.value, span.start_ns, span.end_ns,
        span.status.value, span.status_message, span.rollout_id, span.group_id, span.run_id, span.policy_version,
        span.source, attributes, events,
    )  # fmt: skip


def _span(row: tuple[Any, ...], attributes: dict[str, Any], sequences: dict[int, Ids]) -> Span:
    seq, *token_values = row[:7]
    values = dict(zip(_SPAN_COLUMNS.split(", "), row[7:], strict=True))
    tokens = None
    if token_values[2] is not None:
        tokens = decode_tokens(TokenRow(*token_values), sequences)
        sequences[seq] = np.concatenate([tokens.prompt_ids_T, tokens.completion_ids_T])
    values["kind"], values["status"] = SpanKind(values["kind"]), SpanStatus(values["status"])
    values["attributes"] = attributes
    values["events"] = tuple(SpanEvent(*event) for event in json.loads(values["events"] or "[]"))
    return Span(**values, tokens=tokens)
