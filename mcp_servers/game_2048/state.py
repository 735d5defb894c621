"""The rules of 2048 as pure functions, and a session of it over the state kit: one entity, the game.

Knows nothing about MCP, tasks or grading. Where tiles appear follows from the game's seed and the number of moves, so
forks and repeated runs see the same tiles. Used by server.py (the tools), tasks.py and grade.py.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, cast

from mcp_servers.errors import ToolFault
from mcp_servers.state import Base, Entity, State

Rows = list[list[int]]
Status = Literal["playing", "won", "lost"]
SIZE = 4
DIRECTIONS = ("left", "right", "up", "down")
GAMES, THE_GAME = "games", "game"
FOUR_SHARE = 0.1
GOALS = ("goal_tile", "goal_score")
DEFAULT_GOAL = {"goal_tile": 2048}


class Game2048:
    """One session: its state, which holds one game."""

    __slots__ = ("state",)

    def __init__(self, state: State) -> None:
        self.state = state

    @property
    def game(self) -> Entity:
        """The game as it stands: rows, score, moves, goal_tile or goal_score, move_limit, seed."""
        return game_of(self.state)


def game_of(state: State) -> Entity:
    """The game of a state. KeyError where the base is of another world."""
    game = state.get(GAMES, THE_GAME)
    if game is None:
        raise KeyError(f"the base holds no {GAMES} entity {THE_GAME!r}; it is not of the world game_2048")
    return game


def game_base(seed: int = 0) -> Base:
    """The base: a game to 2048 without a limit, which a session without a task plays."""
    return Base({GAMES: {THE_GAME: new_game(f"base-{seed}", DEFAULT_GOAL)}}, {"seed": seed})


def new_game(seed: str, goal: Mapping[str, int], move_limit: int | None = None) -> Entity:
    """A fresh board with two tiles; `goal` has `goal_tile` or `goal_score`; no `move_limit`: any number of moves."""
    rows: Rows = [[0] * SIZE for _ in range(SIZE)]
    for n in range(2):
        rows = _with_new_tile(rows, f"{seed}-start-{n}")
    return {"rows": rows, "score": 0, "moves": 0, **goal, "move_limit": move_limit, "seed": seed}


def played(game: Entity, direction: str) -> Entity:
    """The game after a move; the one given is left as it was. ToolFault where it can't be made, and why."""
    if direction not in DIRECTIONS:
        raise ToolFault(
            f"There is no direction {direction[:40]!r}; move {', '.join(DIRECTIONS[:-1])} or {DIRECTIONS[-1]}."
        )
    if status(game) != "playing":
        raise ToolFault(f"The game is over: {status(game)} with {game['score']} points after {game['moves']} moves.")
    after = moved(game, direction)
    if after is None:
        raise ToolFault(f"Nothing moves {direction}; possible: {', '.join(possible_moves(game))}.")
    return after


def moved(game: Entity, direction: str) -> Entity | None:
    """The game after a slide and a new tile, whether it was over or not; None where nothing moves."""
    rows, gained = shifted(game["rows"], direction)
    if rows == game["rows"]:
        return None
    moves = game["moves"] + 1
    rows = _with_new_tile(rows, f"{game['seed']}-{moves}")
    return {**game, "rows": rows, "score": game["score"] + gained, "moves": moves}


def status(game: Entity) -> Status:
    """Won once the goal is reached; lost when it isn't and no move, or none within the limit, is left."""
    if reached(game):
        return "won"
    return "playing" if moves_left(game) != 0 and possible_moves(game) else "lost"


def reached(game: Entity) -> bool:
    """Whether the game's goal is met."""
    return game["score"] >= game["goal_score"] if "goal_score" in game else best_tile(game) >= game["goal_tile"]


def best_tile(game: Entity) -> int:
    """The highest tile on the board."""
    return max(max(row) for row in game["rows"])


def moves_left(game: Entity) -> int | None:
    """Moves that the limit still allows; None without a limit."""
    return None if game["move_limit"] is None else game["move_limit"] - game["moves"]


def possible_moves(game: Entity) -> list[str]:
    """The directions in which something moves."""
    return [direction for direction in DIRECTIONS if shifted(game["rows"], direction)[0] != game["rows"]]


def shifted(rows: Rows, direction: str) -> tuple[Rows, int]:
    """The rows after sliding and merging, and the points gained: each merged tile counts its value."""
    sideways = direction in ("left", "right")
    lines = [tuple(row) for row in rows] if sideways else list(zip(*rows, strict=True))
    if direction in ("left", "up"):
        slid = [_slid(line) for line in lines]
    else:
        slid = [(line[::-1], gained) for line, gained in (_slid(line[::-1]) for line in lines)]
    after = [line for line, _ in slid] if sideways else zip(*(line for line, _ in slid), strict=True)
    return [list(line) for line in after], sum(gained for _, gained in slid)


@lru_cache(maxsize=65536)
def _slid(line: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """One line slid to its front, and the points; equal neighbours merge once, those nearest to the front first."""
    tiles = [tile for tile in line if tile]
    merged: list[int] = []
    gained = n = 0
    while n < len(tiles):
        pair = n + 1 < len(tiles) and tiles[n] == tiles[n + 1]
        merged.append(tiles[n] * 2 if pair else tiles[n])
        gained += merged[-1] if pair else 0
        n += 2 if pair else 1
    return (*merged, *([0] * (SIZE - len(merged)))), gained


def _with_new_tile(rows: Rows, seed: str) -> Rows:
    """The rows with a 2, or now and then a 4, in an empty cell."""
    rng = random.Random(seed)
    y, x = rng.choice([(y, x) for y, row in enumerate(rows) for x, tile in enumerate(row) if not tile])
    tile = 4 if rng.random() < FOUR_SHARE else 2
    return [[tile if (y, x) == (j, i) else old for i, old in enumerate(row)] for j, row in enumerate(rows)]


def start(state: State, task: Mapping[str, Any]) -> None:
    """Puts a fresh session where its task begins. ValueError where the task says no game of ours."""
    game = game_in(task)
    goal = {name: game[name] for name in GOALS if name in game}
    state.add(GAMES, THE_GAME, new_game(game["seed"], goal, game["move_limit"]))


def game_in(task: Mapping[str, Any]) -> dict[str, Any]:
    """The game that a task is about: seed, goal and limit. ValueError where it says none, or none of ours."""
    metadata: Any = task.get("metadata")
    game: Any = cast("dict[str, Any]", metadata).get("game") if type(metadata) is dict else None
    if type(game) is dict:
        told = cast("dict[str, Any]", game)
        kinds: dict[str, Any] = {name: type(value) for name, value in told.items()}
        goals = [name for name in GOALS if kinds.get(name) is int]
        if len(goals) == 1 and kinds.get("seed") is str and kinds.get("move_limit") is int:
            return told
    message = f"metadata.game must have a seed, a move_limit and one of {' and '.join(GOALS)}, got {game!r}"
    raise ValueError(f"the task {task.get('id')!r} is none of game_2048: {message}")
