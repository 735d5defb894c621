"""What one rollout of somebody's agent shows about its wrapping: what arrived at the two gateways, and what to change.

Pure: a trajectory and its spans in, findings and advice out. It knows nothing about how the rollout was run.
Called by cli_wrap.py and by the table over all shipped agents (tests/agent_table.py).
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from traces import semconv
from traces.span import Span, SpanStatus
from traces.tokens import Fork, ForkCause, RowSet, cut_rows
from traces.trajectory import Ending, Trajectory

_PROVIDER = re.compile(r"https?://[\w.-]*(?:api\.|openai\.|anthropic\.|googleapis\.|openrouter\.|azure\.)[\w./-]*")
_EXIT_CODE = re.compile(r"exit code -?\d+: ")
_ERROR = re.compile(r"[\w.]*(?:Error|Exception|Failure)\b")
_NOTHING_ARRIVED = (
    "no model call reached the gateway: your client still calls the provider's own address, or none. Give it"
    " base_url=door.base_url and api_key=door.api_key; a command finds them as OPENAI_BASE_URL and OPENAI_API_KEY"
    " (ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY), which the official clients read when nothing else is set"
)
_NO_TOOLS = (
    "no model call offered a tool: connect an MCP client to door.mcp_url (a command: MCP_URL), list its tools and hand"
    " them to the model"
)
_TOOLS_ELSEWHERE = (
    "the model asked for tools, and none of these calls reached the tool gateway: your agent runs tools of its own."
    " Call them at door.mcp_url (a command: MCP_URL), or they change nothing that is graded"
)
_TASK_UNSEEN = (
    "the first model call doesn't hold the task's request: read task.user_message; a command finds it in HARNESS_TASK,"
    " or in its words where you write {user_message}"
)
_LIMITS = {Ending.TURN_LIMIT: "rollout.turns", Ending.TOKEN_LIMIT: "rollout.tokens"}
_FORK_ADVICE = {
    ForkCause.EDITED_HISTORY: "your agent rewrites it (a summary, a clock in the prompt, other tools); append instead",
    ForkCause.TEMPLATE: "the chat template renders what was sampled otherwise, and the splice found no place",
    ForkCause.TOOL_JSON: "your agent writes tool calls again with other spacing or order; send back what you got",
    ForkCause.REASONING_STRIPPED: "your agent drops the reasoning before the answer; send it back",
    ForkCause.UNKNOWN: "the messages are not known",
}


@dataclass(frozen=True, slots=True)
class Observation:
    """What the gateways saw of one rollout."""

    trajectory: Trajectory
    """The rollout."""
    dialects: tuple[str, ...]
    """What its client speaks, most used first."""
    streamed: int
    """Model calls that wanted events."""
    failures: tuple[str, ...]
    """Model calls without an answer, in words."""
    agents: dict[str, int]
    """Turns of each sub-agent that gave its name."""
    aliases: dict[str, int]
    """Turns by the model name that was asked for."""
    tools_offered: int
    """Different tools that the model was offered."""
    cut: RowSet
    """What would be trained."""
    output: str = ""
    """The end of what it printed; empty for an agent in this process."""

    @property
    def trained_tokens(self) -> int:
        """Sampled tokens in training rows."""
        return sum(int(row.mask_T.sum()) for row in self.cut.rows)


def observe(trajectory: Trajectory, spans: Sequence[Span]) -> Observation:
    """Read what one rollout left."""
    calls = [span for span in spans if semconv.DIALECT in span.attributes]
    dialects = Counter(str(span.attributes[semconv.DIALECT]) for span in calls)
    failures = [span.status_message for span in calls if span.status is SpanStatus.ERROR]
    turns = trajectory.turns
    return Observation(
        trajectory,
        tuple(name for name, _ in dialects.most_common()),
        sum(bool(span.attributes.get(semconv.REQUEST_STREAM)) for span in calls),
        tuple(failures),
        dict(Counter(turn.agent_name for turn in turns if turn.agent_name)),
        dict(Counter(turn.asked_model for turn in turns if turn.asked_model)),
        len({tool["function"]["name"] for turn in turns for tool in turn.tools}),
        cut_rows(trajectory),
        next(
            (str(span.attributes[semconv.AGENT_OUTPUT]) for span in spans if semconv.AGENT_OUTPUT in span.attributes),
            "",
        ),
    )


def findings(seen: Observation) -> Iterator[tuple[str, str]]:
    """What was seen, as pairs of a heading and words."""
    trajectory = seen.trajectory
    detail = _error_line(trajectory.ending_detail)
    yield "ended", f"{trajectory.ending.value}: {detail}" if detail else trajectory.ending.value
    spoken = " and ".join(seen.dialects) or "–"
    yield "dialect", f"{spoken}, {seen.streamed} streamed" if seen.streamed else spoken
    failed = f", {len(seen.failures)} failed: {seen.failures[0]}" if seen.failures else ""
    yield "model calls", f"{len(trajectory.turns)} answered{failed}"
    if seen.aliases:
        yield "models asked for", _counts(seen.aliases)
    if len(seen.agents) > 1:
        yield "sub-agents", _counts(seen.agents)
    used = Counter(call.name for call in trajectory.tool_calls)
    errors = sum(call.is_error for call in trajectory.tool_calls)
    called = f"called {_counts(used)}" if used else "none called"
    yield "tools", f"{seen.tools_offered} offered, {called}" + (f", {errors} refused by the tool" if errors else "")
    yield "tokens", _tokens(seen)
    causes = Counter(fork.cause.value for fork in seen.cut.forks)
    yield "forks", _counts(causes) if causes else "none"
    dropped = f"; dropped {_counts(seen.cut.dropped)}" if seen.cut.dropped else ""
    rows = len(seen.cut.rows)
    yield "would train", f"{seen.trained_tokens} tokens in {rows} row{'s' * (rows != 1)}{dropped}"
    if score := trajectory.score():
        yield "score", f"{score.name} {score.value:g}"
    yield "answer", (trajectory.answer or "").strip()[:200] or "–"


def _tokens(seen: Observation) -> str:
    captured = [turn for turn in seen.trajectory.turns if turn.has_tokens]
    without = len(seen.trajectory.turns) - len(captured)
    if not captured:
        return f"none captured, {without} model calls without" if without else "none captured"
    count = sum(len(turn.completion_ids_T) for turn in captured)
    lost = f", {without} model calls without" if without else ""
    return f"{count} captured with ids and log-probabilities, drift {seen.cut.drift_tokens}{lost}"


def _error_line(text: str) -> str:
    """The line that names the error, of a traceback; the exit code stays before it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < 2:
        return "".join(lines)
    code = _EXIT_CODE.match(lines[0])
    named = next((line for line in reversed(lines) if _ERROR.match(line)), lines[-1])
    return named if code is None or named.startswith(code[0]) else f"{code[0]}{named}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} × {count}" for name, count in counts.items())


def advice(seen: Observation, user_message: str, spec: str = "") -> list[str]:
    """What to change, most important first; empty where there is nothing. `spec` is how the agent was given."""
    return [*_model_advice(seen, spec), *_tool_advice(seen), *_task_advice(seen, user_message), *_row_advice(seen)]


def _model_advice(seen: Observation, spec: str) -> Iterator[str]:
    trajectory = seen.trajectory
    if trajectory.ending is Ending.AGENT_ERROR:
        yield f"your agent failed: {_error_line(trajectory.ending_detail)}"
    if not trajectory.turns and not seen.failures:
        yield _NOTHING_ARRIVED
        yield from (f"{where} names {address}" for where, address in find_addresses(spec))
    elif not trajectory.turns:
        yield f"every model call failed, the first with: {seen.failures[0]}"
    if trajectory.ending in _LIMITS:
        key = _LIMITS[trajectory.ending]
        yield f"it was cut off at {trajectory.ending_detail}: raise {key} if a good answer needs more"
    if trajectory.ending is Ending.TIME_LIMIT:
        yield "your agent didn't end within its time: set agent.time_limit_s, or look for a wait on standard input"
    if trajectory.ending is Ending.ANSWERED and trajectory.turns and not (trajectory.answer or "").strip():
        yield "its answer is empty: return it from run(); a command prints it to standard output"


def _tool_advice(seen: Observation) -> Iterator[str]:
    trajectory = seen.trajectory
    if not trajectory.turns:
        return
    asked = any(turn.output_message.get("tool_calls") for turn in trajectory.turns)
    if not seen.tools_offered and not trajectory.tool_calls:
        yield _NO_TOOLS
    elif asked and not trajectory.tool_calls:
        yield _TOOLS_ELSEWHERE


def _task_advice(seen: Observation, user_message: str) -> Iterator[str]:
    turns = seen.trajectory.turns
    if turns and user_message and not any(_holds(turn.input_messages, user_message) for turn in turns):
        yield _TASK_UNSEEN


def _holds(messages: Iterable[dict[str, Any]], text: str) -> bool:
    wanted = " ".join(text.split())
    return any(wanted in " ".join(_words(message.get("content"))) for message in messages)


def _words(content: Any) -> list[str]:
    parts = cast("list[dict[str, Any]]", content) if isinstance(content, list) else [{"text": content}]
    return [word for part in parts for word in str(part.get("text") or "").split()]


def _row_advice(seen: Observation) -> Iterator[str]:
    speakers = [(turn.agent_name, turn.asked_model) for turn in seen.trajectory.turns]
    alike: dict[tuple[str, ForkCause], list[Fork]] = {}
    for fork in seen.cut.forks:
        # Where one agent hands over to another, that one has a prompt of its own.
        if speakers[fork.node_index] == speakers[fork.left_index]:
            alike.setdefault((_place(fork), fork.cause), []).append(fork)
    for (place, cause), forks in alike.items():
        more = f" (and {len(forks) - 1} later ones alike)" if len(forks) > 1 else ""
        first = f"turn {forks[0].node_index} forks from turn {forks[0].left_index} at {place}{more}"
        yield f"{first}: {_FORK_ADVICE[cause]}"
    missing = [reason for reason in ("no_token_ids", "no_logprobs") if seen.cut.dropped.get(reason)]
    if missing:
        yield f"the engine gave {' and '.join(missing)}: use one with vLLM's return_token_ids and logprobs"


def _place(fork: Fork) -> str:
    if fork.message_index is None:
        return f"token {fork.token_index}"
    return "the tools" if fork.message_index < 0 else f"message {fork.message_index}"


def find_addresses(spec: str) -> list[tuple[str, str]]:
    """Addresses of model providers in the files that an agent's spec names, as pairs of `file:line` and address."""
    found: list[tuple[str, str]] = []
    for path in (Path(word) for word in shlex.split(spec)):
        if path.suffix in {".py", ".js", ".mjs", ".ts", ".mts", ".sh"} and path.is_file():
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                found += [(f"{path}:{number}", match[0]) for match in _PROVIDER.finditer(line)]
    return found
