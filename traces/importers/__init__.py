"""Traces of agents that never met us → our spans, with what the source can't give named as evidence gaps.

One file a source, each with one function `read(path)`; it knows nothing about stores or training.
`gather.py` makes rollouts of what they read. No source here gives token ids of a policy of ours: such trajectories
serve as tasks and cassettes, not as training rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from traces.importers import otlp, phoenix
from traces.span import Span

READERS: Final[dict[str, Callable[[Path], Iterator[Span]]]] = {"otlp": otlp.read, "phoenix": phoenix.read}
"""Source → reader of its export file."""
