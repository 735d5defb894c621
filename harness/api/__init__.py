"""The Python API: write rollouts as functions, gather them in groups, train; shaped as users of ART know it.

    import harness.api as art

Tokens are never made from text here: a model's calls pass the gateway, which records what was sampled, and a step
trains on that record through the trainer that `harness train` uses (docs/python-api.md).
"""

from harness.api.backend import LocalBackend
from harness.api.dataset import Batch, iterate_dataset, limit_concurrency, retry
from harness.api.evaluation import evaluate
from harness.api.gather import gather_trajectories, gather_trajectory_groups
from harness.api.model import Model, TrainableModel, TrainConfig, TrainResult
from harness.api.ruler import ruler_score_group
from harness.api.scope import Rollout, RolloutFailed
from harness.api.trajectory import Message, Trajectory, TrajectoryGroup
from harness.outcomes import Evaluation, compare_evaluations, summarise
from harness.scoring.judge import Judge
from harness.scoring.litellm_call import JudgeSpec
from harness.task import Task

__all__ = [
    "Batch",
    "Evaluation",
    "Judge",
    "JudgeSpec",
    "LocalBackend",
    "Message",
    "Model",
    "Rollout",
    "RolloutFailed",
    "Task",
    "TrainConfig",
    "TrainResult",
    "TrainableModel",
    "Trajectory",
    "TrajectoryGroup",
    "compare_evaluations",
    "evaluate",
    "gather_trajectories",
    "gather_trajectory_groups",
    "iterate_dataset",
    "limit_concurrency",
    "retry",
    "ruler_score_group",
    "summarise",
]
