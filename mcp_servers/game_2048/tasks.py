"""Seeded, unlimited games of 2048 with a goal and a limit of moves, each with a way to win it.

Knows nothing about MCP or agents. The way is found by a search that knows where tiles will appear, which no agent does;
the limit leaves slack over it. Each task is checked when made: the way wins it, without its last move it doesn't, and
neither does going round in circles. Used by server.py and tests.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from mcp_servers.game_2048.state import DIRECTIONS, moved, new_game, played, possible_moves, reached, status
from mcp_servers.state import Entity

Task = dict[str, Any]
Action = tuple[str, dict[str, Any]]
SPLITS = ("train", "validation", "held_out")
GOALS = {
    "reach": {1: 16, 2: 32, 3: 64, 4: 128},
    "score": {1: 40, 2: 110, 3: 280, 4: 680},
}
"""Kind → difficulty → the tile to reach, or the points to make."""
KINDS = tuple(GOALS)
LEVELS = {1: 40, 2: 30, 3: 20, 4: 10}
"""Difficulty → how often it is drawn where none is asked for."""
LEAST_SLACK, MOST_SLACK = 1.1, 1.4
"""The limit is this many times the moves of the way that was found: the most that going round in circles can't use."""
BEAM = 4
LONGEST = 200
ATTEMPTS = 100
CIRCLE = ("left", "down", "right", "up")
PHRASES = {
    "train": {
        "reach": ("Please play until there is a tile of {goal}.", "I'd like to see a {goal} on the board."),
        "score": ("Please make at least {goal} points.", "Can you get the score up to {goal}?"),
        "limit": ("You have {limit} moves.", "No more than {limit} moves, please."),
    },
    "validation": {
        "reach": ("Build me a {goal} tile.", "The target tile is {goal}."),
        "score": ("The target score is {goal}.", "Bring home {goal} points or more."),
        "limit": ("Do it in {limit} moves or fewer.", "The limit is {limit} moves."),
    },
    "held_out": {
        "reach": ("Merge your way to {goal}.", "Show me what you can do: get the {goal} tile."),
        "score": ("Collect {goal} points in this game.", "Anything from {goal} points on counts as a win."),
        "limit": ("After {limit} moves it is over.", "{limit} moves must be enough."),
    },
}
"""Split → kind of sentence → its wordings; no split says it as another does."""


def generate_tasks(
    split: str,
    seed: int = 0,
    offset: int = 0,
    count: int = 1,
    *,
    kinds: Sequence[str] = KINDS,
    difficulty: int | None = None,
) -> list[Task]:
    """Tasks number `offset` to `offset + count - 1` of a split and seed; the same arguments give the same tasks.

    ValueError for an unknown split, kind or difficulty.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; there are {', '.join(SPLITS)}")
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise ValueError(f"unknown kinds {unknown}; there are {', '.join(KINDS)}")
    if difficulty is not None and difficulty not in LEVELS:
        raise ValueError(f"unknown difficulty {difficulty}; there are {', '.join(map(str, LEVELS))}")
    return [_task(split, seed, index, kinds, difficulty) for index in range(offset, offset + count)]


def expert_actions(task: Task) -> list[Action]:
    """The way to win that was found when the task was made."""
    return [(action["name"], action["arguments"]) for action in task["expected"]["actions"]]


def sloppy_actions(task: Task) -> list[Action]:
    """Going round in circles until the limit; never wins."""
    game = task["metadata"]["game"]
    goal = {name: game[name] for name in ("goal_tile", "goal_score") if name in game}
    return _moves(circled(new_game(game["seed"], goal, game["move_limit"])))


@lru_cache(maxsize=1)
def policy() -> str:
    """The policy text, which is also the system prompt."""
    return Path(__file__).with_name("policy.md").read_text(encoding="utf-8").strip()


def won_way(game: Entity) -> list[str] | None:
    """Moves that win the game, near to the fewest; None where the search finds none."""
    beam: list[tuple[Entity, list[str]]] = [(game, [])]
    for _ in range(LONGEST):
        tried = [(moved(now, turn), [*way, turn]) for now, way in beam for turn in DIRECTIONS]
        after = [(now, way) for now, way in tried if now is not None]
        won = next((way for now, way in after if reached(now)), None)
        if won is not None:
            return won
        # With the same number of moves made all boards hold about the same sum: squares tell the best merged one.
        after.sort(key=lambda one: -sum(tile * tile for row in one[0]["rows"] for tile in row))
        beam = after[:BEAM]
    return None


def circled(game: Entity) -> list[str]:
    """The moves of a player who goes round in circles, skipping what can't be moved, until the game is over."""
    moves: list[str] = []
    while status(game) == "playing":
        possible = possible_moves(game)
        turns = (CIRCLE[(len(moves) + n) % len(CIRCLE)] for n in range(len(CIRCLE)))
        moves.append(next(turn for turn in turns if turn in possible))
        game = played(game, moves[-1])
    return moves


def _task(split: str, seed: int, index: int, kinds: Sequence[str], difficulty: int | None) -> Task:
    rng = random.Random(f"2048-{split}-{seed}-{index}")
    kind = rng.choice(kinds)
    level = difficulty or rng.choices(list(LEVELS), list(LEVELS.values()))[0]
    game, way = _drawn(f"{split}-{seed}-{index}", kind, level)
    goal = GOALS[kind][level]
    phrases = [rng.choice(PHRASES[split][name]) for name in (kind, "limit")]
    return {
        "id": f"game_2048-{split}-{seed}-{index}",
        "server": "game_2048",
        "split": split,
        "kind": kind,
        "difficulty": level,
        "user_message": " ".join(phrases).format(goal=goal, limit=game["move_limit"]),
        "system_prompt": policy(),
        "allowed_tools": None,
        "expected": {"actions": [{"name": name, "arguments": arguments} for name, arguments in _moves(way)]},
        "is_refusal": False,
        "metadata": {"game": game, "phrases": phrases, "seed": seed, "index": index},
    }


@lru_cache(maxsize=1024)
def _drawn(name: str, kind: str, level: int) -> tuple[dict[str, Any], list[str]]:
    """A game (seed, goal, limit) and the way to win it, such that going round in circles doesn't."""
    goal = {"goal_tile" if kind == "reach" else "goal_score": GOALS[kind][level]}
    for attempt in range(ATTEMPTS):
        seed = f"{name}-{attempt}"
        way = won_way(new_game(seed, goal))
        if way is None:
            continue
        limit = int(len(way) * MOST_SLACK)
        round_and_round = circled(new_game(seed, goal, limit))
        if _wins(seed, goal, limit, round_and_round):
            limit = len(round_and_round) - 1
        if limit >= len(way) * LEAST_SLACK and _wins(seed, goal, limit, way):
            return {"seed": seed, **goal, "move_limit": limit}, way
    raise RuntimeError(f"no {kind} game of difficulty {level} found for {name} in {ATTEMPTS} draws")


def _wins(seed: str, goal: dict[str, int], limit: int, moves: list[str]) -> bool:
    game = new_game(seed, goal, limit)
    for move in moves:
        game = played(game, move)
    return status(game) == "won"


def _moves(moves: list[str]) -> list[Action]:
    return [("move", {"direction": move}) for move in moves]
