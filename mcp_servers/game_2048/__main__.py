"""`python -m mcp_servers.game_2048`: serves the game over MCP, with its state control beside it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from mcp_servers.command import arguments, main
from mcp_servers.game_2048.server import game_2048_world
from mcp_servers.game_2048.state import game_base
from mcp_servers.state import Base
from mcp_servers.world import World


def _world(options: argparse.Namespace) -> World:
    return game_2048_world(Base.open(options.db) if options.db else game_base(options.seed))


def run(argv: Sequence[str] | None = None) -> None:
    """The command line; `argv` stands for the process's own arguments."""
    main(arguments("game_2048", "2048: the sliding-tile game, for agents over MCP."), _world, argv)


if __name__ == "__main__":
    run()
