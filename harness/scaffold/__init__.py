"""`harness init`: a new project from the files in `project/`.

It knows nothing about what the files hold: they are copied, with the project's name in place of `@NAME@`, and Python
files without the `.tmpl` that keeps them from being part of this package. Called by cli_init.py.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from harness.errors import ConfigError

PROJECT = Path(__file__).parent / "project"
NAME, TEMPLATE = "@NAME@", ".tmpl"
_ALLOWED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def make_project(folder: Path) -> list[Path]:
    """Make `folder` a new project; its files, relative to it.

    The folder appears whole or not at all. Raises ConfigError for a name that a run can't have, and a folder that is
    there and not empty.
    """
    name = folder.resolve().name
    if not _ALLOWED.fullmatch(name):
        fix = "use letters, digits, dot, dash and underscore"
        raise ConfigError(f"a project called {name!r}", "the name can't be a run's", fix)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"make a project in {folder}", "it is there and not empty", "name a folder that is new")
    staged = folder.resolve().with_name(f".{name}.new")
    shutil.rmtree(staged, ignore_errors=True)
    try:
        shutil.copytree(PROJECT, staged)
        for file in project_files(staged):
            text = (staged / file).read_text(encoding="utf-8")
            (staged / file).unlink()
            (staged / file).with_name(file.name.removesuffix(TEMPLATE)).write_text(text.replace(NAME, name), "utf-8")
        if folder.exists():
            folder.rmdir()
        staged.rename(folder)
    except OSError as error:
        shutil.rmtree(staged, ignore_errors=True)
        fix = "name a folder that can be written"
        raise ConfigError(f"make a project in {folder}", error.strerror or str(error), fix) from error
    return project_files(folder)


def project_files(folder: Path) -> list[Path]:
    """Files of a project, relative to its folder, by name."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
