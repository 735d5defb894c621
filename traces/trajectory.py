"""The records of one rollout and of its group: what was said, sampled, called, scored, and how it ended.

It knows nothing about spans, SQLite, agents or training: plain frozen fields, no I/O.
`assemble.py` makes them from spans, scoring reads them, `tokens.py` turns them into training rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
"""Token ids of one sequence, shape (T,)."""
Logprobs = NDArray[np.float32]
"""Natural-log probabilities, parallel to the ids they belong to, shape (T,)."""


class Ending(StrEnum):
    """Why a rollout ended. Infrastructure endings carry no reward and stay out of group statistics (law 4)."""

    ANSWERED = "answered"
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    TIME_LIMIT = "time_limit"
    AGENT_ERROR = "agent_error"
    ENGINE_ERROR = "engine_error"
    TOOL_ERROR = "tool_error"
    GATEWAY_ERROR = "gateway_error"
    INTERRUPTED = "interrupted"
    SIMULATOR_ERROR = "simulator_error"
    JUDGE_ERROR = "judge_error"

    @property
    def is_infrastructure(self) -> bool:
        """True where the failure was ours and not the agent's."""
        return self in _INFRASTRUCTURE


_INFRASTRUCTURE = frozenset(
    {
        Ending.ENGINE_ERROR,
        Ending.TOOL_ERROR,
        Ending.GATEWAY_ERROR,
        Ending.INTERRUPTED,
        Ending.SIMULATOR_ERROR,
        Ending.JUDGE_ERROR,
    }
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Turn:
    """One answered model call of a rollout."""

    index: int
    """Place among the rollout's turns by start time, from 0."""
    prompt_ids_T: Ids
    """Ids the engine was given, whole; empty where the source had none (imported traces)."""
    completion_ids_T: Ids
    """Ids the engine sampled, end-of-turn token included; empty where the source had none."""
    logprobs_T: Logprobs
    """Log-probability of each completion id, from the engine; empty where the source had none."""
    policy_version: int
    """Version of the policy that sampled the completion; -1 where a foreign model did."""
    model: str
    """Name the engine served the policy under."""
    finish_reason: str
    """`stop`, `length`, `tool_calls`, …; empty where unknown."""
    input_messages: list[dict[str, Any]]
    """The request's messages in OpenAI chat form."""
    tools: list[dict[str, Any]]
    """The request's tool definitions in OpenAI chat form; empty without tools."""
    output_message: dict[str, Any]
    """The answer as an OpenAI chat assistant message."""
    span_id: str
    """The span this turn was read from."""
    start_ns: int
    """Unix time of the request in nanoseconds."""
    end_ns: int
    """Unix time of the answer in nanoseconds."""
    agent_name: str | None = None
    """Which (sub-)agent called, where the source says."""
    asked_model: str = ""
    """Model name that the agent asked for: an alias, since the rollout's policy answers; empty where unknown."""
    retry_count: int = 0
    """How often the client had sent this request before; such an answer supersedes the one it gave up on."""

    @property
    def has_tokens(self) -> bool:
        """True where ids and log-probabilities are complete, so that the turn can be trained on (law 1)."""
        return len(self.prompt_ids_T) > 0 and 0 < len(self.completion_ids_T) == len(self.logprobs_T)

    def __eq__(self, other: object) -> bool:
        """Field by field; arrays by content."""
        if not isinstance(other, Turn):
            return NotImplemented
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))


def _same(left: Any, right: Any) -> bool:
    return np.array_equal(left, cast("Ids", right)) if isinstance(right, np.ndarray) else bool(left == right)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool call that reached a tool server, or that the record shows."""

    call_id: str
    """Id the model gave the call; the tool span's id where nothing joins it to a model call."""
    name: str
    """Tool name as the agent used it."""
    arguments: str
    """Arguments as JSON text."""
    result: str
    """What the agent got back, as text."""
    is_error: bool
    """True where the tool itself reported an error."""
    span_id: str
    """The span this call was read from."""
    turn_index: int | None
    """The turn that asked for it; None where no turn can be matched."""
    start_ns: int
    """Unix time in nanoseconds."""
    end_ns: int
    """Unix time in nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One judgement of one rollout."""

    value: float
    """The score; higher is better."""
    name: str
    """Who judged: `checks`, `ruler`, `blend`, …"""
    components: dict[str, float] = field(default_factory=dict[str, float])
    """Named parts the value was made of."""
    explanation: str = ""
    """Why, in words."""
    scorer_version: str = "1"
    """Version of the scorer, so that old scores stay comparable with themselves only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The record of one rollout."""

    rollout_id: str
    """Unique over all runs; a retried rollout gets a new one."""
    group_id: str
    """The group it is compared in."""
    run_id: str
    """The run that made it."""
    task_id: str
    """The task it worked on."""
    kind: str
    """Request kind of the task."""
    split: str
    """`train`, `validation` or `held_out`."""
    policy_version: int
    """Version of the policy the rollout was started with."""
    turns: list[Turn]
    """By start time."""
    tool_calls: list[ToolCall]
    """By start time."""
    ending: Ending
    """Why it ended."""
    ending_detail: str = ""
    """The error or limit in words; empty after an answer."""
    answer: str | None = None
    """What the agent returned; None where it returned nothing."""
    scores: list[Score] = field(default_factory=list[Score])
    """Newest judgement of each name, oldest name first."""
    start_ns: int = 0
    """Unix time in nanoseconds."""
    end_ns: int = 0
    """Unix time in nanoseconds."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Plain numbers of the rollout: tokens, forks, drift tokens, seconds."""
    evidence_gaps: tuple[str, ...] = ()
    """What the source could not give (`no_token_ids`, `no_logprobs`, `truncated_content`, …)."""

    def score(self, name: str | None = None) -> Score | None:
        """The newest score of this name, or the newest of all; None where there is none."""
        found = [score for score in self.scores if name is None or score.name == name]
        return found[-1] if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All rollouts of one task at one time, compared with one another."""

    group_id: str
    """Unique over all runs."""
    run_id: str
    """The run that made it."""
    task_id: str
    """The task all of them worked on."""
    kind: str
    """Request kind of the task."""
    split: str
    """`train`, `validation` or `held_out`."""
    trajectories: list[Trajectory]
    """In the order in which the rollouts were started; infrastructure failures included."""
    seq: int | None = None
    """Order in which groups were closed in the store; None before that."""
    position: int | None = None
    """Place in the run's order of tasks, from 0; None outside training."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Plain numbers of the group."""

    @property
    def scored(self) -> list[Trajectory]:
        """The trajectories statistics rest on: with a score and no infrastructure failure."""
        return [t for t in self.trajectories if t.scores and not t.ending.is_infrastructure]
