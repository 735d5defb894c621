"""Traces of agents that never met us → our spans, with what the source can't give named as evidence gaps.

One file a source or convention; it knows nothing about stores or training. `gather.py` makes rollouts of what they
read. No source here gives token ids of a policy of ours: such trajectories serve as tasks and cassettes, and as
training rows only once a policy has scored their tokens again, marked as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from traces.importers import jaeger, langfuse, langsmith, otlp, phoenix, weave
from traces.span import Span

Reader = Callable[[Path], Iterator[Span]]


def _read_langfuse(path: Path) -> Iterator[Span]:
    return otlp.read(path) if otlp.is_otlp(path) else langfuse.read_observations(path)


READERS: Final[dict[str, Reader]] = {
    "otlp": otlp.read,
    "openinference": otlp.read,
    "openllmetry": otlp.read,
    "logfire": otlp.read,
    "langfuse": _read_langfuse,
    "langsmith": langsmith.read,
    "phoenix": phoenix.read,
    "weave": weave.read,
    "jaeger": jaeger.read,
}
"""Source → reader of its export file. What comes as OTLP is read span by span, by the convention each follows."""
