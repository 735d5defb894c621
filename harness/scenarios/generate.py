"""Scenarios for any MCP server: a model writes them in rounds, they are checked, repetition is dropped, splits made.

Each round asks for another mix of tools, difficulty and voice and shows what is there already; a second question has
the model check each request against the tools. It knows nothing about transports, files or training.
Called by cli_tasks.py.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, JudgeError
from harness.scenarios.listing import Offer
from harness.scenarios.scenario import (
    LEVELS,
    SCHEMA,
    AnswerUnreadable,
    Rejected,
    Scenario,
    read_rows,
    read_scenario,
)
from harness.scenarios.variety import Kept, assign_splits
from harness.scoring.judge import Judge
from harness.task import Task

BATCH = 8
"""Requests of one round."""
PATIENCE = 3
"""Rounds in a row that may bring nothing before the generation stops with what it has."""
SHOWN = 40
"""Kept requests that a round is shown, so that it writes others."""
SYSTEM_PROMPT = (
    "You help a person with the tools you have. Use them to do what is asked, then tell the person what came of it. "
    "Say so where something can't be done; make nothing up."
)
"""Rules for agents whose server has no instructions."""
OFFER_CHARACTERS = 24_000
"""Of a server's description, in a prompt."""
VOICES = (
    "someone in a hurry who writes in fragments",
    "a careful person who explains the background first",
    "an expert who uses the right terms",
    "a newcomer who describes things in everyday words",
    "someone who changes their mind within the message",
    "a manager who wants a result to pass on",
)

_VERDICTS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "verdicts": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "number": {"type": "integer"},
                    "passes": {"type": "boolean"},
                    "why": {"type": "string"},
                },
                "required": ["number", "passes", "why"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["verdicts"],
    "additionalProperties": False,
}


@dataclass(slots=True)
class Generation:
    """How far it is, and what came of it."""

    kept: Kept = field(default_factory=Kept)
    """Scenarios so far."""
    rejected: Counter[str] = field(default_factory=Counter[str])
    """What was left out, by reason."""
    rounds: int = 0
    """Rounds so far."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be made."""

    count: int
    """Scenarios."""
    seed: int = 0
    """Seeds the rounds' mixes and the splits."""
    guidance: str = ""
    """Your own words about what the requests should be like."""
    reviewed: bool = True
    """Whether a second question has each request checked."""


async def generate_scenarios(
    offer: Offer, model: Judge, wanted: Wanted, tell: Callable[[Generation], None] = lambda _: None
) -> Generation:
    """Rounds until there are as many as wanted, or several in a row brought nothing new; fewer are no error.

    `tell` is called after each round. Raises HarnessError where the model can't be asked or none of its answers held.
    """
    made, rng, idle = Generation(), random.Random(wanted.seed), 0
    while len(made.kept.scenarios) < wanted.count and idle < PATIENCE:
        before = len(made.kept.scenarios)
        await _round(offer, model, wanted, made, rng)
        made.rounds += 1
        idle = idle + 1 if len(made.kept.scenarios) == before else 0
        tell(made)
    if not made.kept.scenarios:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in made.rejected.most_common())
        fix = "take a stronger model, or say with --guidance what requests to this server are like"
        raise HarnessError(f"scenarios from {model.spec}", f"nothing that could be used: {reasons}", fix)
    return made


async def _round(offer: Offer, model: Judge, wanted: Wanted, made: Generation, rng: random.Random) -> None:
    asked = min(BATCH, wanted.count - len(made.kept.scenarios) + 2)
    messages = [
        {"role": "system", "content": _system("write.md", offer)},
        {"role": "user", "content": _request(offer, wanted, made, asked, rng)},
    ]
    rows = await _ask(model, messages, SCHEMA, "scenarios", made)
    fresh: list[Scenario] = []
    for row in rows:
        try:
            fresh.append(read_scenario(row, [tool.name for tool in offer.tools]))
        except Rejected as error:
            made.rejected[str(error)] += 1
    if wanted.reviewed and fresh:
        fresh = await _reviewed(offer, model, fresh, made)
    for scenario in fresh:
        if len(made.kept.scenarios) < wanted.count and not made.kept.add(scenario):
            made.rejected["a near repetition"] += 1


def _request(offer: Offer, wanted: Wanted, made: Generation, count: int, rng: random.Random) -> str:
    """What this round shall write: tools that were used least come first, difficulties that are lacking too."""
    kept = made.kept.scenarios
    used = Counter(tool for scenario in kept for tool in scenario.tools)
    names = [tool.name for tool in offer.tools]
    rng.shuffle(names)
    focus = sorted(names, key=lambda name: used[name])[: max(2, min(5, len(names) // 2))]
    levels = Counter(scenario.difficulty for scenario in kept)
    lacking = sorted(LEVELS, key=lambda level: (levels[level], rng.random()))[:3]
    shown = rng.sample(kept, min(SHOWN, len(kept)))
    parts = [
        f"Write {count} requests. Most of them should need some of: {', '.join(focus)}.",
        f"Difficulties wanted now: {', '.join(map(str, sorted(lacking)))}. Voice: {rng.choice(VOICES)}.",
        *([f"About the requests: {wanted.guidance}"] if wanted.guidance else []),
    ]
    if shown:
        parts += ["These are there already; write none like them:", *(f"- {one.request[:200]}" for one in shown)]
    return "\n".join(parts)


async def _reviewed(offer: Offer, model: Judge, fresh: Sequence[Scenario], made: Generation) -> list[Scenario]:
    """Those that the model finds possible; what it says nothing about is left out."""
    numbered = "\n".join(
        f"{number}. {scenario.request}\n   (done right when: {scenario.success})"
        for number, scenario in enumerate(fresh, start=1)
    )
    messages = [
        {"role": "system", "content": _system("review.md", offer)},
        {"role": "user", "content": f"Check these {len(fresh)} requests:\n{numbered}"},
    ]
    verdicts = await _ask(model, messages, _VERDICTS, "verdicts", made)
    passed = {row.get("number") for row in verdicts if row.get("passes") is True}
    kept = [scenario for number, scenario in enumerate(fresh, start=1) if number in passed]
    if len(kept) < len(fresh):
        made.rejected["not possible as written"] += len(fresh) - len(kept)
    return kept


async def _ask(
    model: Judge, messages: list[dict[str, str]], schema: dict[str, Any], name: str, made: Generation
) -> list[Mapping[str, Any]]:
    """Rows of the answer; one that can't be read is asked for once more, with the fault shown, and then counted."""
    fault = ""
    for _ in range(2):
        note = [{"role": "user", "content": f"Your last answer could not be used: {fault}. Answer again."}]
        try:
            reply = await model.ask([*messages, *(note if fault else ())], schema)
        except JudgeError as error:
            fix = "check --llm (as in openai/gpt-5), --llm-base and the provider's key in the environment"
            raise HarnessError(f"scenarios from {model.spec}", error.found, fix) from error
        try:
            return read_rows(reply.text, name)
        except AnswerUnreadable as error:
            fault = str(error)
    made.rejected["an answer that can't be read"] += 1
    return []


def _system(file: str, offer: Offer) -> str:
    text = (Path(__file__).parent / file).read_text(encoding="utf-8")
    return text.format(server=json.dumps(offer.name), offer=offer_text(offer))


def offer_text(offer: Offer, longest: int = OFFER_CHARACTERS) -> str:
    """A server's offer as a model reads it; where it is too long, descriptions are cut and then schemas left out."""
    text = ""
    for description, with_schema in ((2000, True), (300, True), (120, False)):
        lines = [offer.instructions[:4000]] if offer.instructions else []
        for tool in offer.tools:
            schema = f"\n  arguments: {json.dumps(tool.parameters, ensure_ascii=False)}" if with_schema else ""
            lines.append(f"- {tool.name}: {' '.join(tool.description.split())[:description]}{schema}")
        lines += [f"- resource {resource}" for resource in offer.resources[:50]]
        text = "\n".join(lines).replace("</server>", "")
        if len(text) <= longest:
            return text
    return text[:longest]


def tasks_of(made: Generation, server: str, seed: int, instructions: str = "") -> list[Task]:
    """The scenarios as tasks of `server`, in order, with splits; the same scenario has the same id in every file.

    The server's own `instructions` are what agents are told first; without any, `SYSTEM_PROMPT` is.
    """
    scenarios = made.kept.scenarios
    return [
        Task(
            id=f"{server}-{hashlib.sha256(scenario.request.encode()).hexdigest()[:10]}",
            server=server,
            split=split,
            kind=scenario.kind,
            user_message=scenario.request,
            system_prompt=instructions or SYSTEM_PROMPT,
            difficulty=scenario.difficulty,
            metadata={"tools": list(scenario.tools), "success": scenario.success},
        )
        for scenario, split in zip(scenarios, assign_splits(made.kept, seed), strict=True)
    ]


async def generate_tasks(
    offer: Offer, model: Judge, wanted: Wanted, server: str, tell: Callable[[Generation], None] = lambda _: None
) -> tuple[list[Task], Generation]:
    """Scenarios as tasks, and how they came about. Raises HarnessError."""
    made = await generate_scenarios(offer, model, wanted, tell)
    return await asyncio.to_thread(tasks_of, made, server, wanted.seed, offer.instructions), made
