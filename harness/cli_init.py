"""The command that makes a new project: init. Reads its argument and calls who does the work.

Knows nothing about what a project holds. Registered by cli.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli_options import out
from harness.scaffold import make_project


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The project's folder, which is made.")],
) -> None:
    """Make a new project: a task server, an agent, a configuration, a test, and a README that says what to replace.

    It runs as it is, with the small model that ships with the harness.
    """
    for file in make_project(folder):
        out.print(f"  {folder / file}", markup=False, highlight=False)
    out.print(f"\ncd {folder}\nharness rollout --config config.toml --tasks 2", markup=False, highlight=False)
