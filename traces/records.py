"""The rows of the ledger: rollouts, groups, policies and checkpoints, as processes hand them to each other.

It knows nothing about SQLite or spans: plain frozen fields.
`ledger.py` writes and reads them; the main process, the trainer and the command line hold them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from traces.trajectory import Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecord:
    """One rollout: appended when it starts (without an ending) and once more when it has ended."""

    rollout_id: str
    """Unique over all runs; a retry is a new rollout."""
    group_id: str
    """The group it is compared in."""
    run_id: str
    """The run that makes it."""
    task_id: str
    """The task it works on."""
    kind: str = ""
    """Request kind of the task."""
    split: str = ""
    """`train`, `validation` or `held_out`."""
    policy_version: int = 0
    """Version of the policy it was started with."""
    trace_id: str | None = None
    """Trace all its spans share, 32 hex digits."""
    agent: str = ""
    """Which agent ran."""
    task: dict[str, Any] = field(default_factory=dict[str, Any])
    """The task as JSON, so that a rollout can be replayed; empty where not kept."""
    ending: Ending | None = None
    """Why it ended; None while it runs."""
    ending_detail: str = ""
    """The error or limit in words."""
    answer: str | None = None
    """What the agent returned."""
    start_ns: int = 0
    """Unix time in nanoseconds."""
    end_ns: int = 0
    """Unix time in nanoseconds; 0 while it runs."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Plain numbers of the rollout."""
    evidence_gaps: tuple[str, ...] = ()
    """What an imported source could not give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A group: opened when its rollouts start, closed when all have ended and those that count have a score."""

    group_id: str
    """Unique over all runs."""
    run_id: str
    """The run that made it."""
    task_id: str
    """The task all its rollouts worked on."""
    kind: str = ""
    """Request kind of the task."""
    split: str = ""
    """`train`, `validation` or `held_out`."""
    position: int | None = None
    """Place in the run's order of tasks, from 0; a resumed run goes on after the last."""
    rollout_ids: tuple[str, ...] = ()
    """Its rollouts in the order in which they were started; only the closed record's are kept."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Plain numbers of the group."""
    seq: int | None = None
    """Order of closing over all processes, set by the store; None while it is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecord:
    """A policy version that the engine serves from now on."""

    run_id: str
    """The run that trained it."""
    version: int
    """0 is the policy the run started with."""
    model: str
    """Name the engine serves it under, such as `policy-v3`."""
    adapter_path: str | None
    """Folder of the LoRA adapter; None for the base model."""
    step: int = 0
    """Trainer step it was made at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A trainer state on disk that a run can be resumed from."""

    run_id: str
    """The run it belongs to."""
    step: int
    """Steps that are in it; groups consumed at later steps are not."""
    path: str
    """Its folder, complete before this record is appended."""
    policy_version: int
    """Version of the weights in it."""
