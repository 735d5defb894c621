"""The world game_2048 as it is served: two tools, what agents are told about them, tasks, grader and policy.

Knows nothing about HTTP. Made by `python -m mcp_servers.game_2048` and tests; read by the kit (serve.py, control.py).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from mcp_servers.game_2048.grade import grade
from mcp_servers.game_2048.state import (
    DIRECTIONS,
    GAMES,
    THE_GAME,
    Game2048,
    Rows,
    Status,
    best_tile,
    game_base,
    moves_left,
    played,
    possible_moves,
    start,
    status,
)
from mcp_servers.game_2048.tasks import generate_tasks, policy
from mcp_servers.state import Base
from mcp_servers.toolbox import Toolbox
from mcp_servers.world import ToolText, World

Direction = Annotated[str, Field(description="Where all tiles slide to.", json_schema_extra={"enum": list(DIRECTIONS)})]


class Position(TypedDict):
    """What an agent sees of a game; where the next tile will appear is not in it."""

    rows: Rows
    score: int
    best_tile: int
    moves: int
    moves_left: int | None
    possible_moves: list[str]
    status: Status


def look(game: Game2048) -> Position:
    """The board as it stands."""
    now = game.game
    return {
        "rows": now["rows"],
        "score": now["score"],
        "best_tile": best_tile(now),
        "moves": now["moves"],
        "moves_left": moves_left(now),
        "possible_moves": possible_moves(now),
        "status": status(now),
    }


def move(game: Game2048, direction: Direction) -> Position:
    """One move, and the board after it."""
    game.state.add(GAMES, THE_GAME, played(game.game, direction))
    return look(game)


TOOLBOX = Toolbox(reads=(look,), writes=(move,))
TEXTS = {
    "look": ToolText(
        "Look", "The board as rows from top to bottom, the score, and which moves are possible.", Position
    ),
    "move": ToolText("Move", "Slides all tiles; refused where nothing would move. Shows the board after it.", Position),
}


def game_2048_world(base: Base | None = None) -> World:
    """The world over a base; without one, sessions that have no task play to 2048."""
    return World(
        name="game_2048",
        base=base or game_base(),
        toolbox=TOOLBOX,
        texts=TEXTS,
        policy=policy(),
        view=Game2048,
        tasks=generate_tasks,
        grade=grade,
        start=start,
    )
