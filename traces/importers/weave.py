"""W&B Weave: calls as the service lists them (`calls/stream_query`, `call.to_dict`), one JSON object a line.

It knows nothing about chat messages; `calls.py` reads those. Weave doesn't mark tools: a call of a name that the model
asked for is one.
Can't give: token ids, log-probabilities, policy versions; the id of the model's tool call; calls that were still
running have no output; large values are references and not in the calls.
Source: weave.trace_server call schema, read against weave 0.54.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from traces.importers.calls import agent_call, as_object, asked_tools, model_call, tool_call
from traces.importers.rows import hex_id, load_rows, read_rows, time_ns
from traces.span import Span, SpanStatus


def read(path: Path) -> Iterator[Span]:
    """The file's spans in our form; raises ExportError where it is something else."""
    asked = asked_tools(row.get("output") for row in load_rows(path, "Weave") if _is_model_call(row))
    yield from read_rows(path, "Weave", partial(_span, asked))


def _span(asked: set[str], call: Mapping[str, Any]) -> Span:
    parent, error = call.get("parent_id"), call.get("exception")
    name = _name(call)
    if _is_model_call(call):
        attributes = model_call(call["inputs"], call.get("output"))
    elif name in asked or _kind(call) == "tool":
        attributes = tool_call(name, call.get("inputs"), call.get("output"))
    else:
        attributes = agent_call(name) if not parent else {"weave.op_name": name}
    return Span(
        trace_id=hex_id(str(call["trace_id"]), 32),
        span_id=hex_id(str(call["id"]), 16),
        parent_id=hex_id(str(parent), 16) if parent else None,
        name=name,
        start_ns=time_ns(str(call["started_at"])),
        end_ns=time_ns(str(call.get("ended_at") or call["started_at"])),
        status=SpanStatus.ERROR if error else SpanStatus.UNSET,
        status_message=str(error or ""),
        attributes=attributes,
        source="weave",
    )


def _name(call: Mapping[str, Any]) -> str:
    """`get_order` of `weave:///entity/project/op/get_order:digest`."""
    name = str(call["op_name"])
    return name.rpartition("/")[2].partition(":")[0] if name.startswith("weave:") else name


def _kind(call: Mapping[str, Any]) -> str:
    attributes: Mapping[str, Any] = call.get("attributes") or {}
    weave: Mapping[str, Any] = attributes.get("weave") or {}
    return str(weave.get("kind") or "")


def _is_model_call(call: Mapping[str, Any]) -> bool:
    return "messages" in (as_object(call.get("inputs")) or {}) and _kind(call) in ("llm", "")
