"""Imported spans → rollouts: one a trace, with an ending, an answer and the list of what the source could not give.

It knows nothing about file formats. `harness` imports with it and appends the result to a store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from traces import semconv
from traces.assemble import assemble_trajectory
from traces.records import RolloutRecord
from traces.span import Span, SpanStatus
from traces.store import Store
from traces.trajectory import Ending, Trajectory, Turn

NO_TOOL_RESULTS = "no_tool_results"


@dataclass(frozen=True, slots=True)
class Imported:
    """One imported rollout."""

    record: RolloutRecord
    """Ended, with its evidence gaps."""
    spans: list[Span]
    """All its spans, placed in the rollout."""

    def trajectory(self) -> Trajectory:
        """Assembled as any other."""
        return assemble_trajectory(self.spans, self.record, [])


def gather(spans: Iterable[Span], run_id: str) -> list[Imported]:
    """One rollout a trace that holds a model call; the same request in several traces is one task.

    Spans of our own export keep their rollout id; others get one made of their trace id, so that importing the same
    file twice adds nothing.
    """
    traces: dict[str, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace_id, []).append(span)
    found = [_rollout(trace_id, members, run_id) for trace_id, members in traces.items()]
    return [imported for imported in found if imported.trajectory().turns]


def append_imported(store: Store, imported: Iterable[Imported]) -> int:
    """Put imported rollouts into a store; how many spans were new. Raises StoreError."""
    added = 0
    for one in imported:
        added += store.append_spans(one.spans)
        store.append_rollout(one.record)
    return added


def _rollout(trace_id: str, members: list[Span], run_id: str) -> Imported:
    ours = next((span.rollout_id for span in members if span.rollout_id is not None), None)
    rollout_id = ours or f"imported-{trace_id}"
    spans = [
        replace(span, rollout_id=rollout_id, group_id=span.group_id or rollout_id, run_id=run_id) for span in members
    ]
    ids = {span.span_id for span in spans}
    roots = [span for span in spans if span.parent_id not in ids] or spans
    root = min(roots, key=lambda span: span.start_ns)
    failed = root.status is SpanStatus.ERROR
    gaps = [str(gap) for span in spans for gap in span.attributes.get(semconv.EVIDENCE_GAPS) or ()]
    record = RolloutRecord(
        rollout_id=rollout_id,
        group_id=spans[0].group_id or rollout_id,
        run_id=run_id,
        task_id=str(root.attributes.get(semconv.TASK_ID) or ""),
        kind=str(root.attributes.get(semconv.TASK_KIND) or ""),
        split=str(root.attributes.get(semconv.TASK_SPLIT) or ""),
        policy_version=-1,
        trace_id=trace_id,
        agent=str(root.attributes.get(semconv.AGENT_NAME) or ""),
        ending=Ending(root.attributes.get(semconv.ENDING) or (Ending.AGENT_ERROR if failed else Ending.ANSWERED)),
        ending_detail=root.status_message if failed else "",
        start_ns=min(span.start_ns for span in spans),
        end_ns=max(span.end_ns for span in spans),
        evidence_gaps=tuple(dict.fromkeys(gaps)),
    )
    return Imported(_completed(record, assemble_trajectory(spans, record, [])), spans)


def _completed(record: RolloutRecord, trajectory: Trajectory) -> RolloutRecord:
    """The record with what only the assembled turns can say."""
    if not trajectory.turns:
        return record
    asked = any(turn.output_message.get("tool_calls") for turn in trajectory.turns)
    gaps = list(trajectory.evidence_gaps)
    if asked and not trajectory.tool_calls:
        gaps.append(NO_TOOL_RESULTS)
    content = trajectory.turns[-1].output_message.get("content")
    return replace(
        record,
        task_id=record.task_id or _task_id(trajectory.turns[0]),
        answer=content if isinstance(content, str) else None,
        evidence_gaps=tuple(gaps),
    )


def _task_id(turn: Turn) -> str:
    said = [str(m.get("content")) for m in turn.input_messages if m.get("role") in ("system", "developer", "user")]
    return "request-" + hashlib.blake2b("\0".join(said).encode("utf-8", "replace"), digest_size=8).hexdigest()
