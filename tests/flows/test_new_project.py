"""`harness init` makes a project that runs as it is: its tests pass, its first command works."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.scaffold import make_project
from tests.conftest import REPO
from tests.scripted_engine import ScriptedEngine, serve_engine

WITHIN_S = 300


async def run(*argv: str, folder: Path) -> str:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *argv, cwd=folder, stdout=pipe, stderr=pipe)
    out, err = await asyncio.wait_for(process.communicate(), WITHIN_S)
    assert process.returncode == 0, f"{out.decode()}\n{err.decode()}"
    return out.decode()


async def test_a_new_projects_first_command_and_its_tests_run(tmp_path: Path) -> None:
    project = tmp_path / "my-todo"
    files = make_project(project)
    assert {Path("README.md"), Path("agent.py"), Path("config.toml"), Path("server/world.py")} <= set(files)
    assert not [file for file in files if file.suffix == ".tmpl"]
    assert "@NAME@" not in "".join((project / file).read_text() for file in files)
    first = (project / "README.md").read_text().split("\n    ")[1].split("   ")[0].split()
    assert first[:2] == ["harness", "rollout"]
    async with serve_engine(ScriptedEngine(lambda _: "I'd rather not.<|im_end|>")) as url:
        out = await run("-m", *first, "--set", f"engine.url={url}", folder=project)
    assert out.count("answered") == 2
    assert (project / "runs/rollout/logs/tools-.server.log").is_file()
    assert "3 passed" in await run("-m", "pytest", "-q", "-p", "no:cacheprovider", folder=project)
    await run("-m", "ruff", "check", "--config", str(REPO / "pyproject.toml"), ".", folder=project)


def test_a_folder_that_is_there_and_a_name_no_run_can_have_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        make_project(tmp_path)
    with pytest.raises(ConfigError, match="the name can't be a run's"):
        make_project(tmp_path / "my project!")
    with pytest.raises(ConfigError, match="make a project in"):
        make_project(tmp_path / "notes.txt" / "inside")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
