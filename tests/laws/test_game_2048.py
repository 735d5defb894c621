"""2048: rules as everybody knows them, tasks that can be won but not by accident, and grades of score and win."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_servers.errors import ToolFault
from mcp_servers.game_2048.server import game_2048_world
from mcp_servers.game_2048.state import DIRECTIONS, Rows, new_game, played, possible_moves, shifted, status
from mcp_servers.game_2048.tasks import GOALS, SPLITS, expert_actions, generate_tasks, sloppy_actions
from mcp_servers.state import State
from mcp_servers.world import World

TILES = st.sampled_from([0, 0, 2, 2, 4, 8, 16])
BOARDS = st.lists(st.lists(TILES, min_size=4, max_size=4), min_size=4, max_size=4)


@pytest.fixture(scope="module")
def world() -> World:
    return game_2048_world()


def play(world: World, task: dict[str, Any], actions: list[tuple[str, dict[str, Any]]]) -> State:
    state = world.opening(task)
    for name, arguments in actions:
        assert not world.toolbox.call(world.view(state), name, arguments).is_error
    return state


@pytest.mark.parametrize(
    "line, after, points",
    [
        ([2, 2, 2, 0], [4, 2, 0, 0], 4),
        ([2, 2, 2, 2], [4, 4, 0, 0], 8),
        ([4, 2, 2, 0], [4, 4, 0, 0], 4),
        ([0, 2, 0, 2], [4, 0, 0, 0], 4),
        ([2, 4, 2, 4], [2, 4, 2, 4], 0),
    ],
)
def test_equal_neighbours_merge_once_nearest_to_the_front_first(line: list[int], after: list[int], points: int) -> None:
    rows: Rows = [line, [0] * 4, [0] * 4, [0] * 4]
    assert shifted(rows, "left") == ([after, [0] * 4, [0] * 4, [0] * 4], points)


@settings(max_examples=100)
@given(rows=BOARDS)
def test_the_four_directions_are_one_rule_turned_around(rows: Rows) -> None:
    turned = [list(column) for column in zip(*rows, strict=True)]
    mirrored = [row[::-1] for row in rows]
    left, points = shifted(rows, "left")
    assert shifted(mirrored, "right") == ([row[::-1] for row in left], points)
    up, _ = shifted(turned, "up")
    assert [list(column) for column in zip(*up, strict=True)] == left
    assert sum(map(sum, left)) == sum(map(sum, rows))


def test_a_move_adds_one_tile_and_a_move_that_changes_nothing_is_refused() -> None:
    game = {**new_game("s", {"goal_tile": 64}), "rows": [[2, 0, 0, 0]] + [[0] * 4 for _ in range(3)]}
    after = played(game, "right")
    assert sum(tile > 0 for row in after["rows"] for tile in row) == 2
    assert after["rows"][0][3] == 2
    assert after == played(game, "right")
    assert (game["moves"], after["moves"]) == (0, 1)
    with pytest.raises(ToolFault, match="Nothing moves left; possible: right, down"):
        played(game, "left")
    with pytest.raises(ToolFault, match="no direction 'sideways'"):
        played(game, "sideways")


def test_a_game_is_over_when_it_is_won_or_no_move_or_no_move_within_the_limit_is_left() -> None:
    game = new_game("s", {"goal_tile": 64}, move_limit=3)
    full = [[2, 4, 2, 4], [4, 2, 4, 2], [2, 4, 2, 4], [4, 2, 4, 2]]
    assert status(game) == "playing"
    assert status({**game, "rows": full}) == "lost"
    assert status({**game, "moves": 3}) == "lost"
    won = {**game, "moves": 3, "rows": [[64, 0, 0, 0], *game["rows"][1:]]}
    assert status(won) == "won"
    with pytest.raises(ToolFault, match="The game is over: won with 0 points after 3 moves"):
        played(won, "left")


@pytest.mark.parametrize("split", SPLITS)
def test_every_task_is_won_by_its_own_way_and_not_by_less_or_by_going_round_in_circles(
    world: World, split: str
) -> None:
    for task in generate_tasks(split, 3, 0, 24):
        way = expert_actions(task)
        grade = world.grade(play(world, task, way), task, "")
        assert grade.passed, grade.reason
        assert grade.components["progress"] == 1
        for losing in ([], way[:-1], sloppy_actions(task)):
            lost = world.grade(play(world, task, losing), task, "I won!")
            assert not lost.passed, lost.reason
            assert lost.components["win"] == 0
        assert str(task["metadata"]["game"]["move_limit"]) in task["user_message"]
        assert str(GOALS[task["kind"]][task["difficulty"]]) in task["user_message"]


def test_tasks_are_the_same_for_the_same_seed_and_splits_share_no_game_and_no_phrase() -> None:
    drawn = {split: generate_tasks(split, 0, 0, 12, difficulty=1) for split in SPLITS}
    assert drawn["train"] == generate_tasks("train", 0, 0, 12, difficulty=1)
    assert drawn["train"][5:6] == generate_tasks("train", 0, 5, 1, difficulty=1)
    games = [task["metadata"]["game"]["seed"] for tasks in drawn.values() for task in tasks]
    assert len(set(games)) == len(games)
    phrases = [{phrase for task in tasks for phrase in task["metadata"]["phrases"]} for tasks in drawn.values()]
    assert len(set.union(*phrases)) == sum(map(len, phrases))
    with pytest.raises(ValueError, match="unknown split 'test'"):
        generate_tasks("test")
    with pytest.raises(ValueError, match="unknown kinds"):
        generate_tasks("train", kinds=["cancel"])
    with pytest.raises(ValueError, match="unknown difficulty 9"):
        generate_tasks("train", difficulty=9)


def test_agents_see_no_seed_and_forks_meet_the_same_tiles(world: World) -> None:
    task = generate_tasks("train", 1, 0, 1, difficulty=2)[0]
    state = world.opening(task)
    seen = world.toolbox.call(world.view(state), "look", {})
    assert "seed" not in seen.text
    assert task["metadata"]["game"]["seed"] not in seen.text
    fork = state.fork()
    turn = possible_moves(state.get("games", "game") or {})[0]
    both = [world.toolbox.call(world.view(one), "move", {"direction": turn}).text for one in (state, fork)]
    assert both[0] == both[1] != seen.text
    assert state.hash() == fork.hash() != world.opening(task).hash()
    assert json.loads(both[0])["moves"] == 1


def test_a_task_that_is_no_game_is_refused_in_words_when_it_is_opened_and_when_it_is_graded(world: World) -> None:
    strange = {"id": "retail-1", "metadata": {}}
    with pytest.raises(ValueError, match=r"'retail-1' is none of game_2048: .* got None"):
        world.opening(strange)
    with pytest.raises(ValueError, match="'retail-1' is none of game_2048"):
        world.grade(world.opening(None), strange, "")
    task = generate_tasks("train", difficulty=1)[0]
    other = world.grade(world.opening(None), task, "")
    assert not other.passed
    assert "another game (base-0)" in other.reason


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_session_without_a_task_plays_to_2048_without_a_limit(world: World, direction: str) -> None:
    state = world.opening(None)
    seen = json.loads(world.toolbox.call(world.view(state), "look", {}).text)
    assert (seen["moves_left"], seen["status"]) == (None, "playing")
    result = world.toolbox.call(world.view(state), "move", {"direction": direction})
    assert result.is_error == (direction not in seen["possible_moves"])
