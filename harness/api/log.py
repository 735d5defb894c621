"""What `log` leaves in a model's folder: trajectories as JSON lines, and a row of means.

It knows nothing about models, runs or training. Called by model.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.api.trajectory import TrajectoryGroup

LOG_FILE = "log.jsonl"
TRAJECTORIES_FOLDER = "trajectories"


def write_log(folder: Path, groups: Sequence[TrajectoryGroup], split: str, step: int) -> dict[str, float]:
    """Write the trajectories to `trajectories/<split>-<step>.jsonl` and a row of means to `log.jsonl`; the means."""
    trajectories = [trajectory for group in groups for trajectory in group]
    exceptions = sum(len(group.exceptions) for group in groups)
    numbers = means([{"reward": one.reward, **one.metrics} for one in trajectories])
    numbers |= {"trajectories": float(len(trajectories)), "exceptions": float(exceptions)}
    (folder / TRAJECTORIES_FOLDER).mkdir(parents=True, exist_ok=True)
    with (folder / TRAJECTORIES_FOLDER / f"{split}-{step:04d}.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(
            json.dumps({"group": group.id, **one.to_dict()}, ensure_ascii=False, default=str) + "\n"
            for group in groups
            for one in group
        )
    with (folder / LOG_FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, "split": split, **numbers}) + "\n")
    return numbers


def means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each number over the rows that have it."""
    names = sorted({name for row in rows for name in row})
    columns = {name: [float(row[name]) for row in rows if name in row] for name in names}
    return {name: sum(column) / len(column) for name, column in columns.items()}
