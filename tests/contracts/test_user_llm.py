"""Users played by a model, over real HTTP and real LiteLLM: the known ways in which they fail, one by one."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import SimulatorError
from harness.scoring.judge import Judge
from harness.user import Said, Scenario
from harness.user_llm import ATTEMPTS, GREETING, LlmUser
from tests.scripted_judge import Call, completion, failure, scripted_judge

pytest.importorskip("litellm")

GOAL = "You are Ann Lee, ann@example.com. Cancel order #K100, it was a mistake."
SCENARIO = Scenario(GOAL, opening="Hi, please help me.")
CONFIRM = "I will cancel order #K100. Do you confirm?"
DONE = "Order #K100 is cancelled. Is there anything else?"


class Script:
    """Answers one after the other; the last one again and again."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[list[dict[str, Any]]] = []

    def __call__(self, call: Call) -> Any:
        self.asked.append(call.body["messages"])
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def answer_to(heard: str, *answers: Any, scenario: Scenario = SCENARIO) -> tuple[Said, Script, dict[str, float]]:
    """What the user says to `heard` where the model answers like this."""
    script = Script(*answers)
    async with scripted_judge(script) as endpoint:
        user = LlmUser(scenario, Judge(endpoint.spec(json_schema=False)))
        assert await user.open() == scenario.opening
        return await user.answer(heard), script, user.metrics()


@pytest.mark.parametrize(
    ("heard", "answers", "said", "calls"),
    [
        ("Your email?", ["ann@example.com"], Said("ann@example.com"), 1),
        (DONE, ["###STOP###"], Said("", done=True), 1),
        (DONE, ["Thanks a lot!###STOP###"], Said("Thanks a lot!", done=True), 1),
        (DONE, ["### stop ###"], Said("", done=True), 1),
        ("I hand you over.", ["###TRANSFER###"], Said("", done=True), 1),
        (CONFIRM, ["Yes, please.###STOP###"], Said("Yes, please."), 1),
        (CONFIRM, ["###STOP###", "Yes."], Said("Yes."), 2),
        (CONFIRM, ["", "  ", "Yes."], Said("Yes."), 3),
        (CONFIRM, [completion(None), "Yes."], Said("Yes."), 2),
        (CONFIRM, [completion("Yes, but", finish_reason="length"), "Yes."], Said("Yes."), 2),
        (CONFIRM, [CONFIRM, "Yes."], Said("Yes."), 2),
        ("Which order?", ["It is #Z999.", "It is #K100."], Said("It is #K100."), 2),
        ("Your email?", ["me@elsewhere.org", "ann@example.com."], Said("ann@example.com."), 2),
        ("Your email?", [failure(503), "ann@example.com"], Said("ann@example.com"), 2),
    ],
)
async def test_what_is_wrong_with_an_answer_is_mended_or_asked_again(
    heard: str, answers: list[Any], said: Said, calls: int
) -> None:
    found, script, metrics = await answer_to(heard, *answers)
    assert found == said
    assert len(script.asked) == calls
    assert metrics["user/calls"] >= 1


@pytest.mark.parametrize(
    ("heard", "answer", "found"),
    [
        (CONFIRM, "", "empty"),
        (CONFIRM, "###STOP###", "stopped, but the agent waits"),
        ("Which order?", "It is #Z999.", "made up #Z999"),
        (CONFIRM, failure(401), "401|Authentication"),
    ],
)
async def test_what_can_not_be_mended_is_the_simulators_fault(heard: str, answer: Any, found: str) -> None:
    with pytest.raises(SimulatorError, match=found):
        await answer_to(heard, answer)


async def test_the_model_hears_the_agent_as_the_other_side_and_what_was_wrong() -> None:
    _, script, metrics = await answer_to(CONFIRM, "###STOP###", "Yes.")
    assert [message["role"] for message in script.asked[0]] == ["system", "user", "assistant", "user"]
    assert [message["content"] for message in script.asked[0][1:]] == [GREETING, SCENARIO.opening, CONFIRM]
    assert GOAL in script.asked[0][0]["content"]
    assert "has not acted yet" in script.asked[1][-1]["content"]
    assert (metrics["user/repairs"], metrics["user/prompt_tokens"]) == (1.0, 200.0)
    assert ATTEMPTS > 1


async def test_a_scenario_without_an_opening_has_the_model_begin() -> None:
    async with scripted_judge(Script("I want to cancel an order.")) as endpoint:
        user = LlmUser(Scenario("Cancel order #K100."), Judge(endpoint.spec(json_schema=False)))
        assert await user.open() == "I want to cancel an order."
