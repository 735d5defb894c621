"""What a judge reads of a trajectory: its events in order, each message once however often the agent re-sent it.

It knows nothing about prompts, judges, budgets or scores; pure. Parallel chains (sub-agents, edited histories) follow
one another with a note where a chain starts. Called by ruler_prompt.py and ruler.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from traces.trajectory import ToolCall, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened."""

    role: str
    """system, user, assistant, call, result, error, note or ended."""
    text: str
    """What was said, called or returned, as it was."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """A trajectory as a judge reads it."""

    events: tuple[Event, ...]
    """In order; the last one says how the rollout ended."""
    tools: tuple[str, ...]
    """One line a tool that was offered: `name(parameter, …): first line of its description`."""

    @property
    def fingerprint(self) -> str:
        """Equal for trajectories that a judge can't tell apart: SHA-256 over events, hex."""
        digest = hashlib.sha256()
        for event in self.events:
            digest.update(json.dumps([event.role, event.text]).encode())
        return digest.hexdigest()


def transcript_of(trajectory: Trajectory) -> Transcript:
    """Flatten turns and tool calls into events; no event is told twice unless it happened twice."""
    errors = {call.call_id for call in trajectory.tool_calls if call.is_error}
    events: list[Event] = []
    chains: list[list[str]] = []
    for turn in trajectory.turns:
        events.extend(_new_events(turn, chains, errors))
    if trajectory.turns:
        events.extend(_unanswered_results(trajectory))
    events.extend(_end(trajectory, events))
    tools = trajectory.turns[0].tools if trajectory.turns else []
    return Transcript(tuple(events), tuple(_tool_line(tool) for tool in tools))


def _new_events(turn: Turn, chains: list[list[str]], errors: set[str]) -> list[Event]:
    """Events of one turn that no earlier turn told; moves the chain that the turn continues."""
    messages = [*turn.input_messages, turn.output_message]
    keys = [_message_key(message) for message in messages]
    told, chain = _continued_chain(keys, chains)
    events: list[Event] = []
    if chains and told < len(chains[chain]):
        who = turn.agent_name or "the agent"
        events.append(Event("note", f"{who} goes on from an earlier or other history"))
    if told == 0 or told < len(chains[chain]):
        chains.append(keys)
    else:
        chains[chain] = keys
    for message in messages[told:]:
        events.extend(_message_events(message, errors))
    return events


def _continued_chain(keys: Sequence[str], chains: Sequence[Sequence[str]]) -> tuple[int, int]:
    """(messages already told, index of the chain that tells them); of equals the newest chain."""
    best = (0, max(0, len(chains) - 1))
    for index, chain in enumerate(chains):
        shared = shared_length([keys, chain])
        if shared >= best[0] and shared > 0:
            best = (shared, index)
    # The turn's own output is always news, even when an earlier turn said the same.
    return min(best[0], len(keys) - 1), best[1]


def shared_length(sequences: Sequence[Sequence[Any]]) -> int:
    """Length of the longest common prefix."""
    length = 0
    for items in zip(*sequences, strict=False):
        if any(item != items[0] for item in items[1:]):
            break
        length += 1
    return length


def _message_key(message: Mapping[str, Any]) -> str:
    return json.dumps([[event.role, event.text.strip()] for event in _message_events(message, set())])


def _message_events(message: Mapping[str, Any], errors: set[str]) -> list[Event]:
    role = str(message.get("role") or "assistant")
    text = content_text(message.get("content"))
    if role == "tool":
        return [Event("error" if message.get("tool_call_id") in errors else "result", text)]
    events = [Event("system" if role == "developer" else role, text)] if text else []
    for call in cast("Sequence[Mapping[str, Any]]", message.get("tool_calls") or ()):
        function = cast("Mapping[str, Any]", call.get("function") or {})
        events.append(Event("call", f"{function.get('name')} {canonical_json(str(function.get('arguments') or ''))}"))
    return events


def content_text(content: object) -> str:
    """Text of a message's content; parts that are not text are named in brackets."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return json.dumps(content, ensure_ascii=False, default=str)
    parts = cast("Sequence[object]", content)
    texts: list[str] = []
    for part in parts:
        if isinstance(part, Mapping):
            named = cast("Mapping[str, Any]", part)
            texts.append(str(named["text"]) if isinstance(named.get("text"), str) else f"[{named.get('type')}]")
        else:
            texts.append(str(part))
    return "\n".join(texts)


def canonical_json(text: str) -> str:
    """The same JSON with sorted keys and no spaces; text that is no JSON comes back as it was."""
    try:
        return json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    except json.JSONDecodeError:
        return text


def _unanswered_results(trajectory: Trajectory) -> list[Event]:
    """Results of the last turn's calls: no later request repeats them, so they are only in the tool records."""
    last = trajectory.turns[-1].index
    calls: list[ToolCall] = [call for call in trajectory.tool_calls if call.turn_index == last]
    return [Event("error" if call.is_error else "result", call.result) for call in calls]


def _end(trajectory: Trajectory, events: Sequence[Event]) -> list[Event]:
    ended = Event("ended", trajectory.ending.value)
    if not events:
        ended = Event("ended", f"{trajectory.ending.value}; the agent did nothing")
    said = [event.text.strip() for event in events if event.role == "assistant"]
    answer = (trajectory.answer or "").strip()
    if answer and (not said or said[-1] != answer):
        return [Event("assistant", f"(final answer) {answer}"), ended]
    return [ended]


def _tool_line(tool: Mapping[str, Any]) -> str:
    function = cast("Mapping[str, Any]", tool.get("function") or tool)
    schema = cast("Mapping[str, Any]", function.get("parameters") or {})
    names = ", ".join(cast("Mapping[str, Any]", schema.get("properties") or {}))
    described = str(function.get("description") or "").strip().partition("\n")[0]
    return f"{function.get('name')}({names}): {described}"[:200]
