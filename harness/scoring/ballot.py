"""A ballot: every heat of every vote is asked, repaired once if need be, and joined to one score a transcript.

It knows nothing about groups, trajectories, prompts or endpoints. An answer is used whole or not at all, and a vote
too. Called by ruler.py.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.errors import JudgeError
from harness.scoring.heats import Heat, Question, plan_vote
from harness.scoring.judge import Judge
from harness.scoring.litellm_call import JudgeFailed, JudgeUsage, failed
from harness.scoring.rubric import Rubric
from harness.scoring.ruler_answer import AnswerError, Verdict, answer_schema, read_answer


@dataclass(frozen=True, slots=True)
class Standing:
    """What became of one transcript."""

    score: float
    """Mean over votes, from 0 to 1."""
    spread: float
    """Standard deviation over votes; 0 for one vote."""
    verdict: Verdict
    """The first vote's words and criteria."""


@dataclass(slots=True)
class BallotCount:
    """What the ballot took; filled while it runs, so that it is known of a failed one too."""

    usage: JudgeUsage = field(default_factory=JudgeUsage)
    """Calls, tokens, money."""
    prompts: int = 0
    """Questions put: heats times votes."""
    repairs: int = 0
    """Answers that were asked for again with the error shown."""
    failed_votes: int = 0
    """Votes without a usable answer."""
    cut_characters: int = 0
    """Characters left out of prompts for length."""
    distinct: int = 0
    """Transcripts put to the vote; what is the same is put once."""
    spreads: list[float] = field(default_factory=list[float])
    """Standard deviation over votes, of each transcript; empty for one vote."""
    twin_gaps: list[float] = field(default_factory=list[float])
    """|difference| between the two scores of each twin."""


async def hold_ballot(question: Question, judge: Judge, count: BallotCount) -> dict[str, Standing]:
    """Fingerprint → standing, for every transcript.

    Raises JudgeFailed when half of the votes or more fail or the prompts don't fit the budget, and JudgeError when no
    question to this judge can succeed.
    """
    count.distinct = len(question.transcripts)
    votes = [plan_vote(question, vote) for vote in range(max(1, question.options.votes))]
    if any(not heats for heats in votes):
        raise failed(judge.spec, f"two trajectories alone exceed max_prompt_tokens = {question.max_prompt_tokens}")
    results = await asyncio.gather(*(_hold_vote(heats, judge, question.rubric, count) for heats in votes))
    faults = [result for result in results if isinstance(result, JudgeError)]
    hopeless = [fault for fault in faults if not isinstance(fault, JudgeFailed)]
    count.failed_votes = len(faults)
    if hopeless or 2 * len(faults) >= len(votes):
        raise (hopeless or faults)[0]
    counted = [result for result in results if not isinstance(result, JudgeError)]
    standings = {name: _standing([vote[name] for vote in counted]) for name in question.transcripts}
    if len(counted) > 1:
        count.spreads.extend(standing.spread for standing in standings.values())
    return standings


async def _hold_vote(
    heats: Sequence[Heat], judge: Judge, rubric: Rubric, count: BallotCount
) -> dict[str, Verdict] | JudgeError:
    """Fingerprint → verdict of one vote; the error where one of its heats has no answer."""
    results = await asyncio.gather(*(_answer_or_error(heat, judge, rubric, count) for heat in heats))
    faults = [result for result in results if isinstance(result, JudgeError)]
    if faults:
        hopeless = [fault for fault in faults if not isinstance(fault, JudgeFailed)]
        return (hopeless or faults)[0]
    return _on_one_scale(heats, [result for result in results if not isinstance(result, JudgeError)])


async def _answer_or_error(
    heat: Heat, judge: Judge, rubric: Rubric, count: BallotCount
) -> dict[str, Verdict] | JudgeError:
    try:
        return await ask_heat(heat, judge, rubric, count)
    except JudgeError as error:
        return error


async def ask_heat(heat: Heat, judge: Judge, rubric: Rubric, count: BallotCount) -> dict[str, Verdict]:
    """Label → verdict of one question: from the cache, or from the judge with one repair. Raises JudgeError."""
    count.prompts += 1
    count.cut_characters += heat.prompt.cut_characters
    key = judge.key(heat.prompt.messages, heat.vote)
    kept = judge.recall(key)
    if kept is None:
        text, verdicts = await _ask_with_repair(heat, judge, rubric, count)
        judge.remember(key, text)
    else:
        count.usage.cached += 1
        verdicts = read_answer(kept, heat.prompt.labels, rubric)
    if heat.twin is not None:
        first, second = heat.twin
        count.twin_gaps.append(abs(verdicts[first].score - verdicts[second].score))
    return verdicts


async def _ask_with_repair(
    heat: Heat, judge: Judge, rubric: Rubric, count: BallotCount
) -> tuple[str, dict[str, Verdict]]:
    messages = heat.prompt.messages
    fault: AnswerError | None = None
    for attempt in range(2):
        count.repairs += attempt
        reply = await judge.ask(messages, answer_schema(rubric))
        count.usage.add(reply.usage)
        try:
            if not reply.is_complete:
                raise AnswerError("the answer was cut off; keep explanations short")
            return reply.text, read_answer(reply.text, heat.prompt.labels, rubric)
        except AnswerError as error:
            fault = error
        messages = [
            *heat.prompt.messages,
            {"role": "assistant", "content": reply.text or "(no answer)"},
            {"role": "user", "content": _repair_text(fault, heat.prompt.labels)},
        ]
    raise failed(judge.spec, f"no usable answer, and none after one repair: {fault}") from fault


def _repair_text(fault: AnswerError, labels: Sequence[str]) -> str:
    return (
        f"This answer can't be used: {fault}. Give the whole answer again, as one JSON object in the format asked for, "
        f"with each of these ids exactly once: {', '.join(labels)}."
    )


def _on_one_scale(heats: Sequence[Heat], answers: Sequence[Mapping[str, Verdict]]) -> dict[str, Verdict]:
    """Fingerprint → verdict. Later heats are shifted by what their anchors differ from the first heat's, on average."""
    by_name = [
        # Of twins the first counts: the second is there to be compared only.
        {name: answer[label] for label, name in reversed(heat.names.items())}
        for heat, answer in zip(heats, answers, strict=True)
    ]
    joined: dict[str, list[Verdict]] = {}
    for heat, verdicts in zip(heats, by_name, strict=True):
        gaps = [by_name[0][anchor].score - verdicts[anchor].score for anchor in heat.anchors]
        shift = statistics.fmean(gaps) if gaps else 0.0
        for name, verdict in verdicts.items():
            shifted = min(1.0, max(0.0, verdict.score + shift))
            joined.setdefault(name, []).append(Verdict(shifted, verdict.explanation, verdict.criteria))
    return {
        name: Verdict(statistics.fmean(v.score for v in given), given[0].explanation, given[0].criteria)
        for name, given in joined.items()
    }


def _standing(verdicts: Sequence[Verdict]) -> Standing:
    scores = [verdict.score for verdict in verdicts]
    return Standing(statistics.fmean(scores), statistics.pstdev(scores), verdicts[0])
