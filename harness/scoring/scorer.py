"""The judge of a run, opened from its configuration: groups in, scores out, spans and cost on disk.

It knows nothing about prompts or agents. Each group put to the judge leaves a line in `judge.jsonl` (what it took, or
why it failed: judge failures are in no mean) and each score a `gen_ai.evaluation.result` on its rollout's trace.
Called by the train loop, `harness rollout` and `harness score`; group.py calls what it yields.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from harness.config import JudgeSection, RewardSection
from harness.errors import JudgeError
from harness.run_facts import JUDGE_LOG
from harness.scoring.ballot import BallotCount
from harness.scoring.blend import BLENDS, Scores
from harness.scoring.heats import RulerOptions
from harness.scoring.independent import score_independently
from harness.scoring.judge import Judge
from harness.scoring.judge_cache import JudgeCache
from harness.scoring.litellm_call import JudgeFailed, JudgeSpec, load_litellm
from harness.scoring.rubric import Rubric, load_rubric
from harness.scoring.ruler import ballot_metrics, ruler_scores
from traces import semconv
from traces.build import score_event
from traces.span import Span, new_span_id, new_trace_id
from traces.store import Store
from traces.trajectory import Score, Trajectory

CACHE_FILE = "judge_cache.db"


@dataclass(slots=True)
class Scorer:
    """Scores groups by one reward; can be called from many tasks at once."""

    kind: str
    """`reward.kind`: ruler, independent, gate or weighted."""
    judge: Judge
    """Who is asked."""
    rubric: Rubric
    """What it is asked for."""
    options: RulerOptions
    """Votes, heats, twins, seed."""
    checks_weight: float
    """Share of the checks in `weighted`."""
    store: Store
    """Where the rollouts are; spans are added to it, scores are returned."""
    give_up_after: int = 8
    """Groups in a row that may be left unscored; then the judge counts as dead."""
    failed_in_row: int = 0
    """Groups left unscored since the judge last answered."""

    async def __call__(self, task: object, trajectories: Sequence[Trajectory]) -> Mapping[str, Sequence[Score]]:
        """Rollout id → scores to add, the reward last.

        Raises JudgeFailed where only this group is lost, and JudgeError where the judge is of no use, or no longer.
        """
        del task
        count = BallotCount()

        async def ask(judged: Sequence[Trajectory]) -> Mapping[str, Score]:
            if self.kind == "independent":
                return await score_independently(judged, self.judge, self.rubric, count)
            return await ruler_scores(judged, self.judge, self.rubric, self.options, count)

        started_ns = time.time_ns()
        try:
            scores = await BLENDS[self.kind](trajectories, ask, self.checks_weight)
        except JudgeError as error:
            self._log(trajectories, count, error)
            raise self._counted(error) from error.__cause__
        self._log(trajectories, count, None)
        if count.usage.calls:
            self.failed_in_row = 0
        await asyncio.to_thread(self._write_spans, scores, started_ns)
        return scores

    def _counted(self, error: JudgeError) -> JudgeError:
        """The error itself; of the last of too many groups in a row, one that ends the run instead."""
        if not isinstance(error, JudgeFailed):
            return error
        self.failed_in_row += 1
        if self.failed_in_row < self.give_up_after:
            return error
        return JudgeError(
            asked=f"the reward {self.kind!r} from the judge {self.judge.spec}",
            found=f"{self.failed_in_row} groups in a row without a usable verdict, the last: {error.found}",
            fix="mend the judge, then go on: all rollouts are kept, and `harness train --resume` has them judged first",
        )

    def _log(self, trajectories: Sequence[Trajectory], count: BallotCount, error: JudgeError | None) -> None:
        row: dict[str, Any] = {
            "group_id": trajectories[0].group_id if trajectories else None,
            "trajectories": len(trajectories),
            **ballot_metrics(count),
        }
        if error is not None:
            row |= {"ruler/unscored": 1.0, "error": error.found}
        with (self.store.path.parent / JUDGE_LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _write_spans(self, scores: Scores, started_ns: int) -> None:
        spans = [
            evaluation_span(self.store, rollout_id, score, started_ns)
            for rollout_id, added in scores.items()
            for score in added
        ]
        self.store.append_spans(spans)


@asynccontextmanager
async def open_scorer(
    reward: RewardSection, judge: JudgeSection, store: Store, *, seed: int = 0
) -> AsyncGenerator[Scorer | None]:
    """The scorer of a run for as long as the block lasts; None for `checks`, whose scores the rollouts bring along.

    LiteLLM is imported here, beside the event loop, so that no rollout waits for it. Raises JudgeError for a missing
    judge, rubric file or LiteLLM.
    """
    if reward.kind == "checks":
        yield None
        return
    if judge.model is None:
        raise JudgeError(
            asked=f"the reward {reward.kind!r}",
            found="no judge is configured",
            fix="name one: --judge openai/gpt-5, or judge.model and judge.api_base for an endpoint of your own",
        )
    if judge.model == "served":
        raise JudgeError(
            asked=f"the reward {reward.kind!r} from the judge 'served'",
            found="no engine of the run's own is running here",
            fix="name the address: judge.model = 'hosted_vllm/base', judge.api_base = 'http://127.0.0.1:8000/v1'",
        )
    rubric = load_rubric(judge.rubric)
    await asyncio.to_thread(load_litellm, judge.model)
    with JudgeCache(store.path.parent / CACHE_FILE) as cache:
        yield Scorer(
            kind=reward.kind,
            judge=Judge(judge_spec(judge, judge.model), cache),
            rubric=rubric,
            options=RulerOptions(seed=seed, votes=judge.votes),
            checks_weight=reward.checks_weight,
            store=store,
            give_up_after=judge.give_up_after,
        )


def judge_spec(section: JudgeSection, model: str) -> JudgeSpec:
    """The judge of a configuration; what the section doesn't say keeps its default."""
    return JudgeSpec(
        model=model,
        api_base=section.api_base,
        temperature=section.temperature,
        concurrency=section.concurrency,
        timeout_s=section.timeout_s,
    )


def evaluation_span(store: Store, rollout_id: str, score: Score, started_ns: int) -> Span:
    """A span `evaluate {name}` on the rollout's trace, under its root, with the score as its event."""
    record = store.rollout(rollout_id)
    now_ns = time.time_ns()
    return Span(
        trace_id=record.trace_id or new_trace_id(),
        span_id=new_span_id(),
        parent_id=_root_span_id(store, rollout_id),
        name=f"evaluate {score.name}",
        start_ns=started_ns,
        end_ns=now_ns,
        attributes={semconv.EVALUATION_NAME: score.name, semconv.EVALUATION_SCORE: score.value},
        events=(score_event(score, now_ns),),
        rollout_id=rollout_id,
        group_id=record.group_id,
        run_id=record.run_id,
    )


def _root_span_id(store: Store, rollout_id: str) -> str | None:
    roots = [
        span
        for span in store.spans(rollout_id)
        if span.attributes.get(semconv.OPERATION_NAME) == semconv.OPERATION_INVOKE_AGENT and span.parent_id is None
    ]
    return roots[0].span_id if roots else None
