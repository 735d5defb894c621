"""A virtual environment for one agent, made once from the `requirements.txt` beside its file and then kept.

Several agent SDKs can't share one environment, and none of them belongs into ours. It knows nothing about what an agent
is or does. Called by agent.py; agent_node.py keeps its environments by the same rules.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import AgentError

VENVS = Path("runs/.agents")
"""Where environments are kept unless told otherwise; safe to delete, they are made again."""
REQUIREMENTS = "requirements.txt"
_READY = ".ready"
_LAST_LINES = slice(-12, None)


def tell_on_stderr(line: str) -> None:
    """What is going on, for a person who waits."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def agent_python(
    file: Path, venvs: Path = VENVS, *, python: str = sys.executable, tell: Callable[[str], None] = tell_on_stderr
) -> str:
    """The interpreter of the environment that `file` needs, made with `python` at the first call (minutes).

    It is made again when the requirements or the interpreter change. One that could not be finished is removed.
    Raises AgentError without requirements, for an interpreter that isn't there, and with pip's last words.
    """
    requirements = file.with_name(REQUIREMENTS)
    if not requirements.is_file():
        fix = f"write {requirements}, or leave agent.runs_in at 'auto'"
        raise AgentError(f"an environment of its own for {str(file)!r}", f"there is no {REQUIREMENTS} beside it", fix)
    interpreter = find_python(python)
    wanted = hashlib.sha256(requirements.read_bytes() + interpreter.encode()).hexdigest()[:10]
    folder = venvs.absolute() / f"{file.resolve().parent.name}-{wanted}"
    make_once(folder, file, tell, lambda: _make(folder, interpreter, requirements))
    return str(folder / "bin" / "python")


def find_python(python: str) -> str:
    """Absolute path of an interpreter, given as a path or a command. Raises AgentError where there is none."""
    found = shutil.which(python)
    if found is None:
        fix = "set agent.python to an interpreter, such as python3.11, or leave it out for the harness's own"
        raise AgentError(f"the interpreter {python!r} for an agent", "no such program on the PATH", fix)
    return str(Path(found).absolute())


def make_once(folder: Path, file: Path, tell: Callable[[str], None], make: Callable[[], None]) -> None:
    """Have `make` fill the environment `folder` of `file`, unless that was done before; half of one is never kept."""
    with _alone(folder):
        if (folder / _READY).exists():
            return
        tell(f"making the environment of {file} in {folder} (once; it may take minutes)")
        shutil.rmtree(folder, ignore_errors=True)  # half of one, left by a run that was killed
        try:
            make()
            (folder / _READY).touch()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Two runs may want the same environment at the same time: the second waits for the first."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(folder: Path, interpreter: str, requirements: Path) -> None:
    install((interpreter, "-m", "venv", "--without-pip", str(folder)), "that interpreter's own module `venv`")
    installer = _installer(folder / "bin" / "python")
    install((*installer, "--requirement", str(requirements.absolute())), f"what {requirements} asks for")


def _installer(target: Path) -> tuple[str, ...]:
    """A command that installs into the environment of `target` from outside; one without pip is made fast."""
    if importlib.util.find_spec("pip") is not None:
        pip = (sys.executable, "-m", "pip", "--python", str(target))
        return (*pip, "install", "--quiet", "--disable-pip-version-check")
    if (uv := shutil.which("uv")) is not None:
        return (uv, "pip", "install", "--quiet", "--python", str(target))
    fix = f"install pip into {sys.executable}, or uv"
    raise AgentError(f"the environment of {target}", f"neither pip in {sys.executable} nor uv", fix)


def install(argv: tuple[str, ...], needs: str, folder: Path | None = None, told: slice = _LAST_LINES) -> None:
    """Run an installer to its end, in `folder`. Raises AgentError with what it said; `needs` is what to check."""
    done = subprocess.run(
        argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        lines = "\n".join(done.stdout.strip().splitlines()[told])
        fix = f"check {needs}, and that a package index can be reached"
        raise AgentError(f"`{' '.join(argv)}`", f"exit code {done.returncode}: {lines}", fix)
