"""Grades for 2048: whether the goal was reached within the limit; score, best tile and moves beside it.

Knows nothing about MCP or agents. The answer's words count nothing: the board does. Used by server.py.
"""

from __future__ import annotations

import math
from typing import Any

from mcp_servers.game_2048.state import best_tile, game_in, game_of, status
from mcp_servers.state import State
from mcp_servers.world import Grade


def grade(state: State, task: dict[str, Any], answer: str) -> Grade:
    """Passed where the task's own game was won. ValueError where the task isn't one of this world."""
    game, wanted = game_of(state), game_in(task)
    won = game["seed"] == wanted["seed"] and status(game) == "won"
    goal = _goal_words(wanted)
    reached = f"{game['score']} points and a best tile of {best_tile(game)} after {game['moves']} moves"
    if game["seed"] != wanted["seed"]:
        reason = f"the session plays another game ({game['seed']}) than the task's ({wanted['seed']})"
    else:
        reason = f"{'reached' if won else 'did not reach'} {goal}: {reached}"
    components = {
        "win": float(won),
        "score": float(game["score"]),
        "best_tile": float(best_tile(game)),
        "moves": float(game["moves"]),
        "progress": _progress(game, wanted),
    }
    return Grade(won, reason, components)


def _goal_words(wanted: dict[str, Any]) -> str:
    goal = f"{wanted['goal_score']} points" if "goal_score" in wanted else f"a tile of {wanted['goal_tile']}"
    return f"{goal} within {wanted['move_limit']} moves"


def _progress(game: dict[str, Any], wanted: dict[str, Any]) -> float:
    """Share of the way to the goal, 0 to 1: of the score, or of the doublings to the tile."""
    if "goal_score" in wanted:
        return min(1.0, game["score"] / wanted["goal_score"])
    return min(1.0, math.log2(best_tile(game)) / math.log2(wanted["goal_tile"]))
