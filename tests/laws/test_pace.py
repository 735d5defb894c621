"""Groups are started as the next step needs them: not fewer, not many more, and none after the last step."""

from __future__ import annotations

import numpy as np
import pytest

from traces.tokens import Row
from training.batch import BatchRow, GroupRows
from training.config import TrainerConfig
from training.pace import Pace

SIZE = 4


def trainer(rows: int = 8, steps: int = 3, staleness: int = 1) -> TrainerConfig:
    section = {"group_size": SIZE, "batch_rows": rows, "steps": steps, "max_staleness": staleness}
    return TrainerConfig.model_validate({"run_id": "r", "model": "m", "training": section})


def group(name: str, *, version: int = 0, spread: bool = True) -> GroupRows:
    ids = np.arange(3, dtype=np.int32)
    tokens = Row(ids, np.ones(3, np.bool_), np.zeros(3, np.float32), np.full(3, version, np.int32), (0,))
    rows = tuple(BatchRow(tokens, 1.0, f"{name}-{index}", 0, version, 3) for index in range(SIZE if spread else 0))
    return GroupRows(name, rows, (0.0, 1.0, 1.0, 1.0) if spread else (1.0,) * SIZE)


def test_groups_in_flight_count_towards_what_the_next_step_needs() -> None:
    pace = Pace(trainer(rows=8), 0)
    assert pace.groups_wanted(0) == 3  # 8 rows / (4 rows x a useful share of 0.7)
    assert pace.groups_wanted(2) == 1
    assert pace.groups_wanted(5) == 0


def test_no_group_is_started_while_the_trainer_has_its_batch() -> None:
    pace = Pace(trainer(rows=8), 0)
    pace.closed([group("a"), group("b")])
    assert pace.groups_wanted(0) == 0
    pace.published(1)
    assert pace.groups_wanted(0) > 0


def test_a_batch_ahead_is_made_where_generation_and_training_may_overlap() -> None:
    pace = Pace(trainer(rows=8), 0, steps_ahead=1)
    pace.closed([group("a"), group("b")])
    assert pace.groups_wanted(0) > 0
    pace.closed([group("c"), group("d")])
    assert pace.groups_wanted(0) == 0


def test_groups_without_spread_are_replaced_and_raise_the_number_started() -> None:
    pace = Pace(trainer(rows=8), 0)
    before = pace.groups_wanted(0)
    pace.closed(group(f"flat-{index}", spread=False) for index in range(8))
    assert pace.useful_share < 0.3
    assert pace.groups_wanted(0) > before


def test_rows_beyond_the_batch_count_for_the_next_step_while_fresh_enough() -> None:
    pace = Pace(trainer(rows=8, staleness=1), 0)
    pace.closed([group("a"), group("b"), group("c")])
    pace.published(1)
    left_over = pace.groups_wanted(0)
    empty = Pace(trainer(rows=8), 1)
    empty.closed([])
    assert left_over < empty.groups_wanted(0) + 1
    pace.closed([group("d", version=1)])
    assert pace.groups_wanted(0) == 0


@pytest.mark.parametrize("ahead", [0, 1])
def test_nothing_is_started_for_steps_after_the_last(ahead: int) -> None:
    pace = Pace(trainer(rows=4, steps=2), 0, steps_ahead=ahead)
    for version in range(3):
        pace.closed([group(f"g{version}", version=version)])
        pace.published(version + 1)
    assert pace.groups_wanted(0) == 0
