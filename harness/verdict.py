"""How a rollout ended: from what the agent did, what the gateways counted and how the talk with its user went.

Pure: it knows nothing about how any of these are run. Called by rollout.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.agent import AgentResult
from harness.gateway.client import Seal
from harness.user_door import Conversation
from traces.trajectory import Ending

_LIMIT_ENDINGS = {"turns": Ending.TURN_LIMIT, "tokens": Ending.TOKEN_LIMIT, "wall_s": Ending.TIME_LIMIT}


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a rollout ended."""

    ending: Ending
    """Why."""
    detail: str = ""
    """The error or limit in words."""
    answer: str | None = None
    """What the agent returned."""
    told: str | None = None
    """All that the agent told its user, its answer included; None where there was no user."""


def judge_ending(result: AgentResult, seal: Seal) -> Verdict:
    """Why a rollout ended, from what the agent did and what the gateways saw.

    Our own failures come first, since they explain the rest; then limits that the gateways enforced, which agents see
    as errors of their client; then what became of the agent.
    """
    if seal.infrastructure_error is not None:
        name, _, detail = seal.infrastructure_error.partition(": ")
        return Verdict(Ending(name), detail, result.answer)
    if seal.limit_hit is not None:
        return Verdict(_LIMIT_ENDINGS[seal.limit_hit], f"the rollout's limit of {seal.limit_hit}", result.answer)
    if result.timed_out:
        return Verdict(Ending.TIME_LIMIT, "the agent ran until its time limit")
    if result.error is not None:
        return Verdict(Ending.AGENT_ERROR, result.error)
    return Verdict(Ending.ANSWERED, "", result.answer)


def judge_conversation(verdict: Verdict, talk: Conversation) -> Verdict:
    """The verdict of a rollout with a user: a fault of the simulation explains what the agent did after it (law 4).

    An agent that never spoke to its user has answered nobody, whatever it returned.
    """
    if verdict.ending.is_infrastructure:
        return verdict
    if talk.fault is not None:
        return Verdict(Ending.SIMULATOR_ERROR, str(talk.fault), verdict.answer)
    if talk.waits:
        return Verdict(Ending.SIMULATOR_ERROR, "the rollout ended while the user was making its answer", verdict.answer)
    if verdict.ending is Ending.ANSWERED and not talk.exchanges:
        return Verdict(Ending.AGENT_ERROR, "it said nothing to its user: post to the door's user_url", verdict.answer)
    said = [talk.heard(), *([verdict.answer] if verdict.answer else [])]
    return replace(verdict, told="\n".join(said))


def seal_metrics(seal: Seal) -> dict[str, float]:
    """What the gateways counted, as metrics of the rollout."""
    forks = {f"forks_{cause}": float(count) for cause, count in seal.forks.items()}
    return {
        "turns": float(seal.turns),
        "tool_calls": float(seal.tool_calls),
        "tokens": float(seal.tokens),
        "drift_tokens": float(seal.drift_tokens),
        "forks": float(sum(seal.forks.values())),
        **forks,
    }
