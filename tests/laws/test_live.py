"""Progress: plain lines where nobody watches a terminal, few of them, and a time left that is worth reading."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from harness.live import PLAIN_EVERY_S, Progress, clock, seconds_left, show_progress


class Clock:
    """A clock that stands until it is told to go on."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3600, "1:00:00"), (7325, "2:02:05")]
)
def test_seconds_are_written_as_a_clock_shows_them(seconds: float | None, text: str) -> None:
    assert clock(seconds) == text


def test_time_left_is_unknown_until_something_of_a_known_total_is_done() -> None:
    assert seconds_left(Progress(done=0, total=10), 30) is None
    assert seconds_left(Progress(done=3, total=0), 30) is None
    assert seconds_left(Progress(done=2, total=10), 30) == 120
    assert seconds_left(Progress(done=10, total=10), 30) == 0


def test_without_a_terminal_only_new_phases_and_now_and_then_a_line_are_printed() -> None:
    stream, now = io.StringIO(), Clock()
    with show_progress("demo", stream=stream, now=now) as display:
        display.update(phase="train", total=30, unit="steps")
        for step in range(20):
            now.now_s += PLAIN_EVERY_S / 10
            display.update(done=step + 1, reward=0.5, policy_version=step)
        display.update(phase="evaluate after")
    lines = stream.getvalue().splitlines()
    assert [line.split("] ")[1].split(" · ")[0] for line in lines] == ["train", "train", "train", "evaluate after"]
    assert "10/30 steps" in lines[1]
    assert "reward 0.50" in lines[1]
    assert "policy v9" in lines[1]
    assert "\x1b" not in stream.getvalue()


def test_a_new_phase_starts_with_its_own_count_and_clock() -> None:
    stream, now = io.StringIO(), Clock()
    with show_progress("demo", stream=stream, now=now) as display:
        display.update(phase="evaluate before", done=5, total=10, unit="rollouts")
        now.now_s += 1000
        display.update(phase="train", total=4, unit="steps")
        now.now_s += 10
        display.update(done=1)
        assert (display.progress.done, display.progress.total, display.progress.unit) == (1, 4, "steps")
        assert "left 0:30" in display.line()


def test_the_live_table_shows_phase_rollouts_reward_version_drift_and_time_left() -> None:
    now = Clock()
    with show_progress("harness train · runs/demo", stream=io.StringIO(), now=now) as display:
        display.update(phase="train", total=30, unit="steps", rollouts=96, reward=0.625, policy_version=3)
        now.now_s += 60
        display.update(done=10, drift_tokens=0, endings={"answered": 90, "turn_limit": 6}, note="waiting for the judge")
        console = Console(file=io.StringIO(), width=120, record=True)
        console.print(display)
    text = console.export_text()
    for part in (
        "train",
        "10/30 steps",
        "96",
        "0.62",
        "v3",
        "2:00",
        "answered 90 · turn_limit 6",
        "waiting for the judge",
    ):
        assert part in text
