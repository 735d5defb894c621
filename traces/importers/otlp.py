"""OTLP JSON files, of any instrumentation: each span is read by the conventions that it follows.

It knows nothing about what the attributes mean: the file of each convention does. Files of our own export keep their
tokens and their place; a span of no known convention stays as it is, as a part of the picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from traces.attributes import read_belonging
from traces.importers import genai, langfuse, logfire, openinference, openllmetry
from traces.otlp import read_otlp_file
from traces.span import Span

_HEAD_CHARS = 4096


def read(path: Path) -> Iterator[Span]:
    """The file's spans in our form; raises OtlpError where it is no OTLP JSON."""
    yield from logfire.mark_tools(normalise(span) for span in read_otlp_file(path))


def is_otlp(path: Path) -> bool:
    """Whether the file begins as an OTLP JSON object does."""
    with path.open(encoding="utf-8") as text:
        return '"resourceSpans"' in text.read(_HEAD_CHARS)


def normalise(span: Span) -> Span:
    """One span in our form."""
    belonging = read_belonging(span.attributes)
    placed = replace(
        span,
        attributes=belonging.attributes,
        rollout_id=belonging.rollout_id,
        group_id=belonging.group_id,
        run_id=belonging.run_id,
        policy_version=belonging.policy_version,
        tokens=belonging.tokens,
    )
    if openllmetry.is_openllmetry(placed):
        placed = openllmetry.normalise(placed)
    # Our own export speaks OpenInference too; GenAI is what it was made from.
    if genai.is_genai(placed):
        return genai.normalise(placed)
    if langfuse.is_langfuse(placed):
        return langfuse.normalise(placed)
    return openinference.normalise(placed) if openinference.is_openinference(placed) else placed
