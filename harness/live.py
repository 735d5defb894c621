"""Progress a person can follow: a live table on a terminal, plain lines everywhere else.

Knows nothing about how a run works: it is told a `Progress` whenever something changed, and shows it.
The training loop, `harness rollout` and `harness eval` open one with `show_progress` and call `update`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

PLAIN_EVERY_S = 10.0
BAR_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Progress:
    """What is going on now."""

    phase: str = "start"
    """What the run is doing: `evaluate before`, `train`, …"""
    done: float = 0.0
    """How much of the phase is done, in the phase's own unit."""
    total: float = 0.0
    """How much the phase has; 0 when nobody knows."""
    unit: str = ""
    """What is counted: `rollouts`, `steps`."""
    rollouts: int = 0
    """Rollouts ended so far in this run."""
    reward: float | None = None
    """Mean reward lately; None before the first."""
    policy_version: int = 0
    """Version that new rollouts sample from."""
    drift_tokens: int = 0
    """Tokens that a later prompt showed otherwise than they were sampled; 0 is the promise."""
    endings: dict[str, int] = field(default_factory=dict[str, int])
    """Rollouts by how they ended."""
    note: str = ""
    """Anything else worth a few words."""


def seconds_left(progress: Progress, elapsed_s: float) -> float | None:
    """Time left in the phase at its pace so far, seconds; None while that can't be told."""
    if progress.total <= 0 or progress.done <= 0:
        return None
    return max(0.0, elapsed_s * (progress.total - progress.done) / progress.done)


def clock(seconds: float | None) -> str:
    """Seconds as `m:ss`, or `h:mm:ss` from an hour; a dash for None."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Display:
    """Takes changes of the progress and shows them; made by `show_progress`."""

    def __init__(self, title: str, stream: TextIO, now: Callable[[], float]) -> None:
        self._title = title
        self._stream = stream
        self._now = now
        self._started = self._phase_started = now()
        self._said_at = float("-inf")
        self._live: Live | None = None
        self.progress = Progress()
        """What was last told."""

    def update(self, **changes: Any) -> None:
        """Replace the named fields of the progress and show it; a new phase restarts its clock and its count."""
        new_phase = changes.get("phase", self.progress.phase) != self.progress.phase
        if new_phase:
            self._phase_started = self._now()
            changes = {"done": 0.0, "total": 0.0, "unit": "", "note": "", **changes}
        self.progress = replace(self.progress, **changes)
        if self._live is None and (new_phase or self._now() - self._said_at >= PLAIN_EVERY_S):
            self._said_at = self._now()
            print(self.line(), file=self._stream, flush=True)

    def line(self) -> str:
        """The progress as one line of text."""
        now, p = self._now(), self.progress
        parts = [f"[{clock(now - self._started)}] {p.phase}"]
        if p.total:
            parts.append(f"{p.done:g}/{p.total:g} {p.unit}".rstrip())
        parts += [f"rollouts {p.rollouts}", f"reward {reward_text(p.reward)}", f"policy v{p.policy_version}"]
        parts += [f"drift {p.drift_tokens}", f"left {clock(seconds_left(p, now - self._phase_started))}"]
        return " · ".join([*parts, p.note] if p.note else parts)

    def __rich__(self) -> RenderableType:
        now, p = self._now(), self.progress
        left = clock(seconds_left(p, now - self._phase_started))
        table = Table(title=f"{self._title}  {clock(now - self._started)}", title_justify="left", expand=False)
        for name in ("phase", "done", "rollouts", "reward", "policy", "drift", "time left"):
            table.add_column(name, justify="left" if name == "phase" else "right")
        done = f"{p.done:g}/{p.total:g} {p.unit}".rstrip() if p.total else "–"
        version, drift = f"v{p.policy_version}", str(p.drift_tokens)
        table.add_row(p.phase, done, str(p.rollouts), reward_text(p.reward), version, drift, left)
        bar = ProgressBar(total=p.total or None, completed=p.done, width=BAR_WIDTH)
        endings = " · ".join(f"{name} {count}" for name, count in sorted(p.endings.items()))
        return Group(table, bar, Text(" · ".join(part for part in (endings, p.note) if part), style="dim"))

    @contextmanager
    def running(self) -> Generator[None]:
        """Show until the end of the block; on a terminal the table refreshes itself four times a second."""
        if not self._stream.isatty():
            yield
            return
        console = Console(file=self._stream)
        with Live(self, console=console, refresh_per_second=4, transient=False) as self._live:
            yield


def reward_text(reward: float | None) -> str:
    """A mean reward with two digits after the point; a dash before the first."""
    return "–" if reward is None else f"{reward:.2f}"


@contextmanager
def show_progress(
    title: str, *, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic
) -> Generator[Display]:
    """Open a display on `stream` (standard output): a table on a terminal, else plain lines; `update` it on changes."""
    display = Display(title, stream or sys.stdout, now)
    with display.running():
        yield display
