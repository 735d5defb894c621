"""Makes a store file smaller without changing what it says: prompts stored whole become what is new in them.

It knows nothing about what spans mean. `harness` calls it on runs that have ended; it may run while others read and
append, and can be killed at any moment: each rollout is rewritten in a transaction of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from traces.spanlog import SpanLog
from traces.tokenrows import PrefixCache

# Several processes that write one rollout's turns don't know each other's prefixes, nor does one that was restarted.
_WHOLE = (
    "SELECT s.rollout_id FROM tokens t JOIN spans s ON s.seq=t.seq WHERE s.rollout_id IS NOT NULL"
    " GROUP BY s.rollout_id HAVING COUNT(*) > 1 AND SUM(t.base_seq IS NULL) > 1"
)


@dataclass(frozen=True, slots=True)
class Compaction:
    """What compacting a store did."""

    rewritten: int
    """Turns that are now stored as what is new in them."""
    bytes_before: int
    """Size of the file."""
    bytes_after: int
    """Size of the file now."""


def compact(store: SpanLog) -> Compaction:
    """Rewrite what can be shorter, then give the space back to the disk; raises StoreError."""
    before = store.path.stat().st_size
    rows = store.query("find prompts stored whole", _WHOLE)
    rewritten = sum(_rewrite(store, rollout_id) for (rollout_id,) in rows)
    with store.exclusive("give back free pages") as connection:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Compaction(rewritten, before, store.path.stat().st_size)


def _rewrite(store: SpanLog, rollout_id: str) -> int:
    prefixes = PrefixCache()
    shortened = 0
    spans = store.numbered_spans(rollout_id)
    with store.transaction(f"compact rollout {rollout_id!r}") as connection:
        for seq, span in spans:
            if span.tokens is None:
                continue
            key = f"{span.trace_id} {span.rollout_id}"
            row, _ = prefixes.encode(key, span.tokens)
            prefixes.remember(key, seq, span.tokens)
            if row.base_seq is None:
                continue
            done = connection.execute(
                "UPDATE tokens SET base_seq=?, base_length=?, chunks=?, prompt=? WHERE seq=? AND base_seq IS NULL",
                (row.base_seq, row.base_length, row.chunks, row.prompt, seq),
            )
            shortened += done.rowcount
    return shortened
