"""Imports go one way: traces ← harness ← training; mcp_servers and agents are leaves; one door per heavy dependency.

Reads source text only; lazy, type-only and `import_module("…")` imports count as much as those at the top of a file.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
FOLDERS = ("traces", "harness", "training", "mcp_servers", "agents")

MAY_IMPORT = {
    "traces": {"traces"},
    "harness": {"harness", "traces"},
    "training": {"training", "harness", "traces"},
    "mcp_servers": {"mcp_servers"},
    "agents": set[str](),
}

ONE_DOOR = {
    "torch": ("training/",),
    "trl": ("training/trainer.py",),
    "peft": ("training/",),
    "vllm": ("training/vllm_lora.py",),
    "litellm": (
        "agents/litellm/",
        "harness/scoring/",
    ),
    "opentelemetry": ("traces/tracer.py", "traces/otlp.py", "mcp_servers/"),
    "wandb": ("harness/tracking.py",),
    "typer": ("harness/cli",),
    "agents": ("agents/openai_agents/", "agents/openai_responses/", "agents/triage/"),
}


def imported_modules(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Every module a file imports, with its line; `package` resolves relative imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            yield node.lineno, ".".join([*base, *([node.module] if node.module else [])])
        elif isinstance(node, ast.Call) and node.args and _is_import_call(node.func):
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def _is_import_call(func: ast.expr) -> bool:
    name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    return name in {"import_module", "__import__"}


def python_files(folder: str) -> list[Path]:
    return sorted(path for path in (REPO / folder).rglob("*.py") if "node_modules" not in path.parts)


def package_of(path: Path) -> str:
    return ".".join(path.relative_to(REPO).parent.parts)


def all_imports(folder: str) -> Iterator[tuple[str, int, str]]:
    for path in python_files(folder):
        for line, module in imported_modules(path.read_text(encoding="utf-8"), package_of(path)):
            yield str(path.relative_to(REPO)), line, module


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_imports_only_the_folders_below_it(folder: str) -> None:
    wrong = [
        f"{file}:{line} imports {module}"
        for file, line, module in all_imports(folder)
        if (top := module.split(".")[0]) in FOLDERS
        and top not in MAY_IMPORT[folder]
        and not (folder == "agents" and top == "agents")  # that name is the SDK's, see below
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dependency", sorted(ONE_DOOR))
def test_a_heavy_dependency_has_its_own_door(dependency: str) -> None:
    doors = ONE_DOOR[dependency]
    wrong = [
        f"{file}:{line} imports {module}; {dependency} belongs in {' or '.join(doors)}"
        for folder in FOLDERS
        for file, line, module in all_imports(folder)
        if module.split(".")[0] == dependency and not file.startswith(doors)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_two_modules_import_each_other_in_a_ring() -> None:
    names = {module_name(path): path for folder in FOLDERS[:4] for path in python_files(folder)}
    graph = {name: top_level_targets(path, set(names)) - {name} for name, path in names.items()}
    ring = find_ring(graph)
    assert ring is None, " → ".join(ring or [])


def module_name(path: Path) -> str:
    parts = path.relative_to(REPO).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def top_level_targets(path: Path, known: set[str]) -> set[str]:
    """Modules of ours that importing this file imports at once: those named at the top of it."""
    targets: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            from_names = {f"{node.module}.{alias.name}" for alias in node.names}
            targets |= (from_names & known) or {node.module}
    return targets & known


def find_ring(graph: dict[str, set[str]]) -> list[str] | None:
    """One cycle of the graph as a list of names, or None."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        for target in sorted(graph.get(name, ())):
            if ring := visit(target, [*path, name]):
                return ring
        done.add(name)
        return None

    return next((ring for name in sorted(graph) if (ring := visit(name, []))), None)


def test_the_reader_of_imports_sees_lazy_and_type_only_ones() -> None:
    source = (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from training.loop import run\n"
        "def f():\n    import harness.cli\n    from . import store\n    importlib.import_module('mcp_servers.retail')\n"
    )
    modules = {module for _, module in imported_modules(source, "traces")}
    assert {"training.loop", "harness.cli", "traces", "mcp_servers.retail"} <= modules


def test_the_search_for_rings_finds_one_of_three() -> None:
    assert find_ring({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert find_ring({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def test_the_agents_folder_never_hides_the_sdk_of_that_name() -> None:
    assert not (REPO / "agents" / "__init__.py").exists()
    pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed (extra: openai-agents)")
    shown = subprocess.run(
        [sys.executable, "-c", "import agents; from agents import Agent; print(agents.__file__)"],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "site-packages" in shown.stdout, shown.stdout
