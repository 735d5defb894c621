"""A user played by a model through LiteLLM, with the known ways in which such users fail caught.

A stop token glued to an answer doesn't stop, a stop before the agent could act is asked again, and so are empty and cut
answers and facts that were made up; what can't be mended is the simulator's fault and never the agent's.
It knows nothing about agents, sessions or HTTP. Called by user_door.py.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from harness.errors import JudgeError, SimulatorError
from harness.scoring.judge import Judge
from harness.scoring.litellm_call import JudgeUsage, Reply
from harness.user import Said, Scenario, awaits_answer

STOP = "###STOP###"
ATTEMPTS = 3
"""Tries at one answer before the simulation counts as failed."""
GREETING = "Hi! How can I help you today?"
"""What the agent is taken to have said where the scenario leaves the first message to the model."""

_STOPS = re.compile(r"#{2,}\s*(STOP|TRANSFER|OUT-OF-SCOPE)\s*#{2,}", re.IGNORECASE)
# Long numbers, mixed codes and mail addresses: what a customer reads off somewhere and can't make up.
_IDENTIFIER = re.compile(r"[\w.+-]+@[\w-]+\.\w+|#?\b(?=\w*\d{3})\w+\b")


class LlmUser:
    """One conversation's user."""

    def __init__(self, scenario: Scenario, model: Judge) -> None:
        self._scenario = scenario
        self._model = model
        self._usage = JudgeUsage()
        self._repairs = 0
        system = _prompt().format(goal=scenario.goal.strip(), stop=STOP)
        self._messages: list[dict[str, str]] = [{"role": "system", "content": system}]

    async def open(self) -> str:
        """The scenario's opening, or the model's answer to a greeting; raises SimulatorError."""
        self._messages.append({"role": "user", "content": GREETING})
        if self._scenario.opening is None:
            return (await self._say(GREETING)).text
        self._messages.append({"role": "assistant", "content": self._scenario.opening})
        return self._scenario.opening

    async def answer(self, message: str) -> Said:
        """The model's answer to what the agent said; raises SimulatorError where it has none that can be used."""
        self._messages.append({"role": "user", "content": message.strip() or "(the agent said nothing)"})
        return await self._say(message)

    def metrics(self) -> dict[str, float]:
        """Calls, tokens and money, and answers that had to be asked for again."""
        return {**self._usage.as_metrics("user/"), "user/repairs": float(self._repairs)}

    async def _say(self, heard: str) -> Said:
        fault = ""
        for attempt in range(ATTEMPTS):
            self._repairs += attempt > 0
            reply = await self._ask(fault)
            said = _split_stop(reply.text, heard)
            fault = self._fault(reply, said, heard)
            if not fault:
                self._messages.append({"role": "assistant", "content": said.text or STOP})
                return said
        found = f"{ATTEMPTS} answers that can't be used; of the last: {fault}"
        raise SimulatorError(f"an answer from the simulated user {self._model.spec}", found, "take a stronger model")

    async def _ask(self, fault: str) -> Reply:
        note = [{"role": "user", "content": f"(Not from the agent: {fault} Write the customer's message again.)"}]
        try:
            reply = await self._model.ask([*self._messages, *(note if fault else ())], {})
        except JudgeError as error:
            asked = f"an answer from the simulated user {self._model.spec}"
            fix = "check user.model, user.api_base and the provider's key in the environment, or raise user.timeout_s"
            raise SimulatorError(asked, error.found, fix) from error
        self._usage.add(reply.usage)
        return reply

    def _fault(self, reply: Reply, said: Said, heard: str) -> str:
        """What is wrong with an answer, in words to its author; empty where nothing is."""
        if not reply.is_complete:
            return "your message was cut off; write a shorter one."
        if not said.text and not said.done:
            return "your message was empty."
        if said.done and awaits_answer(heard):
            return "you stopped, but the agent waits for your answer and has not acted yet; answer it."
        if said.text.strip() and said.text.strip() == heard.strip():
            return "you repeated the agent's words; you are the customer."
        made_up = self._made_up(said.text)
        return f"you made up {made_up}, which the scenario doesn't say." if made_up else ""

    def _made_up(self, text: str) -> str:
        known = " ".join([self._scenario.goal, *(message["content"] for message in self._messages[1:])]).lower()
        unknown = [found for found in _IDENTIFIER.findall(text) if found.lower().strip("#.") not in known]
        return ", ".join(dict.fromkeys(unknown))


def _split_stop(text: str, heard: str) -> Said:
    """The message without its stop token. Words beside the token outweigh it where the agent waits for an answer."""
    words = _STOPS.sub("", text).strip()
    stops = _STOPS.search(text) is not None
    return Said(words, done=stops and not (words and awaits_answer(heard)))


@lru_cache(maxsize=1)
def _prompt() -> str:
    return Path(__file__).with_name("user.md").read_text(encoding="utf-8")
