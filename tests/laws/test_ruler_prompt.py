"""The judge's prompt: nothing twice, nothing lost unsaid, within budget, the same for the same group."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.scoring.heats import Question, RulerOptions, plan_vote
from harness.scoring.rubric import Criterion, Rubric, load_rubric
from harness.scoring.ruler_prompt import Entry, OverBudget, build_prompt, clean, estimate_tokens, keep_ends
from harness.scoring.transcript import Event, Transcript, canonical_json, transcript_of
from tests.scripted_judge import a_group, a_trajectory, a_turn
from traces.trajectory import Ending, ToolCall

RUBRIC = load_rubric(None)
BIG = 1_000_000


def entries_of(*transcripts: Transcript) -> list[Entry]:
    return [Entry(f"k{number}", transcript) for number, transcript in enumerate(transcripts)]


def user_text(entries: list[Entry], max_tokens: int = BIG) -> str:
    return build_prompt(entries, RUBRIC, max_tokens).messages[1]["content"]


def test_a_transcript_tells_each_message_once_however_often_it_was_sent() -> None:
    events = transcript_of(a_trajectory(1, "done")).events
    assert [(event.role, event.text) for event in events] == [
        ("system", "Help."),
        ("user", "Cancel order 7."),
        ("call", 'get_order {"order_id":"7"}'),
        ("result", '{"status": "pending"}'),
        ("assistant", "done"),
        ("ended", "answered"),
    ]


def test_results_that_no_later_request_repeats_are_taken_from_the_tool_records() -> None:
    trajectory = a_trajectory(1, "done", ending=Ending.TURN_LIMIT)
    cut = dataclasses.replace(trajectory, turns=trajectory.turns[:1], answer=None)
    assert [event.role for event in transcript_of(cut).events] == ["system", "user", "call", "result", "ended"]


def test_an_error_of_a_tool_is_shown_as_an_error() -> None:
    trajectory = a_trajectory(1, "done", result="no such order")
    failed = dataclasses.replace(trajectory, tool_calls=[dataclasses.replace(trajectory.tool_calls[0], is_error=True)])
    assert Event("error", "no such order") in transcript_of(failed).events


def test_a_sub_agent_and_an_edited_history_are_noted_and_not_told_twice() -> None:
    trajectory = a_trajectory(1, "done")
    aside = [{"role": "system", "content": "You summarise."}, {"role": "user", "content": "Sum up."}]
    said = {"role": "assistant", "content": "a summary"}
    turns = [trajectory.turns[0], a_turn(1, aside, said), trajectory.turns[1]]
    events = transcript_of(dataclasses.replace(trajectory, turns=turns)).events
    assert [event.role for event in events] == [
        *("system", "user", "call"),
        *("note", "system", "user", "assistant"),
        *("result", "assistant", "ended"),
    ]


def test_a_rollout_that_did_nothing_says_so() -> None:
    nothing = dataclasses.replace(a_trajectory(1, ""), turns=[], tool_calls=[], answer=None)
    assert transcript_of(nothing).events == (Event("ended", "answered; the agent did nothing"),)


def test_an_answer_that_differs_from_the_last_words_is_shown_too() -> None:
    trajectory = dataclasses.replace(a_trajectory(1, "words"), answer="the answer")
    assert Event("assistant", "(final answer) the answer") in transcript_of(trajectory).events


def test_the_shared_beginning_stands_once_and_repeated_texts_once() -> None:
    policy = "Never refund without a reason. " * 40
    receipt = json.dumps({"order": "7", "items": list(range(80))})
    transcripts = [
        transcript_of(a_trajectory(n, f"words {n}", system=policy, result=receipt if n else "short")) for n in range(4)
    ]
    text = user_text(entries_of(*transcripts))
    assert text.count(policy.strip()) == 1
    assert text.count(receipt) == 1
    assert text.count("see text X1") == 3
    assert text.count("get_order(order_id): Read an order.") == 1


def test_prompts_of_alike_groups_are_a_third_of_a_dump_of_all_messages() -> None:
    group = a_group([0.1 * n for n in range(8)], system="Policy. " * 400, result=json.dumps({"items": [1] * 200}))
    question = Question(
        {t.fingerprint: t for t in map(transcript_of, group.trajectories)}, RUBRIC, BIG, RulerOptions(twin_share=0)
    )
    (heat,) = plan_vote(question, 0)
    dump = json.dumps([[*t.turns[-1].input_messages, t.turns[-1].output_message] for t in group.trajectories])
    assert heat.prompt.estimated_tokens * 3 <= estimate_tokens(dump)


@pytest.mark.parametrize("budget", [20_000, 8_000, 4_000, 2_000])
def test_truncation_keeps_within_budget_and_both_ends_and_says_what_was_cut(budget: int) -> None:
    long = "HEAD " + "middle " * 4000 + " TAIL"
    transcripts = [transcript_of(a_trajectory(n, f"words {n}", result=f"{long}{n}")) for n in range(3)]
    prompt = build_prompt(entries_of(*transcripts), RUBRIC, budget)
    text = prompt.messages[1]["content"]
    assert prompt.estimated_tokens <= budget
    assert text.count("HEAD") == 3
    assert len(re.findall(r"TAIL\d", text)) == 3
    assert text.count("characters cut …]") == 3
    assert prompt.cut_characters > 3 * 10_000
    assert build_prompt(entries_of(*transcripts), RUBRIC, budget) == prompt, "deterministic"


def test_long_trajectories_lose_their_middle_and_keep_both_ends() -> None:
    events = [Event("system", "s"), *(Event("assistant", f"step {n} " + "x" * 200) for n in range(400))]
    other = [Event("system", "s"), Event("ended", "answered")]
    transcripts = Transcript((*events, Event("ended", "answered")), ()), Transcript(tuple(other), ())
    text = user_text(entries_of(*transcripts), max_tokens=6_000)
    assert "step 0 " in text
    assert "step 399" in text
    assert re.search(r"\[… \d+ entries cut …\]", text)


def test_what_can_not_be_made_to_fit_is_refused() -> None:
    transcripts = [transcript_of(a_trajectory(n, "w" * 5000)) for n in range(3)]
    with pytest.raises(OverBudget, match="the budget is 300"):
        build_prompt(entries_of(*transcripts), RUBRIC, 300)


@given(st.text())
def test_cleaned_text_opens_no_tag_and_begins_no_entry(text: str) -> None:
    cleaned = clean(text)
    assert "<" not in cleaned
    assert not any(line.startswith("[") for line in cleaned.split("\n")[1:])
    assert len(f"x{cleaned}x".splitlines()) == cleaned.count("\n") + 1, "no other line break survives"


@given(st.text(max_size=300), st.integers(1, 200))
def test_keep_ends_keeps_exactly_the_limit_of_characters(text: str, limit: int) -> None:
    kept = keep_ends(text, limit)
    if len(text) <= limit:
        assert kept == text
    else:
        note = f" [… {len(text) - limit} characters cut …] "
        head, _, tail = kept.partition(note)
        assert len(head) + len(tail) == limit
        assert text.startswith(head)
        assert text.endswith(tail)


def test_tool_arguments_are_compared_whatever_their_spacing_and_order() -> None:
    assert canonical_json('{"b": 1,  "a": "ü"}') == canonical_json('{"a":"ü","b":1}') == '{"a":"ü","b":1}'
    assert canonical_json("not json") == "not json"


def test_plans_depend_on_content_and_seed_and_not_on_the_order_given() -> None:
    transcripts = {t.fingerprint: t for t in (transcript_of(a_trajectory(n, f"w{n}")) for n in range(6))}
    backwards = dict(reversed(transcripts.items()))

    def plan(given: dict[str, Transcript], seed: int, vote: int = 0) -> list[str]:
        question = Question(given, RUBRIC, BIG, RulerOptions(seed=seed))
        return [heat.prompt.messages[1]["content"] for heat in plan_vote(question, vote)]

    assert plan(transcripts, 1) == plan(backwards, 1)
    assert plan(transcripts, 1) != plan(transcripts, 2)
    assert plan(transcripts, 1, 0) != plan(transcripts, 1, 1)


@pytest.mark.parametrize("size", [9, 16, 23, 64])
def test_heats_of_a_large_group_share_anchors_and_hold_everybody(size: int) -> None:
    transcripts = {t.fingerprint: t for t in (transcript_of(a_trajectory(n, f"w{n}")) for n in range(size))}
    heats = plan_vote(Question(transcripts, RUBRIC, BIG, RulerOptions(twin_share=0)), 0)
    assert len(heats) > 1
    assert {name for heat in heats for name in heat.names.values()} == set(transcripts)
    assert len({heat.anchors for heat in heats}) == 1
    assert all(set(heat.anchors) <= set(heat.names.values()) for heat in heats)
    assert all(len(heat.names) <= 8 for heat in heats)


def test_a_tight_budget_makes_smaller_heats_and_an_impossible_one_none() -> None:
    transcripts = {t.fingerprint: t for t in (transcript_of(a_trajectory(n, f"w{n} " * 1000)) for n in range(8))}
    tight = Question(transcripts, RUBRIC, 2_800, RulerOptions(twin_share=0))
    heats = plan_vote(tight, 0)
    assert len(heats) > 1
    assert all(heat.prompt.estimated_tokens <= 2_800 for heat in heats)
    assert plan_vote(dataclasses.replace(tight, max_prompt_tokens=200), 0) == []


def test_a_twin_is_one_transcript_under_two_ids() -> None:
    transcripts = {t.fingerprint: t for t in (transcript_of(a_trajectory(n, f"w{n}")) for n in range(4))}
    (heat,) = plan_vote(Question(transcripts, RUBRIC, BIG, RulerOptions(twin_share=1.0)), 0)
    assert heat.twin is not None
    first, second = heat.twin
    assert first != second
    assert heat.names[first] == heat.names[second]
    assert len(heat.names) == 5


def test_criteria_are_named_in_the_instructions_and_the_answer() -> None:
    rubric = Rubric("two", "Look well.", (Criterion("safe", "No harm.", 3.0), Criterion("short", "Brief.")))
    system = build_prompt(entries_of(transcript_of(a_trajectory(1, "w"))), rubric, BIG).messages[0]["content"]
    assert "- safe: No harm." in system
    assert '"criteria": {"safe": number, "short": number}' in system
    assert rubric.weighted({"safe": 1.0, "short": 0.0}) == 0.75


def test_calls_of_one_turn_keep_their_order() -> None:
    trajectory = a_trajectory(1, "done")
    calls = [
        ToolCall(
            call_id=f"c{n}", name="f", arguments="{}", result=f"r{n}", is_error=False, span_id="s", turn_index=0,
            start_ns=n, end_ns=n,
        )
        for n in range(3)
    ]  # fmt: skip
    cut = dataclasses.replace(trajectory, turns=trajectory.turns[:1], tool_calls=calls, answer=None)
    assert [event.text for event in transcript_of(cut).events if event.role == "result"] == ["r0", "r1", "r2"]
