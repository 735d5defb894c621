"""Evaluate a model on scenarios through a rollout function: the same outcomes, intervals and files as `harness eval`.

It knows nothing about how success is computed from outcomes (harness/outcomes.py). Its numbers never steer training
(law 10).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from harness.api.gather import gather_trajectory_groups
from harness.api.model import Model, TrainableModel
from harness.api.ruler import judged_record
from harness.api.scope import RolloutFailed
from harness.api.trajectory import Trajectory, TrajectoryGroup
from harness.errors import HarnessError
from harness.evaluate import save_evaluation
from harness.outcomes import Evaluation, EvaluationSpec, Outcome, outcome_of
from harness.task import Task
from traces.trajectory import Ending
from traces.trajectory import Trajectory as Record

Item = TypeVar("Item")
AnyModel = TypeVar("AnyModel", Model, TrainableModel)


async def evaluate(
    model: AnyModel,
    rollout: Callable[[AnyModel, Item], Awaitable[Trajectory]],
    scenarios: Sequence[Item],
    *,
    label: str = "eval",
    split: str = "val",
    samples: int = 1,
    passed: Callable[[Trajectory], bool] | None = None,
    pbar_desc: str | None = "evaluate",
) -> Evaluation:
    """Run `samples` rollouts of each scenario; `summarise` makes rates with intervals of what comes back.

    `passed` says what success is; by default the metric `passed`, or else a reward of 1. A function that raises failed;
    a failure of infrastructure is in no rate (law 4). A trainable model keeps the evaluation in its run folder.
    Raises HarnessError without scenarios.
    """
    if not scenarios or samples < 1:
        found = f"{len(scenarios)} scenarios, {samples} samples of each"
        raise HarnessError(f"evaluate {model.name!r}", found, "give at least one scenario and one sample")
    groups = [
        TrajectoryGroup((rollout(model, scenario) for _ in range(samples)), metadata={"task_id": scenario_id(scenario)})
        for scenario in scenarios
    ]
    gathered = await gather_trajectory_groups(groups, pbar_desc=pbar_desc, max_exceptions=math.inf)
    outcomes = await asyncio.to_thread(_all_outcomes, model, gathered, passed or default_passed)
    temperature = model.temperature if isinstance(model, TrainableModel) else 1.0
    spec = EvaluationSpec(label, model.get_inference_name(), await model.get_step(), split, temperature, samples)
    evaluation = Evaluation(spec, tuple(outcomes))
    if isinstance(model, TrainableModel):
        await asyncio.to_thread(save_evaluation, model.run.folder, evaluation)
    return evaluation


def scenario_id(scenario: Any) -> str:
    """The `id` of a scenario that has one, as field or key; its text otherwise."""
    by_key = cast("dict[str, Any]", scenario).get("id") if isinstance(scenario, dict) else None
    named: object = getattr(cast("object", scenario), "id", None) if by_key is None else by_key
    return str(cast("object", scenario) if named is None else named)


def default_passed(trajectory: Trajectory) -> bool:
    """The metric `passed` where there is one, else whether the reward is 1 or more."""
    return trajectory.metrics.get("passed", trajectory.reward) >= 1.0


def _all_outcomes(
    model: Model | TrainableModel, groups: Sequence[TrajectoryGroup], passed: Callable[[Trajectory], bool]
) -> list[Outcome]:
    made: list[Outcome] = []
    for group in groups:
        task = Task(
            id=group.about("task_id"), server="", split="", kind=group.about("kind"), user_message="", difficulty=""
        )
        for one in group:
            # The function's own word on reward and success; everything else as it was recorded.
            seen = outcome_of(_record(model, one), task)
            made.append(replace(seen, passed=passed(one), reward=one.reward))
        made += [
            _failure(error, outcome_of(judged_record(Trajectory(), group.id, 0), task)) for error in group.exceptions
        ]
    return made


def _record(model: Model | TrainableModel, trajectory: Trajectory) -> Record:
    if isinstance(model, TrainableModel) and model.name in trajectory.rollouts:
        return model.run.store.trajectory(trajectory.rollouts[model.name])
    return judged_record(trajectory, "", 0)


def _failure(error: BaseException, outcome: Outcome) -> Outcome:
    if isinstance(error, RolloutFailed):
        return replace(outcome, ending=error.ending.value, is_infrastructure=True, turns=0)
    return replace(outcome, ending=Ending.AGENT_ERROR.value, passed=False, reward=0.0, turns=0)
