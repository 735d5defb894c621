"""Blends of checks and a judge, and how agreement between the two is measured, by hand-made numbers."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence

import pytest

from harness.errors import JudgeError
from harness.scoring.agreement import (
    JudgedGroup,
    agreement_table,
    kendall_tau,
    pairwise_accuracy,
    pooled_auc,
    position_bias,
    self_consistency,
    self_disagreement,
    tau_b,
)
from harness.scoring.blend import BLENDS
from harness.scoring.rubric import load_rubric, shipped_rubrics
from tests.scripted_judge import a_trajectory
from traces.trajectory import Score, Trajectory


def with_check(number: int, check: float) -> Trajectory:
    score = Score(value=check, name="checks", components={"passed": check})
    return dataclasses.replace(a_trajectory(number, f"words {number}"), scores=[score])


class Judged:
    """Gives the nth rollout a score of n tenths and remembers whom it saw."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, trajectories: Sequence[Trajectory]) -> Mapping[str, Score]:
        self.seen = [trajectory.rollout_id for trajectory in trajectories]
        return {
            one: Score(value=int(one[1:]) / 10, name="ruler", explanation="why", scorer_version="v")
            for one in self.seen
        }


async def test_gate_lets_the_judge_rank_only_what_passed_the_check() -> None:
    judge = Judged()
    group = [with_check(1, 1.0), with_check(2, 0.0), with_check(9, 1.0)]
    scores = await BLENDS["gate"](group, judge, 0.5)
    assert judge.seen == ["r1", "r9"]
    assert {one: added[-1].value for one, added in scores.items()} == pytest.approx({"r1": 0.55, "r2": 0.0, "r9": 0.95})
    assert scores["r9"][-1].components == {"checks": 1.0, "ruler": 0.9}
    assert [score.name for score in scores["r9"]] == ["ruler", "gate"]
    assert [score.name for score in scores["r2"]] == ["gate"]


async def test_gate_asks_nobody_when_there_is_nobody_to_rank() -> None:
    judge = Judged()
    scores = await BLENDS["gate"]([with_check(1, 1.0), with_check(2, 0.0)], judge, 0.5)
    assert judge.seen == []
    assert [scores[one][-1].value for one in ("r1", "r2")] == [1.0, 0.0]


async def test_weighted_adds_both_by_their_shares_and_keeps_the_parts() -> None:
    scores = await BLENDS["weighted"]([with_check(4, 1.0), with_check(8, 0.0)], Judged(), 0.25)
    assert scores["r4"][-1].value == pytest.approx(0.25 + 0.75 * 0.4)
    assert scores["r8"][-1].value == pytest.approx(0.75 * 0.8)
    assert scores["r8"][-1].components == {"checks": 0.0, "ruler": 0.8}


async def test_judge_only_leaves_the_judges_score_last() -> None:
    scores = await BLENDS["ruler"]([with_check(4, 1.0)], Judged(), 0.5)
    assert [(score.name, score.value, score.explanation) for score in scores["r4"]] == [("ruler", 0.4, "why")]


@pytest.mark.parametrize("kind", ["gate", "weighted"])
async def test_a_blend_without_a_check_is_an_error_and_not_a_zero(kind: str) -> None:
    bare = dataclasses.replace(a_trajectory(1, "w"), scores=[])
    with pytest.raises(JudgeError, match="'r1'"):
        await BLENDS[kind]([bare, bare], Judged(), 0.5)


def group_of(checks: Sequence[float], *votes: Sequence[float], places: Sequence[Sequence[float]] = ()) -> JudgedGroup:
    filled = places or [[0.0] * len(checks) for _ in votes]
    return JudgedGroup("g", tuple(checks), tuple(map(tuple, votes)), tuple(map(tuple, filled)))


def test_pairwise_accuracy_and_auc_agree_with_counting_by_hand() -> None:
    # passed .9 and .4, failed .4 and .1: pairs won 1, 1, .5, 1 → 3.5 of 4
    one = group_of([1, 1, 0, 0], [0.9, 0.4, 0.4, 0.1])
    assert pairwise_accuracy([one]) == pooled_auc([one]) == 3.5 / 4
    # A second group on another scale: right within, wrong across.
    other = group_of([1, 0], [0.05, 0.01])
    assert pairwise_accuracy([one, other]) == 4.5 / 5
    assert pooled_auc([one, other]) == pytest.approx((3 + 2.5 + 1) / 9)


def test_auc_of_random_numbers_equals_counting_every_pair() -> None:
    rng = random.Random(3)
    groups = [
        group_of([rng.randint(0, 1) for _ in range(6)], [rng.randint(0, 5) / 5 for _ in range(6)]) for _ in range(9)
    ]
    rows = [row for group in groups for row in zip(group.checks_G, group.means_G, strict=True)]
    marks = [
        1.0 if a > b else 0.5 if a == b else 0.0 for check_a, a in rows if check_a for check_b, b in rows if not check_b
    ]
    assert pooled_auc(groups) == pytest.approx(sum(marks) / len(marks))


def test_kendall_tau_corrects_for_ties_and_leaves_out_what_says_nothing() -> None:
    assert tau_b([1, 2, 3, 4], [1, 2, 3, 4]) == 1.0
    assert tau_b([1, 2, 3, 4], [4, 3, 2, 1]) == -1.0
    # Kendall 1970, worked by hand: concordant 4, discordant 1, one tie on each side in a different pair: 3/sqrt(5*5)
    assert tau_b([1, 1, 2, 3], [1, 2, 2, 3]) == pytest.approx(4 / 5)
    assert math.isnan(tau_b([1, 1], [0.2, 0.4]))
    assert kendall_tau([group_of([1, 1], [0.2, 0.4]), group_of([1, 0], [0.9, 0.1])]) == 1.0


def test_position_bias_is_found_and_not_invented() -> None:
    rng = random.Random(0)
    biased: list[JudgedGroup] = []
    fair: list[JudgedGroup] = []
    for _ in range(30):
        worths = [rng.random() for _ in range(4)]
        places = [rng.sample([0.0, 1 / 3, 2 / 3, 1.0], 4) for _ in range(3)]
        checks = [float(worth > 0.5) for worth in worths]
        biased.append(
            group_of(
                checks, *[[w - 0.2 * p for w, p in zip(worths, place, strict=True)] for place in places], places=places
            )
        )
        fair.append(group_of(checks, *[worths] * 3, places=places))
    assert position_bias(biased) == pytest.approx(0.2)
    assert position_bias(fair) == pytest.approx(0.0, abs=1e-12)
    assert math.isnan(position_bias([group_of([1, 0], [0.5, 0.4])])), "one vote tells nothing"


def test_self_consistency_counts_pairs_that_change_places() -> None:
    group = group_of([1, 0, 0], [0.9, 0.5, 0.1], [0.9, 0.1, 0.5])
    assert self_consistency([group]) == pytest.approx(2 / 3)
    assert self_disagreement([group]) == pytest.approx((0 + 0.2 + 0.2) / 3)


def test_agreement_intervals_are_over_groups_and_shrink_with_their_number() -> None:
    rng = random.Random(1)
    groups = [
        group_of([1, 0, 1, 0], [rng.gauss(0.6, 0.3), rng.random(), rng.random(), rng.random()]) for _ in range(120)
    ]
    few, many = agreement_table(groups[:15], draws=300), agreement_table(groups, draws=300)
    narrow, wide = many["pairwise accuracy"], few["pairwise accuracy"]
    assert narrow.count == 120
    assert narrow.high - narrow.low < 0.6 * (wide.high - wide.low)
    assert narrow.low < narrow.mean < narrow.high


def test_every_shipped_rubric_loads_and_has_a_version_of_its_own() -> None:
    versions = {load_rubric(name).version for name in shipped_rubrics()}
    assert len(versions) == len(shipped_rubrics()) >= 3
    assert load_rubric(None) == load_rubric("default")


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("absent.md", None, "no such file"),
        ("empty.md", "  \n", "neither text nor criteria"),
        ("broken.toml", "name = ", "no TOML"),
        ("weight.toml", '[[criteria]]\nname = "a"\ntext = "t"\nweight = 0', "weight 0"),
        ("words.toml", '[[criteria]]\nname = "two words"\ntext = "t"', "two words"),
        ("twice.toml", '[[criteria]]\nname = "a"\ntext = "t"\n' * 2, "'a', 'a'"),
    ],
)
def test_a_rubric_that_can_not_be_used_says_why(tmp_path, name: str, content: str | None, found: str) -> None:  # type: ignore[no-untyped-def]
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(JudgeError, match=found):
        load_rubric(str(tmp_path / name))


def test_a_rubric_is_a_name_or_a_text_and_a_misspelt_name_is_neither() -> None:
    assert load_rubric("Prefer the agent that asks first.").name == "text"
    with pytest.raises(JudgeError, match="retail"):
        load_rubric("retial")


def test_a_rubric_file_with_criteria_is_read_whole(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "mine.toml"
    path.write_text('text = "Look."\n[[criteria]]\nname = "safe"\ntext = "No harm."\nweight = 3\n', encoding="utf-8")
    rubric = load_rubric(path)
    assert (rubric.name, rubric.text, rubric.criteria[0].weight) == ("mine", "Look.", 3.0)
