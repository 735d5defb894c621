"""Generated tasks of every domain: solved as stated, not by doing nothing or carelessly; splits share no phrase."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pytest

from mcp_servers.airline import tasks as airline
from mcp_servers.airline.grade import grade as grade_airline
from mcp_servers.airline.state import open_airline
from mcp_servers.airline.tools import TOOLBOX as AIRLINE_TOOLS
from mcp_servers.drafts import SPLITS, Action
from mcp_servers.generator import Task, TaskGenerator, expert_actions
from mcp_servers.retail import tasks as retail
from mcp_servers.retail.grade import grade as grade_retail
from mcp_servers.retail.state import open_retail
from mcp_servers.retail.tools import TOOLBOX as RETAIL_TOOLS
from mcp_servers.retail.wording import phrases as retail_phrases
from mcp_servers.state import Base
from mcp_servers.toolbox import Toolbox


@dataclass(frozen=True)
class Domain:
    generator: TaskGenerator[Any]
    toolbox: Toolbox
    opened: Callable[[Base], Any]
    grade: Callable[..., Any]
    answer: Callable[[Task], str]
    phrases: Callable[[], Mapping[str, Any]]
    changed: Callable[[str, dict[str, Any]], Iterator[dict[str, Any]]]
    """A right write's arguments → near misses of them."""
    one_more: Callable[[Base, list[Action]], list[Action]]
    """A write that nobody asked for."""
    count: int

    def passes(self, base: Base, task: Task, actions: list[Action], answer: str) -> bool:
        world = self.opened(base)
        for name, arguments in actions:
            self.toolbox.call(world, name, arguments)
        return self.grade(world.state, task, answer).passed

    def near_misses(self, base: Base, actions: list[Action]) -> Iterator[list[Action]]:
        """The right actions with one write left out, done with another of its values, or followed by one more."""
        for n, (name, arguments) in enumerate(actions):
            if name not in self.toolbox.writes:
                continue
            yield actions[:n] + actions[n + 1 :]
            for changed in self.changed(name, arguments):
                yield [*actions[:n], (name, changed), *actions[n + 1 :]]
        yield [*actions, *self.one_more(base, actions)]


def retail_changed(name: str, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "reason" in arguments:
        other = {"no longer needed": "ordered by mistake", "ordered by mistake": "no longer needed"}
        yield {**arguments, "reason": other[arguments["reason"]]}
    if "zip" in arguments:
        yield {**arguments, "zip": "000"}
        yield {**arguments, "address2": arguments["address2"] + " x"}
    if len(arguments.get("item_ids", [])) == 2:
        lists = {name: arguments[name][:1] for name in ("item_ids", "new_item_ids") if name in arguments}
        yield {**arguments, **lists}


def retail_one_more(base: Base, actions: list[Action]) -> list[Action]:
    named = {arguments.get("order_id") for _, arguments in actions}
    pending = (id for id in base.ids("orders") if (base.get("orders", id) or {})["status"] == "pending")
    other = next(id for id in pending if id not in named)
    return [("cancel_pending_order", {"order_id": other, "reason": "no longer needed"})]


def airline_changed(name: str, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if name == "send_certificate":
        yield {**arguments, "amount": arguments["amount"] + 50}
    if name == "update_reservation_baggages":
        yield {**arguments, "total_baggages": arguments["total_baggages"] + 1}
    if "passengers" in arguments:
        *others, last = arguments["passengers"]
        yield {**arguments, "passengers": [*others, {**last, "dob": "1901-01-01"}]}
    if name == "book_reservation":
        total, paid = arguments["total_baggages"] + 1, arguments["nonfree_baggages"]
        yield {**arguments, "total_baggages": total, "nonfree_baggages": paid}


def airline_one_more(base: Base, actions: list[Action]) -> list[Action]:
    other = next(id for id in base.ids("reservations") if all(a.get("reservation_id") != id for _, a in actions))
    return [("cancel_reservation", {"reservation_id": other})]


RETAIL = Domain(
    retail.GENERATOR,
    RETAIL_TOOLS,
    open_retail,
    grade_retail,
    lambda _: "",
    retail_phrases,
    retail_changed,
    retail_one_more,
    250,
)
AIRLINE = Domain(
    airline.GENERATOR,
    AIRLINE_TOOLS,
    open_airline,
    grade_airline,
    airline.expert_answer,
    airline.phrases,
    airline_changed,
    airline_one_more,
    120,
)


@pytest.fixture(scope="module", params=[RETAIL, AIRLINE], ids=["retail", "airline"])
def domain(request: pytest.FixtureRequest) -> Domain:
    return request.param


@pytest.fixture(scope="module")
def base(domain: Domain) -> Base:
    return domain.generator.default_base()


@pytest.fixture(scope="module", params=SPLITS)
def tasks(request: pytest.FixtureRequest, domain: Domain, base: Base) -> list[Task]:
    return domain.generator.tasks(request.param, 7, 0, domain.count, base=base)


def test_the_right_actions_of_every_task_pass_and_fail_no_call(domain: Domain, base: Base, tasks: list[Task]) -> None:
    for task in tasks:
        world = domain.opened(base)
        failed = [call for call in expert_actions(task) if domain.toolbox.call(world, *call).is_error]
        # Who isn't there is found out by a look-up that fails.
        assert not failed or task["metadata"]["refusal"] == "unknown_user", task["id"]
        found = domain.grade(world.state, task, domain.answer(task))
        assert found.passed, f"{task['id']}: {found.reason}"


def test_doing_nothing_passes_only_tasks_in_which_nothing_is_to_be_done(
    domain: Domain, base: Base, tasks: list[Task]
) -> None:
    for task in tasks:
        expected = task["expected"]
        idle = domain.passes(base, task, [], "")
        assert idle == (expected["changes"] == {} and not expected["communicate"]), task["id"]
        assert not idle or task["is_refusal"], task["id"]
        assert not task["is_refusal"] or idle or task["difficulty"] == 3, task["id"]


def test_what_must_be_said_must_be_said(domain: Domain, base: Base, tasks: list[Task]) -> None:
    asked = [task for task in tasks if task["expected"]["communicate"]]
    assert domain is not AIRLINE or len(asked) > domain.count * 0.1
    for task in asked:
        assert not domain.passes(base, task, expert_actions(task), "It is done."), task["id"]


def test_near_misses_of_every_task_fail(domain: Domain, base: Base, tasks: list[Task]) -> None:
    tried = 0
    for task in tasks:
        for actions in domain.near_misses(base, expert_actions(task)):
            tried += 1
            assert not domain.passes(base, task, actions, domain.answer(task)), f"{task['id']}: {actions}"
    assert tried > 2 * domain.count


def test_careless_actions_never_pass_and_exist_for_nearly_every_task(
    domain: Domain, base: Base, tasks: list[Task]
) -> None:
    without = 0
    for task in tasks:
        actions = domain.generator.sloppy_actions(task, base)
        without += actions is None
        assert actions is None or not domain.passes(base, task, actions, domain.answer(task)), task["id"]
    assert without <= domain.count * 0.08


def lines_of(table: Mapping[str, Any]) -> Iterator[str]:
    for part in table.values():
        yield from lines_of(cast("dict[str, Any]", part)) if isinstance(part, dict) else part


def test_splits_share_no_phrase_and_every_phrase_has_a_split(domain: Domain, tasks: list[Task]) -> None:
    tables = {split: set(lines_of(domain.phrases()[split])) - {""} for split in SPLITS}
    plain = {split: {re.sub(r"\W+", " ", line).strip().lower() for line in lines} for split, lines in tables.items()}
    for split in SPLITS:
        others = set[str]().union(*(plain[name] for name in SPLITS if name != split))
        assert not plain[split] & others, f"{split} shares {plain[split] & others}"
    assert len({tuple(sorted(table)) for table in domain.phrases().values()}) == 1
    for task in tasks:
        assert set(task["metadata"]["phrases"]) - {""} <= tables[task["split"]]


def words_of(line: str) -> set[str]:
    return set(re.findall(r"[a-z'-]+", re.sub(r"\{\w+\}", " ", line).lower()))


def test_every_word_of_the_other_retail_splits_is_a_word_of_train() -> None:
    known = set[str]().union(*map(words_of, lines_of(retail_phrases()["train"])))
    for split in ("validation", "held_out"):
        for line in lines_of(retail_phrases()[split]):
            assert words_of(line) <= known, f"{split}: {line!r} has {words_of(line) - known}"


def test_all_kinds_difficulties_and_refusals_occur_and_can_be_asked_for(domain: Domain, base: Base) -> None:
    generate, kinds = domain.generator.tasks, domain.generator.kinds
    drawn = generate("train", 0, 0, 400, base=base)
    assert set(Counter(task["kind"] for task in drawn)) == set(kinds)
    assert set(Counter(task["difficulty"] for task in drawn)) == {1, 2, 3}
    for kind in kinds:
        for difficulty in (1, 2, 3):
            only = generate("held_out", 0, 0, 3, base=base, kinds=[kind], difficulty=difficulty)
            assert {(task["kind"], task["difficulty"]) for task in only} == {(kind, difficulty)}
    refused = generate("train", 1, 0, 150, base=base, kinds=["refuse"], difficulty=1)
    assert {task["metadata"]["refusal"] for task in refused} == set(domain.generator.refusals)


def test_the_same_arguments_give_the_same_tasks_wherever_the_count_starts(domain: Domain, base: Base) -> None:
    generate = domain.generator.tasks
    together = generate("validation", 3, 0, 20, base=base)
    assert together[12:] == generate("validation", 3, 12, 8, base=base)
    assert together != generate("validation", 4, 0, 20, base=base)
    assert len({task["user_message"] for task in together}) == 20


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"split": "test"}, "unknown split 'test'; there are train, validation, held_out"),
        ({"split": "train", "kinds": ["retrun"]}, r"unknown kinds \['retrun'\]"),
        ({"split": "train", "difficulty": 9}, "unknown difficulty 9; there are 1, 2, 3"),
        ({"split": "train", "base": Base({})}, "says nothing of splits"),
    ],
)
def test_what_can_not_be_drawn_is_refused_with_what_there_is(
    domain: Domain, arguments: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        domain.generator.tasks(**arguments)
