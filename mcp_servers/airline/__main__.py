"""`python -m mcp_servers.airline`: serves the airline world over MCP, with its state control beside it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from mcp_servers.airline.server import airline_world, open_base, tau2_world
from mcp_servers.command import arguments, main
from mcp_servers.world import World


def _world(options: argparse.Namespace) -> World:
    if options.tau2_folder:
        return tau2_world(options.tau2_folder)
    return airline_world(open_base(options.db, options.seed), tau2=options.tau2)


def run(argv: Sequence[str] | None = None) -> None:
    """The command line; `argv` stands for the process's own arguments."""
    parser = arguments("airline", "Airline: users, flights and reservations, for agents over MCP.")
    parser.add_argument("--tau2", action="store_true", help="keep the published oddities of the tau2-bench tools")
    parser.add_argument("--tau2-folder", type=Path, help="a tau2-bench folder: its data, tasks and policy")
    main(parser, _world, argv)


if __name__ == "__main__":
    run()
