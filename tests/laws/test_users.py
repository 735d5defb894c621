"""Scripted users tell what they are asked for, agree before writes, change their mind and leave; retail says how."""

from __future__ import annotations

import re
from typing import Any

import pytest

from harness.errors import SimulatorError
from harness.task import Task, task_from_dict
from harness.user import PATIENCE, Fact, Request, Said, Scenario, ScriptedUser, awaits_answer, dialog_task, scenario_of
from mcp_servers.airline.tasks import generate_tasks as generate_airline_tasks
from mcp_servers.drafts import SPLITS
from mcp_servers.retail.dialog import dialog_phrases
from mcp_servers.retail.tasks import generate_tasks
from mcp_servers.retail.tools import TOOLBOX

WHO = Fact("identity", ("email", "name"), "I am ann@example.com.")
ORDER = Fact("order", ("order",), "It is order #K1.", pattern=r"#[A-Z]\d+")
REASON = Fact("reason", ("reason", "why"), "I don't need it anymore.")
CHANGED = Fact("reason", ("reason", "why"), "I don't need it anymore.", then="Sorry, it was a mistake.")
CANCEL = Request("I want to cancel an order.", (ORDER, REASON))
ONE = Scenario("goal", (CANCEL,), (WHO,), opening="Hi, I want to cancel an order.", consent="Yes.", thanks="Bye.")


def user_of(*requests: Request) -> ScriptedUser:
    return ScriptedUser(Scenario("goal", requests or (CANCEL,), (WHO,), consent="Yes.", thanks="Bye."))


async def talk(user: ScriptedUser, *messages: str) -> list[str]:
    return [(await user.answer(message)).text for message in messages]


async def test_a_fact_is_told_when_it_is_asked_for_and_not_before() -> None:
    user = ScriptedUser(ONE)
    assert await user.open() == "Hi, I want to cancel an order."
    said = await talk(user, "May I have your email?", "Which order, and why?", "Sorry, which order was it?")
    assert said == ["I am ann@example.com.", "It is order #K1. I don't need it anymore.", "It is order #K1."]


async def test_yes_is_said_before_the_write_and_the_user_leaves_after_it() -> None:
    user = user_of()
    said = await talk(user, "Your name, please?", "Order and reason?", "I will cancel order #K1. Do you confirm?")
    assert said[-1] == "Yes."
    assert await user.answer("Order #K1 is cancelled.") == Said("Bye.", done=True)


async def test_a_wrong_order_is_not_agreed_to() -> None:
    user = user_of()
    said = await talk(user, "Email?", "Order and reason?", "I will cancel #Z9. Shall I?", "I will cancel #K1. Shall I?")
    assert said[2:] == ["No, that is wrong. It is order #K1.", "Yes."]


async def test_the_mind_is_changed_once_when_asked_to_confirm_and_the_new_word_stands() -> None:
    user = user_of(Request("I want to cancel an order.", (ORDER, CHANGED)))
    confirm = "I will cancel #K1. Is that right?"
    said = await talk(user, "Email?", "Order and reason?", confirm, confirm, "What was the reason?")
    assert said[1:] == [
        "It is order #K1. I don't need it anymore.",
        "Sorry, it was a mistake.",
        "Yes.",
        "Sorry, it was a mistake.",
    ]


async def test_the_next_wish_comes_when_the_one_before_is_through() -> None:
    user = user_of(CANCEL, Request("One more thing.", (Fact("order", ("order",), "It is order #K2."),)))
    said = await talk(
        user, "Email?", "Order and reason?", "Proceed?", "Done. Anything else?", "Which order?", "Shall I?"
    )
    assert said[3:] == ["One more thing.", "It is order #K2.", "Yes."]
    assert (await user.answer("All is done.")).done


async def test_an_agent_that_refuses_too_early_hears_the_rest_once() -> None:
    user = user_of()
    said = [await user.answer("I can't do that.") for _ in range(2)]
    assert "#K1" in said[0].text
    assert [one.done for one in said] == [False, True]


async def test_a_user_whom_nothing_moves_leaves() -> None:
    user = user_of()
    said = [await user.answer("") for _ in range(PATIENCE)]
    assert [one.done for one in said] == [False] * (PATIENCE - 1) + [True]


@pytest.mark.parametrize(
    ("message", "waits"),
    [
        ("I will cancel it. Do you confirm?", True),
        ("Please provide your zip code.", True),
        ("It is cancelled. Is there anything else?", False),
        ("It is cancelled.", False),
    ],
)
def test_a_message_waits_for_an_answer_or_not(message: str, waits: bool) -> None:
    assert awaits_answer(message) == waits


@pytest.mark.parametrize(
    ("user", "complaint"),
    [
        ({}, "says nothing of a user"),
        ({"goal": 3}, r"user\.goal: .*got 3"),
        ({"requests": []}, r"user\.goal: .*required"),
    ],
)
def test_a_task_without_a_readable_user_is_the_simulators_fault(user: dict[str, Any], complaint: str) -> None:
    task = Task(id="t", server="s", split="train", kind="k", user_message="m", user=user)
    with pytest.raises(SimulatorError, match=complaint):
        scenario_of(task)


def retail_tasks(split: str, count: int = 60) -> list[Task]:
    return [task_from_dict(raw) for raw in generate_tasks(split, 5, 0, count)]


async def interview(task: Task) -> tuple[str, bool]:
    """What a thorough agent hears, and whether the customer leaves in the end."""
    user = ScriptedUser(scenario_of(task))
    heard, said = await user.open(), Said("")
    questions = (
        "Could you tell me your email, or your name and zip?",
        "Which order is it?",
        "What is the reason, which item or which variant instead, which address, which payment method?",
        "I am going to do that. Do you confirm?",
        "Once more: do you confirm?",
    )
    for _ in scenario_of(task).requests:
        for question in questions:
            heard += "\n" + (await user.answer(question)).text
        said = await user.answer("It is done.")
        heard += "\n" + said.text
    return heard, said.done


@pytest.mark.parametrize("split", SPLITS)
async def test_a_thorough_agent_hears_all_that_the_right_writes_need(split: str) -> None:
    for task in retail_tasks(split):
        heard, left = await interview(task)
        assert left, task.id
        for name, arguments in ((a["name"], a["arguments"]) for a in task.expected["actions"]):
            if name in TOOLBOX.writes:
                assert arguments["order_id"] in heard
                parts = [arguments[part] for part in ("address1", "city", "zip") if part in arguments]
                assert all(part in heard for part in parts), task.id
            if name == "find_user_id_by_email":
                assert arguments["email"] in heard.lower()


@pytest.mark.parametrize("split", SPLITS)
def test_the_opening_of_a_dialog_gives_nothing_away_and_the_agent_is_told_to_ask(split: str) -> None:
    for task in retail_tasks(split):
        scenario = scenario_of(task)
        about = dialog_task(task, scenario, scenario.opening or "")
        assert not re.search(r"#[A-Z]\d|@|\d{3}", about.user_message), task.id
        assert about.system_prompt.startswith(task.system_prompt)
        assert scenario.rules in about.system_prompt
        assert "{" not in task.user["goal"]


async def test_a_changed_mind_ends_at_the_order_that_is_expected() -> None:
    changing = [task for task in retail_tasks("train", 120) if "'then'" in str(task.user)]
    assert len(changing) > 5
    for task in changing:
        heard, _ = await interview(task)
        fact = next(fact for request in scenario_of(task).requests for fact in request.facts if fact.then)
        assert fact.then is not None
        assert heard.index(fact.say) < heard.index(fact.then)
        assert fact.say not in task.user_message
        assert not task.is_refusal


async def test_an_airline_user_who_changes_its_mind_asks_for_what_is_expected_in_the_end() -> None:
    tasks = [task_from_dict(raw) for raw in generate_airline_tasks("train", 5, 0, 150, kinds=("bags", "cabin"))]
    changing = [task for task in tasks if any(request.facts for request in scenario_of(task).requests)]
    assert 20 < len(changing) < 60
    for task in changing:
        user = ScriptedUser(scenario_of(task))
        (wish,) = scenario_of(task).requests[-1].facts
        heard = await talk(user, "Who are you?", *["It is done. Anything else?"] * (task.difficulty == 3), "Shall I?")
        assert heard[-1] == wish.then
        assert (await user.answer("Shall I?")).text == scenario_of(task).consent
        assert wish.say not in task.user_message
        assert wish.say in scenario_of(task).goal


def test_splits_share_no_line_of_dialog_and_train_knows_every_word() -> None:
    lines = {split: [line for found in dialog_phrases()[split].values() for line in found] for split in SPLITS}
    every = [line for found in lines.values() for line in set(found)]
    assert len(every) == len(set(every))
    plain = {split: re.sub(r"\{\w+\}", " ", " ".join(lines[split])).lower() for split in SPLITS}
    words = {split: set(re.findall(r"[a-z']+", text)) for split, text in plain.items()}
    assert not (words["validation"] | words["held_out"]) - words["train"]
