"""LangSmith: runs as `client.list_runs` and the bulk export give them, one JSON object a line or all under `runs`.

It knows nothing about chat messages; `calls.py` reads those.
Can't give: token ids, log-probabilities, policy versions; a run that was never updated has no outputs; messages in
LangChain's serialised form are not read (`unread_content`). Scores (feedback) are listed apart and not in runs.
Source: https://docs.smith.langchain.com run data format, read against langsmith 0.15.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from traces.importers.calls import agent_call, model_call, tool_call
from traces.importers.rows import hex_id, read_rows, time_ns
from traces.span import Span, SpanStatus


def read(path: Path) -> Iterator[Span]:
    """The file's spans in our form; raises ExportError where it is something else."""
    yield from read_rows(path, "LangSmith", _span)


def _span(run: Mapping[str, Any]) -> Span:
    parent = run.get("parent_run_id")
    error = run.get("error")
    return Span(
        trace_id=hex_id(str(run.get("trace_id") or run["id"]), 32),
        span_id=hex_id(str(run["id"]), 16),
        parent_id=hex_id(str(parent), 16) if parent else None,
        name=str(run["name"]),
        start_ns=time_ns(str(run["start_time"])),
        end_ns=time_ns(str(run.get("end_time") or run["start_time"])),
        status=SpanStatus.ERROR if error else SpanStatus.UNSET,
        status_message=str(error or ""),
        attributes=_attributes(run),
        source="langsmith",
    )


def _attributes(run: Mapping[str, Any]) -> dict[str, Any]:
    kind, inputs, outputs = run["run_type"], run.get("inputs"), run.get("outputs")
    if kind == "llm":
        return model_call(inputs, outputs)
    if kind == "tool":
        return tool_call(str(run["name"]), inputs, _only(outputs))
    return agent_call(str(run["name"])) if not run.get("parent_run_id") else {"langsmith.run_type": kind}


def _only(outputs: Any) -> Any:
    """What a function returned: the SDK files it under `output`."""
    return outputs["output"] if isinstance(outputs, Mapping) and set(outputs) == {"output"} else outputs
