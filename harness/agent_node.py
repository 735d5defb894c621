"""How an agent's file for Node is run, in an environment made once from the `package.json` beside it and then kept.

It knows nothing about what an agent is or does. Called by agent.py.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

from harness.agent_venv import VENVS, install, make_once, tell_on_stderr
from harness.errors import AgentError

SUFFIXES = (".ts", ".mts", ".js", ".mjs", ".cjs")
"""Files that Node runs; those in TypeScript through `tsx` where that is installed."""
_COPIED = ("package.json", "package-lock.json", ".npmrc")
_MODULES = "node_modules"
_LINK = "agent"
_FIRST_LINES = slice(12)
"""Where npm says what is wrong; how it is used comes after that."""


def node_command(file: Path, venvs: Path = VENVS, *, tell: Callable[[str], None] = tell_on_stderr) -> tuple[str, ...]:
    """The command that runs `file`; what its `package.json` asks for is installed at the first call (a minute).

    Modules that lie beside the file already are taken as they are. The environment is made again when `package.json`
    or its lock change. Raises AgentError where Node or npm isn't there, and with npm's words.
    """
    node = _program("node")
    home = file.resolve().parent
    flags: tuple[str, ...] = ()
    if (home / _COPIED[0]).is_file() and not (home / _MODULES).is_dir():
        home = _environment(file, venvs, tell)
        # The file is seen inside its environment, so that Node finds modules there and not where the file lies.
        flags = ("--preserve-symlinks", "--preserve-symlinks-main")
    loaders = (folder / _MODULES / "tsx" / "dist" / "loader.mjs" for folder in (home, *home.parents))
    if file.suffix.endswith("ts") and (loader := next(filter(Path.is_file, loaders), None)):
        flags = (*flags, "--import", str(loader))
    return (node, *flags, str(home / file.name))


def _environment(file: Path, venvs: Path, tell: Callable[[str], None]) -> Path:
    """The folder of `file`, seen through a link that lies beside its modules."""
    source = file.resolve().parent
    files = [source / name for name in _COPIED if (source / name).is_file()]
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in files) + str(source).encode()).hexdigest()[:10]
    folder = venvs.absolute() / f"{source.name}-{wanted}"

    def make() -> None:
        folder.mkdir(parents=True)
        for path in files:
            shutil.copy(path, folder)
        how = "ci" if (source / _COPIED[1]).is_file() else "install"
        argv = (_program("npm"), how, "--no-audit", "--no-fund", "--loglevel=error")
        install(argv, f"what {files[0]} asks for", folder, _FIRST_LINES)
        (folder / _LINK).symlink_to(source)

    make_once(folder, file, tell, make)
    return folder / _LINK


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise AgentError(f"the program {name!r} for an agent", "it is not on the PATH", "install Node.js 20 or newer")
    return found
