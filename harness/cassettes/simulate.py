"""A miss answered by an LLM that plays the tool, from the recorded calls and what happened in this session so far.

Such answers are marked (`calls_simulated` in the grade): they are plausible, not true.
It knows nothing about HTTP or MCP. Chosen by `--on-miss simulate`.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.cassettes.deck import Answered, Deck
from harness.errors import JudgeError, SimulatorError
from harness.scoring.judge import Judge
from traces.cassette import RecordedCall

SIMULATED = "simulated"
_ERROR = "Error"
_LONGEST_RESULT = 2000
_MOST_EXAMPLES = 24


class Simulate:
    """Asks a model what the tool would have answered."""

    knows_changes = True

    def __init__(self, model: Judge) -> None:
        self._model = model

    async def answer(self, deck: Deck, name: str, arguments: str) -> Answered:
        """The model's text as the result, an error where it begins with `Error`; raises SimulatorError."""
        asked = f"an answer of the tool {name!r} from {self._model.spec.model}"
        fix = "check tools.simulator and the provider's key in the environment, or take tools.on_miss = 'refuse'"
        try:
            reply = await self._model.ask(simulation_prompt(deck, name, arguments), {})
        except JudgeError as error:
            raise SimulatorError(asked, error.found, fix) from error
        text = reply.text.strip()
        if not text or not reply.is_complete:
            raise SimulatorError(asked, "an empty answer" if not text else "an answer that was cut off", fix)
        call = RecordedCall(name=name, arguments=arguments, result=text, is_error=text.startswith(_ERROR))
        return Answered(call, SIMULATED)

    def has_taken_over(self, deck: Deck) -> bool:
        """Never: what is on record is answered from it."""
        del deck
        return False

    async def grade(self, deck: Deck, answer: str) -> dict[str, Any] | None:
        """The record's own grade stands."""
        del deck, answer

    async def close(self, deck: Deck) -> None:
        """Nothing is held."""
        del deck


def simulation_prompt(deck: Deck, name: str, arguments: str) -> list[dict[str, str]]:
    """What the model is asked: the tool, recorded calls of it first, this session so far, the call."""
    tools = [tool["function"] for tool in deck.cassette.tools if tool.get("function", {}).get("name") == name]
    recorded = sorted(deck.cassette.calls, key=lambda call: call.name != name)[:_MOST_EXAMPLES]
    parts = [
        f"<tool>\n{json.dumps(tools[0]) if tools else name}\n</tool>",
        f"<recorded>\n{_lines(recorded)}\n</recorded>",
        f"<session>\n{_lines([one.call for one in deck.answered])}\n</session>",
        f"<call>\n{name}({arguments})\n</call>",
    ]
    return [{"role": "system", "content": _instructions()}, {"role": "user", "content": "\n".join(parts)}]


def _lines(calls: list[RecordedCall]) -> str:
    return "\n".join(f"{call.name}({call.arguments}) → {call.result[:_LONGEST_RESULT]}" for call in calls) or "(none)"


@lru_cache(maxsize=1)
def _instructions() -> str:
    return Path(__file__).with_name("simulate.md").read_text(encoding="utf-8")
