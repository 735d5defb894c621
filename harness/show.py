"""What `harness show` prints: the rollouts of a run in a table, or one rollout turn by turn.

Knows nothing about how rollouts are made or scored; it reads a span store and returns things that rich can print.
Called by the command line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from harness.errors import ConfigError
from traces.store import RolloutRecord, Store
from traces.tokens import RowSet, cut_rows
from traces.trajectory import Ending, ToolCall, Trajectory, Turn

STORE_FILE = "traces.db"
LONGEST_TEXT = 1500
_RUNNING = "running"
_MOST_NAMED = 5
ROLE_STYLE = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}


def open_store(run_dir: Path) -> Store:
    """The span store of a run. Raises ConfigError when the folder holds none, StoreError when it can't be read."""
    path = run_dir if run_dir.suffix == ".db" else run_dir / STORE_FILE
    if not path.is_file():
        found = f"no {STORE_FILE} in it" if run_dir.is_dir() else "no such folder"
        raise ConfigError(f"the run {run_dir}", found, "name the folder of a run, such as runs/demo")
    return Store(path, create=False)


def rollout_table(store: Store, *, ending: str | None = None, limit: int = 30) -> Table:
    """The newest `limit` rollouts, oldest of them first; `ending` keeps only those that ended so."""
    ended = False if ending == _RUNNING else None
    known = None if ending == _RUNNING else _known_ending(ending)
    shown = store.rollouts(ended=ended, ending=known, newest=limit)
    total = store.count_rollouts(ended=ended, ending=known)
    table = Table(title=f"{len(shown)} of {total} rollouts", title_justify="left", show_edge=False)
    for name in ("rollout", "task", "kind", "split", "policy", "ending", "score", "turns", "calls", "seconds"):
        table.add_column(name, justify="right" if name in {"score", "turns", "calls", "seconds"} else "left")
    for record in shown:
        scores = store.scores(record.rollout_id)
        seconds = f"{(record.end_ns - record.start_ns) / 1e9:.1f}" if record.end_ns else "–"
        table.add_row(
            record.rollout_id,
            record.task_id,
            record.kind,
            record.split,
            f"v{record.policy_version}",
            _ending(record),
            f"{scores[-1].value:.2f}" if scores else "–",
            f"{record.metrics.get('turns', 0):g}",
            f"{record.metrics.get('tool_calls', 0):g}",
            seconds,
        )
    return table


def _ending(record: RolloutRecord) -> str:
    return record.ending.value if record.ending else _RUNNING


def _known_ending(name: str | None) -> Ending | None:
    try:
        return Ending(name) if name is not None else None
    except ValueError as error:
        known = ", ".join([*(ending.value for ending in Ending), _RUNNING])
        raise ConfigError(f"rollouts that ended as {name!r}", "no such ending", f"name one of {known}") from error


def find_rollout(store: Store, prefix: str) -> str:
    """The id of the one ended rollout that starts with `prefix`; `last` is the newest, `best` and `worst` by score.

    Raises ConfigError when there is none, or more than one.
    """
    if prefix == "last" and (newest := store.rollouts(ended=True, newest=1)):
        return newest[0].rollout_id
    if prefix in {"best", "worst"} and store.count_rollouts(ended=True):
        found = store.extreme_rollout(best=prefix == "best")
        if found is None:
            asked = f"the {prefix} rollout in {store.path}"
            raise ConfigError(asked, "no rollout has a score", "score them: harness score")
        return found
    matching = store.ended_beginning_with(prefix, _MOST_NAMED)
    if len(matching) == 1 or prefix in matching:
        return prefix if prefix in matching else matching[0]
    many = f"{len(matching)} or more" if len(matching) == _MOST_NAMED else f"{len(matching)}"
    found = f"{many} ended rollouts start so: {', '.join(matching[:4])}"
    asked = f"the rollout {prefix!r} in {store.path}"
    raise ConfigError(asked, found if matching else "no ended rollout", "list them with `harness show <run>`")


def trajectory_view(trajectory: Trajectory, *, tokens: bool = False) -> RenderableType:
    """One rollout turn by turn: messages, tool calls, forks, scores; `tokens` adds ids and log-probabilities."""
    parts: list[RenderableType] = [_head(trajectory)]
    shown = 0
    for turn in trajectory.turns:
        fresh = turn.input_messages[shown:] if len(turn.input_messages) >= shown else turn.input_messages
        parts += [_message(message) for message in fresh if message.get("role") != "tool"]
        parts.append(_turn(turn))
        parts += [_call(call) for call in trajectory.tool_calls if call.turn_index == turn.index]
        if tokens:
            parts.append(_tokens(turn))
        shown = len(turn.input_messages) + 1
    parts += [_call(call) for call in trajectory.tool_calls if call.turn_index is None]
    parts.append(_foot(trajectory, cut_rows(trajectory)))
    return Lines(*parts)


def _head(trajectory: Trajectory) -> RenderableType:
    started = datetime.fromtimestamp(trajectory.start_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    where = f"task {trajectory.task_id} ({trajectory.kind}, {trajectory.split}) · policy v{trajectory.policy_version}"
    return Text(f"{trajectory.rollout_id} · {where} · group {trajectory.group_id} · {started}", style="bold")


def _message(message: dict[str, Any]) -> RenderableType:
    role = str(message.get("role", "?"))
    return Panel(_shortened(content_text(message)), title=role, title_align="left", style=ROLE_STYLE.get(role, ""))


def content_text(message: dict[str, Any]) -> str:
    """The text of a chat message: its content, joined where it comes in parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(part.get("text", part)) for part in cast("list[dict[str, Any]]", content))
    return ""


def _turn(turn: Turn) -> RenderableType:
    calls = cast("list[dict[str, Any]]", turn.output_message.get("tool_calls") or [])
    said = [content_text(turn.output_message)]
    said += [f"→ {call['function']['name']}({call['function']['arguments']})" for call in calls]
    counts = f"{len(turn.prompt_ids_T)} prompt + {len(turn.completion_ids_T)} sampled tokens"
    title = f"turn {turn.index} · {turn.model} · {counts} · {turn.finish_reason}"
    body = _shortened("\n".join(part for part in said if part) or "(nothing)")
    return Panel(body, title=title, title_align="left", style=ROLE_STYLE["assistant"])


def _call(call: ToolCall) -> RenderableType:
    millis = (call.end_ns - call.start_ns) / 1e6
    title = f"{call.name} · {millis:.0f} ms" + (" · error" if call.is_error else "")
    return Panel(_shortened(_compact(call.result)), title=title, title_align="left", style=ROLE_STYLE["tool"])


def _compact(text: str) -> str:
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except ValueError:
        return text


def _tokens(turn: Turn) -> RenderableType:
    pairs = zip(turn.completion_ids_T.tolist(), turn.logprobs_T.tolist(), strict=False)
    return Text("ids:logprobs  " + " ".join(f"{token}:{logprob:.3f}" for token, logprob in pairs), style="dim")


def _shortened(text: str) -> Text:
    if len(text) <= LONGEST_TEXT:
        return Text(text)
    half = LONGEST_TEXT // 2
    return Text(f"{text[:half]}\n[… {len(text) - 2 * half} characters …]\n{text[-half:]}")


def _foot(trajectory: Trajectory, cut: RowSet) -> RenderableType:
    return Text("\n".join(_foot_lines(trajectory, cut)), style="bold")


def _foot_lines(trajectory: Trajectory, cut: RowSet) -> Iterator[str]:
    detail = f": {trajectory.ending_detail}" if trajectory.ending_detail else ""
    yield f"ending {trajectory.ending.value}{detail}"
    if trajectory.answer:
        yield f"answer {_shortened(trajectory.answer).plain}"
    trained = sum(int(row.mask_T.sum()) for row in cut.rows)
    yield f"{len(cut.rows)} training rows · {trained} trained tokens · drift {cut.drift_tokens}"
    for fork in cut.forks:
        yield f"fork: {fork.cause.value} at message {fork.message_index}, token {fork.token_index}"
    for reason, count in cut.dropped.items():
        yield f"dropped {count}: {reason}"
    for score in trajectory.scores:
        parts = ", ".join(f"{name} {value:g}" for name, value in score.components.items())
        yield f"score {score.name} {score.value:.3f}" + (f" ({parts})" if parts else "")
        if score.explanation:
            yield f"  {score.explanation}"
    if trajectory.evidence_gaps:
        yield f"the source could not give: {', '.join(trajectory.evidence_gaps)}"
