"""Imported spans → rollouts: one a trace, with an ending, an answer, scores, and what the source could not give.

It knows nothing about file formats. `harness traces import` imports with it and appends the result to a store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from traces import semconv
from traces.assemble import assemble_trajectory
from traces.build import Outcome, Place, ToolUse, tool_span
from traces.records import GroupRecord, RolloutRecord
from traces.span import Span, SpanStatus
from traces.store import Store
from traces.trajectory import Ending, Score, Trajectory, Turn

NO_TOOL_RESULTS = "no_tool_results"
"""Tools were asked for, and nowhere does the trace say what they answered."""
RESULTS_FROM_MESSAGES = "tool_results_from_messages"
"""No span of the tool call: its result is what the next request quotes; duration and error flag are unknown."""
SOURCE_OF_MESSAGES = "imported messages"


@dataclass(frozen=True, slots=True)
class Imported:
    """One imported rollout."""

    record: RolloutRecord
    """Ended, with its evidence gaps."""
    spans: list[Span]
    """All its spans, placed in the rollout."""
    scores: tuple[Score, ...] = ()
    """From the trace's `gen_ai.evaluation.result` events."""

    def trajectory(self) -> Trajectory:
        """Assembled as any other."""
        return assemble_trajectory(self.spans, self.record, self.scores)


def gather(spans: Iterable[Span], run_id: str) -> list[Imported]:
    """One rollout a trace that holds a model call; the same request in several traces is one task and one group.

    Spans of our own export keep their rollout and group; others get ids made of their trace and task, so that
    importing the same file twice adds nothing.
    """
    traces: dict[str, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace_id, []).append(span)
    found = (_rollout(trace_id, members, run_id) for trace_id, members in traces.items())
    return [imported for imported in found if imported is not None]


def append_imported(store: Store, imported: Iterable[Imported]) -> int:
    """Put imported rollouts into a store, each in the open group of its task; how many spans were new.

    The groups stay open: `harness score` judges them. Raises StoreError.
    """
    added = 0
    for one in imported:
        new = store.append_spans(one.spans)
        record = one.record
        if new and one.scores:
            store.append_scores(record.rollout_id, one.scores)
        store.append_rollout(record)
        store.open_group(
            GroupRecord(
                group_id=record.group_id,
                run_id=record.run_id,
                task_id=record.task_id,
                kind=record.kind,
                split=record.split,
            )
        )
        added += new
    return added


def _rollout(trace_id: str, members: Sequence[Span], run_id: str) -> Imported | None:
    ours = next((span.rollout_id for span in members if span.rollout_id is not None), None)
    rollout_id = ours or f"imported-{trace_id}"
    spans = [replace(span, rollout_id=rollout_id, run_id=run_id) for span in members]
    record = _record(rollout_id, spans, run_id)
    trajectory = assemble_trajectory(spans, record, [])
    if not trajectory.turns:
        return None
    quoted = list(_quoted_results(trajectory, trace_id))
    completed = _completed(record, trajectory, bool(quoted))
    placed = [replace(span, group_id=completed.group_id) for span in (*spans, *quoted)]
    return Imported(completed, placed, tuple(_scores(spans)))


def _record(rollout_id: str, spans: Sequence[Span], run_id: str) -> RolloutRecord:
    ids = {span.span_id for span in spans}
    roots = [span for span in spans if span.parent_id not in ids] or spans
    root = min(roots, key=lambda span: span.start_ns)
    failed = root.status is SpanStatus.ERROR
    gaps = [str(gap) for span in spans for gap in span.attributes.get(semconv.EVIDENCE_GAPS) or ()]
    return RolloutRecord(
        rollout_id=rollout_id,
        group_id=next((span.group_id for span in spans if span.group_id is not None), ""),
        run_id=run_id,
        task_id=str(root.attributes.get(semconv.TASK_ID) or ""),
        kind=str(root.attributes.get(semconv.TASK_KIND) or ""),
        split=str(root.attributes.get(semconv.TASK_SPLIT) or ""),
        policy_version=int(root.attributes.get(semconv.POLICY_VERSION, -1)),
        trace_id=root.trace_id,
        agent=str(root.attributes.get(semconv.AGENT_NAME) or ""),
        ending=Ending(root.attributes.get(semconv.ENDING) or (Ending.AGENT_ERROR if failed else Ending.ANSWERED)),
        ending_detail=root.status_message if failed else "",
        start_ns=min(span.start_ns for span in spans),
        end_ns=max(span.end_ns for span in spans),
        evidence_gaps=tuple(dict.fromkeys(gaps)),
    )


def _completed(record: RolloutRecord, trajectory: Trajectory, quoted: bool) -> RolloutRecord:
    """The record with what only the assembled turns can say."""
    asked = any(turn.output_message.get("tool_calls") for turn in trajectory.turns)
    gaps = list(trajectory.evidence_gaps)
    if quoted:
        gaps.append(RESULTS_FROM_MESSAGES)
    elif asked and not trajectory.tool_calls:
        gaps.append(NO_TOOL_RESULTS)
    content = trajectory.turns[-1].output_message.get("content")
    task_id = record.task_id or _task_id(trajectory.turns[0])
    return replace(
        record,
        task_id=task_id,
        group_id=record.group_id or f"{record.run_id}-{task_id}",
        answer=content if isinstance(content, str) else None,
        metrics={"turns": float(len(trajectory.turns)), "tool_calls": float(len(trajectory.tool_calls))},
        evidence_gaps=tuple(gaps),
    )


def _quoted_results(trajectory: Trajectory, trace_id: str) -> Iterator[Span]:
    """Tool spans of calls that no span shows, from the results that later requests quote."""
    known = {call.call_id for call in trajectory.tool_calls}
    results: dict[str, tuple[Turn, Mapping[str, Any]]] = {}
    for turn in trajectory.turns:
        for message in turn.input_messages:
            if message.get("role") == "tool" and message.get("tool_call_id"):
                results.setdefault(str(message["tool_call_id"]), (turn, message))
    for turn in trajectory.turns:
        for call in turn.output_message.get("tool_calls") or ():
            call_id = str(call.get("id"))
            if call_id in known or call_id not in results:
                continue
            known.add(call_id)
            quoting, message = results[call_id]
            place = Place(trace_id=trace_id, parent_id=turn.span_id, rollout_id=trajectory.rollout_id)
            outcome = Outcome(start_ns=turn.end_ns, end_ns=max(turn.end_ns, quoting.start_ns))
            use = ToolUse(
                name=str(call["function"].get("name") or ""),
                arguments=str(call["function"].get("arguments") or "{}"),
                result=_text(message.get("content")),
                call_id=call_id,
                span_id=_digest(f"{turn.span_id} {call_id}"),
            )
            made = tool_span(place, outcome, use)
            yield replace(made, run_id=trajectory.run_id, source=SOURCE_OF_MESSAGES)


def _scores(spans: Sequence[Span]) -> Iterator[Score]:
    events = (event for span in spans for event in span.events if event.name == semconv.EVALUATION_EVENT)
    for event in events:
        value = event.attributes.get(semconv.EVALUATION_SCORE)
        if isinstance(value, int | float):
            yield Score(
                value=float(value),
                name=str(event.attributes.get(semconv.EVALUATION_NAME) or "imported"),
                explanation=str(event.attributes.get(semconv.EVALUATION_EXPLANATION) or ""),
                scorer_version=str(event.attributes.get(semconv.SCORER_VERSION) or "imported"),
            )


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in cast("list[Mapping[str, Any]]", content))
    return str(content or "")


def _task_id(turn: Turn) -> str:
    said = [str(m.get("content")) for m in turn.input_messages if m.get("role") in ("system", "developer", "user")]
    return "request-" + _digest("\0".join(said))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
