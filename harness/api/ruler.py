"""RULER on a group of the API: a judge compares its trajectories, and the scores become their rewards.

It knows nothing about prompts or endpoints (harness/scoring), or about runs: the judge reads the messages that the
trajectories hold. A group that can't be judged is left as it was, or dropped; it never gets rewards of 0 (law 4).
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from harness.api.trajectory import Trajectory, TrajectoryGroup
from harness.errors import JudgeError
from harness.scoring import ruler
from harness.scoring.judge import Judge
from harness.scoring.litellm_call import JudgeSpec
from harness.scoring.rubric import load_rubric
from traces.trajectory import Ending, Group, Turn
from traces.trajectory import Trajectory as Record

_log = logging.getLogger(__name__)


async def ruler_score_group(
    group: TrajectoryGroup,
    judge: str | JudgeSpec | Judge = "openai/gpt-5",
    *,
    rubric: str | Path | None = None,
    swallow_exceptions: bool = False,
) -> TrajectoryGroup | None:
    """The same group with each reward replaced by the judge's score, 0 to 1; what it was is kept as a metric.

    `judge` is a LiteLLM model string, a spec with address and key, or a judge that is shared by many groups; `rubric`
    a shipped one's name, a file or text. Explanations go to `logs`, cost to the group's metrics. Fits `after_each`.
    Raises JudgeError; with `swallow_exceptions` the group is dropped instead (None), and a warning says why.
    """
    asked = judge if isinstance(judge, Judge) else Judge(JudgeSpec(model=judge) if isinstance(judge, str) else judge)
    try:
        rules = load_rubric(str(rubric) if rubric is not None else None)
        records = [judged_record(trajectory, group.id, index) for index, trajectory in enumerate(group)]
        whole = Group(
            group_id=group.id, run_id="", task_id=group.about("task_id"), kind="", split="train", trajectories=records
        )
        scored = await ruler.ruler_score_group(whole, asked, rules)
        if ruler.is_unscored(scored):
            detail = scored.trajectories[0].ending_detail
            raise JudgeError(f"RULER over group {group.id!r}", detail, "gather the group again, or take another judge")
    except JudgeError as error:
        if not swallow_exceptions:
            raise
        _log.warning("group %s is dropped: %s", group.id, error)
        return None
    for trajectory, record in zip(group, scored.trajectories, strict=True):
        score = record.score(ruler.RULER)
        assert score is not None, "every trajectory of a scored group has a score"
        trajectory.metrics["independent_reward"] = trajectory.reward
        trajectory.reward = score.value
        trajectory.log(f"RULER: {score.explanation}")
    group.metrics.update(scored.metrics)
    return group


def judged_record(trajectory: Trajectory, group_id: str, index: int) -> Record:
    """A trajectory as the judge's prompt takes it: its messages as one model call, without tokens."""
    messages = trajectory.messages()
    answered = bool(messages) and messages[-1].get("role") == "assistant"
    turn = Turn(
        index=0,
        prompt_ids_T=np.zeros(0, np.int32),
        completion_ids_T=np.zeros(0, np.int32),
        logprobs_T=np.zeros(0, np.float32),
        policy_version=-1,
        model="",
        finish_reason="",
        input_messages=messages[:-1] if answered else messages,
        tools=trajectory.tools or [],
        output_message=messages[-1] if answered else {"role": "assistant", "content": ""},
        span_id="",
        start_ns=0,
        end_ns=0,
    )
    return Record(
        rollout_id=f"{group_id}-{index}",
        group_id=group_id,
        run_id="",
        task_id=str(trajectory.metadata.get("task_id") or group_id),
        kind="",
        split="train",
        policy_version=-1,
        turns=[turn],
        tool_calls=[],
        ending=Ending.ANSWERED,
    )
