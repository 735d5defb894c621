"""A judge for single trajectories: each is scored by the rubric alone, without seeing the others.

It knows nothing about groups, endpoints or stores. Scores of different tasks are on one scale, but a group's are told
apart less well than by comparison. Called by blend.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from harness.scoring.ballot import BallotCount, ask_heat
from harness.scoring.heats import Heat
from harness.scoring.judge import Judge
from harness.scoring.litellm_call import failed
from harness.scoring.rubric import Rubric
from harness.scoring.ruler_answer import Verdict
from harness.scoring.ruler_prompt import Entry, OverBudget, build_prompt
from harness.scoring.transcript import Transcript, transcript_of
from traces.trajectory import Score, Trajectory

INDEPENDENT = "independent"
PROMPT_VERSION = "independent-1"
TEMPLATE_FILE = Path(__file__).with_name("independent.md")
LABEL = "t1"


async def score_independently(
    trajectories: Sequence[Trajectory], judge: Judge, rubric: Rubric, count: BallotCount
) -> dict[str, Score]:
    """Rollout id → score, for all of these; what is the same is asked once. Raises JudgeError where one is lost."""
    transcripts = {trajectory.rollout_id: transcript_of(trajectory) for trajectory in trajectories}
    distinct = {transcript.fingerprint: transcript for transcript in transcripts.values()}
    count.distinct = len(distinct)
    asked = await asyncio.gather(
        *(_verdict(transcript, judge, rubric, count) for transcript in distinct.values()), return_exceptions=True
    )
    verdicts: dict[str, Verdict] = {}
    for fingerprint, result in zip(distinct, asked, strict=True):
        if isinstance(result, BaseException):
            raise result
        verdicts[fingerprint] = result
    version = f"{PROMPT_VERSION}/{judge.spec.model}/{rubric.version}"
    return {
        rollout_id: _score(verdicts[transcript.fingerprint], version) for rollout_id, transcript in transcripts.items()
    }


async def _verdict(transcript: Transcript, judge: Judge, rubric: Rubric, count: BallotCount) -> Verdict:
    try:
        prompt = build_prompt(
            [Entry(LABEL, transcript)], rubric, judge.spec.max_prompt_tokens, template_file=TEMPLATE_FILE
        )
    except OverBudget as error:
        raise failed(judge.spec, str(error)) from error
    heat = Heat(prompt=prompt, names={LABEL: transcript.fingerprint}, anchors=(), twin=None, vote=0)
    return (await ask_heat(heat, judge, rubric, count))[LABEL]


def _score(verdict: Verdict, version: str) -> Score:
    return Score(
        value=verdict.score,
        name=INDEPENDENT,
        components=dict(verdict.criteria),
        explanation=verdict.explanation,
        scorer_version=version,
    )
