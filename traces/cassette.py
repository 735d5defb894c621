"""Recorded tool results, matched and played back: what a task's tools answered once, they answer again.

It knows nothing about MCP, HTTP or who plays it: pure. `record_cassettes` makes them from trajectories, the cassette
server (harness/cassettes/) answers tool calls with a `Player`, and decides itself what to do about a call that is not
on record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from traces.trajectory import Trajectory

FORMAT = 1
"""Version of the file form."""
_READS = re.compile(
    r"^(get|read|find|list|search|query|fetch|look|check|show|view|describe|count|calc|think|browse|retrieve|is|has)"
)


class Match(StrEnum):
    """How a call was found on record."""

    EXACT = "exact"
    """Same tool, same arguments as parsed JSON."""
    NORMALISED = "normalised"
    """Same but for case, surrounding space, numbers written as text, empty arguments and the order of plain lists."""


class CassetteError(ValueError):
    """A file that is no cassette."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One tool call and what it gave."""

    name: str
    """Tool name."""
    arguments: str
    """Arguments as JSON text."""
    result: str
    """What the agent got back."""
    is_error: bool = False
    """The tool reported an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cassette:
    """Everything needed to work on a recorded task without its servers."""

    task_id: str
    """The task it was recorded from."""
    system_prompt: str
    """What the agent was told before the request; empty where it was told nothing."""
    user_message: str
    """The first user message: the request."""
    tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Tool definitions in OpenAI chat form, as the model saw them."""
    calls: list[RecordedCall] = field(default_factory=list[RecordedCall])
    """In the order in which they were made; of several trajectories one after the other."""
    expected: list[RecordedCall] | None = None
    """State-changing calls of the best recording, which a good agent makes too; None where no recording was good."""
    writes: list[str] = field(default_factory=list[str])
    """Tools that change state, as far as the recording tells."""
    kind: str = ""
    """Request kind of the recorded task."""
    split: str = ""
    """Split of the recorded task; empty where the source knows none."""
    task: dict[str, Any] = field(default_factory=dict[str, Any])
    """The task as its server stated it, for asking that server what is not on record; empty where unknown."""


@dataclass(frozen=True, slots=True)
class Played:
    """The answer to a call that is on record."""

    call: RecordedCall
    """The call as it was recorded."""
    match: Match
    """How it was found."""
    repeated: bool
    """True where it had been played as often as it was recorded, so that its last answer was given again."""


def record_cassette(trajectory: Trajectory) -> Cassette:
    """The cassette of one trajectory; raises ValueError where it holds no user message."""
    users = _users(trajectory)
    if not users:
        raise ValueError(f"record a cassette of rollout {trajectory.rollout_id!r}: it holds no user message")
    messages = trajectory.turns[0].input_messages
    system = [message for message in messages if message.get("role") in ("system", "developer")]
    return Cassette(
        task_id=trajectory.task_id,
        system_prompt="\n\n".join(_text(message) for message in system),
        user_message=_text(users[0]),
        tools=trajectory.turns[0].tools,
        calls=[
            RecordedCall(name=call.name, arguments=call.arguments, result=call.result, is_error=call.is_error)
            for call in trajectory.tool_calls
        ],
    )


def _users(trajectory: Trajectory) -> list[dict[str, Any]]:
    messages = trajectory.turns[0].input_messages if trajectory.turns else []
    return [message for message in messages if message.get("role") == "user"]


def is_write_by_name(name: str) -> bool:
    """Whether a tool changes state, guessed by its name: all do but those that begin with get, find, list and the like.

    A recording doesn't say; name the tools (`harness traces cassettes --write`) where the guess is wrong.
    """
    return _READS.match(name.rpartition("__")[2].lower()) is None


def record_cassettes(
    trajectories: Iterable[Trajectory],
    tasks: Mapping[str, Mapping[str, Any]],
    is_write: Callable[[str], bool] = is_write_by_name,
) -> list[Cassette]:
    """One cassette a task, of all its recordings; `tasks` are stored tasks by rollout id, `is_write` tells tools apart.

    What is expected comes from the recording with the highest score, unless that is 0 or less; recordings without
    scores are taken to be good ones. Recordings without a user message are left out.
    """
    of_task: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if _users(trajectory):
            of_task.setdefault(trajectory.task_id, []).append(trajectory)
    made: list[Cassette] = []
    for recordings in of_task.values():
        best = max(recordings, key=_goodness)
        merged = merge_cassettes([record_cassette(one) for one in (best, *(r for r in recordings if r is not best))])
        task = dict(tasks.get(best.rollout_id) or {})
        names = {str(tool.get("function", {}).get("name")) for tool in merged.tools} | {c.name for c in merged.calls}
        writes = sorted(name for name in names if is_write(name))
        expected = _effects(best, writes) if _goodness(best) > 0 else None
        made.append(replace(merged, expected=expected, writes=writes, kind=best.kind, split=best.split, task=task))
    return made


def _goodness(trajectory: Trajectory) -> float:
    score = trajectory.score()
    return 1.0 if score is None else score.value


def _effects(trajectory: Trajectory, writes: Sequence[str]) -> list[RecordedCall]:
    calls = record_cassette(trajectory).calls
    return [call for call in calls if call.name in writes and not call.is_error]


def is_same_call(name: str, arguments: str, recorded: RecordedCall) -> bool:
    """Whether a call is the recorded one but for what `Match.NORMALISED` makes no difference of."""
    return _key(Match.NORMALISED, name, arguments) == _key(Match.NORMALISED, recorded.name, recorded.arguments)


def merge_cassettes(cassettes: Sequence[Cassette]) -> Cassette:
    """One cassette of several recordings of one task: more roads through it are on record.

    Raises ValueError where there is none, or where they are not of one task.
    """
    tasks = {cassette.task_id for cassette in cassettes}
    if len(tasks) != 1:
        raise ValueError(f"merge {len(cassettes)} cassettes: they are of the tasks {sorted(tasks)}, not of one")
    # One definition a name: recordings of several agents may describe the same tool otherwise.
    tools: dict[str, dict[str, Any]] = {}
    for tool in (tool for cassette in cassettes for tool in cassette.tools):
        tools.setdefault(str(tool.get("function", {}).get("name")), tool)
    first = cassettes[0]
    return Cassette(
        task_id=first.task_id,
        system_prompt=first.system_prompt,
        user_message=first.user_message,
        tools=list(tools.values()),
        calls=[call for cassette in cassettes for call in cassette.calls],
    )


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts = cast("list[dict[str, Any]]", content)
        return "".join(str(part.get("text", "")) for part in parts)
    return content or ""


class Player:
    """Answers the calls of one rollout from a cassette.

    A call made several times gets the recorded answers in their order, so that what was read before and after a change
    differs as it did; beyond the last it gets the last again.
    """

    def __init__(self, cassette: Cassette) -> None:
        self._tapes: dict[Match, dict[str, list[int]]] = {match: {} for match in Match}
        self._calls = cassette.calls
        self._played: set[int] = set()
        for index, call in enumerate(cassette.calls):
            for match in Match:
                key = _key(match, call.name, call.arguments)
                self._tapes[match].setdefault(key, []).append(index)

    def play(self, name: str, arguments: str) -> Played | None:
        """The recorded answer, exact before normalised; None where the call is not on record."""
        for match in Match:
            recorded = self._tapes[match].get(_key(match, name, arguments))
            if recorded is None:
                continue
            index = next((index for index in recorded if index not in self._played), None)
            self._played.add(recorded[-1] if index is None else index)
            return Played(self._calls[recorded[-1] if index is None else index], match, index is None)
        return None


def _key(match: Match, name: str, arguments: str) -> str:
    try:
        parsed: Any = json.loads(arguments or "{}")
    except ValueError:
        # Broken JSON matches itself.
        parsed = arguments
    if match is Match.NORMALISED:
        parsed = _normal(parsed)
    return json.dumps([name, parsed], sort_keys=True)


def _normal(value: Any) -> Any:
    if isinstance(value, dict):
        members = {str(key): _normal(item) for key, item in cast("dict[Any, Any]", value).items()}
        return {key: item for key, item in members.items() if item not in (None, "", [], {})}
    if isinstance(value, list):
        items = [_normal(item) for item in cast("list[Any]", value)]
        plain = not any(isinstance(item, dict | list) for item in items)
        return sorted(items, key=json.dumps) if plain else items
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return _number(value.strip()) if value.strip() else ""
    return _number(str(value))


def _number(text: str) -> Any:
    """Numbers alike however they are written, other text in lower case; ids with leading zeros stay text."""
    folded = " ".join(text.lower().split())
    if len(folded) > 1 and folded[0] == "0" and folded[1].isdigit():
        return folded
    try:
        number = float(folded)
    except ValueError:
        return folded
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def save_cassettes(path: Path, cassettes: Iterable[Cassette]) -> int:
    """Write one cassette a line; how many."""
    lines = [json.dumps({"format": FORMAT, **asdict(cassette)}) for cassette in cassettes]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return len(lines)


def load_cassettes(path: Path) -> list[Cassette]:
    """Read what `save_cassettes` wrote; raises CassetteError with the line that is something else."""
    cassettes: list[Cassette] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            values = json.loads(line)
            found = values.pop("format")
            values["calls"] = [RecordedCall(**call) for call in values["calls"]]
            if values.get("expected") is not None:
                values["expected"] = [RecordedCall(**call) for call in values["expected"]]
            cassettes.append(Cassette(**values))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CassetteError(f"read {path}: line {number} is no cassette ({error})") from error
        if found != FORMAT:
            raise CassetteError(f"read {path}: line {number} has format {found}, this program reads {FORMAT}")
    return cassettes
