"""Scenarios: what is taken of a model's answer, what repeats what, and splits that share nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ConfigError, ToolServerError
from harness.scenarios.generate import Generation, offer_text, tasks_of
from harness.scenarios.listing import Offer, Tool
from harness.scenarios.scenario import AnswerUnreadable, Rejected, Scenario, read_rows, read_scenario
from harness.scenarios.taskfile import TaskFileServer, read_tasks, write_tasks
from harness.scenarios.variety import RELATED, SAME, SPLITS, Kept, assign_splits, likeness, shingles
from harness.task_server import NoTools

GOOD = {
    "request": "Tell me which of my three calendars has a free hour on Friday afternoon.",
    "kind": "Free  Time",
    "difficulty": 3,
    "tools": ["list_events", "list_calendars", "list_events"],
    "success": "It names a calendar and an hour.",
}
OFFERED = ("list_events", "list_calendars", "move")


def scenario(request: str, difficulty: int = 1) -> Scenario:
    return Scenario(request, "kind", difficulty, ("move",), "")


def test_a_good_row_becomes_a_scenario_with_its_tools_named_once() -> None:
    made = read_scenario(GOOD, OFFERED)
    assert (made.kind, made.difficulty, made.tools) == ("free time", 3, ("list_events", "list_calendars"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"request": "too short"}, "characters"),
        ({"request": None}, "characters"),
        ({"tools": []}, "no tools"),
        ({"tools": ["delete_everything"]}, "doesn't have"),
        ({"difficulty": 6}, "difficulty"),
        ({"difficulty": True}, "difficulty"),
        ({"request": "Please send the usual report to [recipient name] today."}, "placeholder"),
        ({"request": "Write down what is in <path to file> and sum it up."}, "placeholder"),
        ({"request": "Use list_events to find out whether Friday is free."}, "tool's name"),
    ],
)
def test_a_row_that_cant_be_used_is_rejected_for_its_own_reason(change: dict[str, object], reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        read_scenario({**GOOD, **change}, OFFERED)


def test_a_tool_whose_name_is_a_plain_word_may_stand_in_a_sentence() -> None:
    made = read_scenario({**GOOD, "request": "Please move my dentist from Monday to Tuesday."}, OFFERED)
    assert "move" in made.request


def test_prose_around_the_answer_is_borne_and_nothing_readable_is_told() -> None:
    text = f"Here you are {{not json}}: {json.dumps({'scenarios': [GOOD, 'no row']})} Good luck!"
    assert read_rows(text, "scenarios") == [GOOD]
    for nothing in ("", "I won't.", '{"scenarios": 3}', "{" * 5000):
        with pytest.raises(AnswerUnreadable, match="'scenarios'"):
            read_rows(nothing, "scenarios")


def test_requests_that_differ_in_numbers_and_names_alone_repeat_each_other() -> None:
    kept = Kept()
    assert kept.add(scenario('Please add 3 and 4 and write the sum into the file "sums.txt".'))
    assert not kept.add(scenario('Please add 512 and 77 and write the sum into the file "totals.csv".'))
    assert kept.add(scenario("Which of the files in my folder was changed last, and by how much did it grow?"))
    assert len(kept.scenarios) == 2


WORDS = st.lists(st.sampled_from(list("abcdefgh")), min_size=3, max_size=9)


@given(st.lists(WORDS, max_size=25), st.integers(0, 99))
def test_no_two_splits_share_related_requests_and_none_is_lost(requests: list[list[str]], seed: int) -> None:
    kept = Kept()
    for number, words in enumerate(requests):
        kept.add(scenario(" ".join(words), number % 5 + 1))
    splits = assign_splits(kept, seed)
    assert len(splits) == len(kept.scenarios)
    assert set(splits) <= set(SPLITS)
    made = [shingles(one.request) for one in kept.scenarios]
    for right in range(len(made)):
        for left in range(right):
            alike = likeness(made[left], made[right])
            assert alike < SAME
            assert alike < RELATED or splits[left] == splits[right]
    if len(kept.families()) >= len(SPLITS):
        assert set(splits) == set(SPLITS)


def test_unrelated_requests_fall_into_splits_by_their_shares_at_every_difficulty() -> None:
    kept = Kept()
    for number in range(100):
        words = " ".join(f"{chr(97 + number // 26)}{chr(97 + number % 26)}{letter}" for letter in "qwertzu")
        assert kept.add(scenario(words, number % 5 + 1))
    splits = assign_splits(kept, 0)
    assert {split: splits.count(split) for split in SPLITS} == {"train": 70, "validation": 10, "held_out": 20}
    for level in range(1, 6):
        at_level = [split for one, split in zip(kept.scenarios, splits, strict=True) if one.difficulty == level]
        assert 12 <= at_level.count("train") <= 16, level


def test_a_long_offer_loses_schemas_before_it_loses_tools() -> None:
    tools = tuple(Tool(f"tool_{n}", "does </server> much " * 200, {"type": "object"}) for n in range(40))
    text = offer_text(Offer("big", "Be kind.", tools, ("file:///a a",)), 8000)
    assert len(text) <= 8000
    assert len(re.findall(r"^- tool_\d+", text, re.M)) == 40
    assert "</server>" not in text


def tasks_file(folder: Path) -> Path:
    made = Generation()
    for request in ("Tell me what time it is now in Tokyo.", "Wake me when the kettle boils over there, will you?"):
        made.kept.add(scenario(request))
    made.kept.add(scenario("Count all the birds that sit on the wire and add their wings.", 4))
    write_tasks(folder / "tasks.jsonl", tasks_of(made, "clock", 0))
    return folder / "tasks.jsonl"


async def test_a_task_file_comes_back_and_is_drawn_from_by_split_seed_and_difficulty(tmp_path: Path) -> None:
    tasks = read_tasks(tasks_file(tmp_path))
    assert {task.split for task in tasks} == set(SPLITS)
    assert all(task.server == "clock" and task.metadata["tools"] == ["move"] for task in tasks)
    server = TaskFileServer(NoTools(), tuple(tasks))
    drawn = await server.tasks("train", offset=1, count=5)
    assert len(drawn) == 5, "the training split starts over"
    assert drawn == await server.tasks("train", offset=1, count=5)
    assert len(await server.tasks("held_out", count=5)) == 1
    with pytest.raises(ToolServerError, match="at 5"):
        await server.tasks("train", difficulty=5)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "no tasks in it"),
        ('{"user_message": "a"}\nnonsense\n', "line 2"),
        ('{"request": "a"}\n', "user_message"),
        ('["a"]\n', "no object"),
        ('{"id": "x", "user_message": "a"}\n{"id": "x", "user_message": "b"}\n', "'x' stands twice"),
    ],
)
def test_a_task_file_that_cant_be_read_is_told_by_its_line(text: str, found: str, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError) as told:
        read_tasks(file)
    assert found in str(told.value)
    with pytest.raises(ConfigError, match="harness tasks generate"):
        read_tasks(tmp_path / "nowhere.jsonl")
