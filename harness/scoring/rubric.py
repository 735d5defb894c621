"""Rubrics, what a judge shall look for: shipped ones, your own text or file, with weighted criteria if wanted.

It knows nothing about prompts, judges or trajectories. Shipped rubrics lie in `rubrics/*.md`.
Called by blend.py (from the configuration), ruler_prompt.py and `harness judge calibrate`.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import JudgeError

SHIPPED_FOLDER = Path(__file__).parent / "rubrics"
FILE_ENDINGS = (".md", ".txt", ".toml")


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that is scored on its own."""

    name: str
    """Its name in answers and components; a letter or underscore, then letters, digits, underscores."""
    text: str
    """What it asks."""
    weight: float = 1.0
    """Share in the score, relative to the other weights; above 0."""


@dataclass(frozen=True, slots=True)
class Rubric:
    """What a judge shall look for."""

    name: str
    """Short name for logs."""
    text: str
    """The instructions, as markdown."""
    criteria: tuple[Criterion, ...] = ()
    """Scored one by one and averaged by weight; empty for one score a trajectory."""

    @property
    def version(self) -> str:
        """Name and a hash over text, criteria and weights: scores are comparable within one version only."""
        parts = [self.text, *(f"{c.name}\n{c.text}\n{c.weight}" for c in self.criteria)]
        return f"{self.name}@{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:8]}"

    def weighted(self, values: dict[str, float]) -> float:
        """Mean of one value a criterion by weight."""
        total = sum(criterion.weight for criterion in self.criteria)
        return sum(criterion.weight * values[criterion.name] for criterion in self.criteria) / total


def shipped_rubrics() -> list[str]:
    """Names of the rubrics that come with the project."""
    return sorted(path.stem for path in SHIPPED_FOLDER.glob("*.md"))


def load_rubric(value: str | Path | None) -> Rubric:
    """The default (None), a shipped one by name, a file (.md, .txt, .toml), or the text itself.

    A TOML file holds `name`, `text` and `[[criteria]]` with `name`, `text`, `weight`. Raises JudgeError for a missing
    file, an unknown name or a criterion that can't be weighed.
    """
    if value is None:
        return _from_text_file(SHIPPED_FOLDER / "default.md")
    text = str(value)
    if text in shipped_rubrics():
        return _from_text_file(SHIPPED_FOLDER / f"{text}.md")
    if text.endswith(FILE_ENDINGS) and "\n" not in text:
        return _from_file(Path(text))
    if len(text.split()) < 3:
        raise JudgeError(
            asked=f"the rubric {text!r}",
            found="neither a shipped rubric, nor a file, nor a text of three words or more",
            fix=f"name one of {', '.join(shipped_rubrics())}, or a file ending in {', '.join(FILE_ENDINGS)}",
        )
    return Rubric("text", text)


def _from_file(path: Path) -> Rubric:
    if not path.is_file():
        raise JudgeError(asked=f"the rubric file {path}", found="no such file", fix="check the path of judge.rubric")
    if path.suffix != ".toml":
        return _from_text_file(path)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise JudgeError(asked=f"the rubric file {path}", found=f"no TOML: {error}", fix="correct the file") from error
    criteria = tuple(_criterion(path, entry) for entry in raw.get("criteria", []))
    names = [criterion.name for criterion in criteria]
    if len(set(names)) < len(names):
        raise _bad(path, f"criteria named {names}", "give each criterion its own name")
    return _checked(path, Rubric(str(raw.get("name", path.stem)), str(raw.get("text", "")), criteria))


def _from_text_file(path: Path) -> Rubric:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _bad(path, f"no UTF-8 text: {error}", "save it as UTF-8") from error
    return _checked(path, Rubric(path.stem, text.strip()))


def _checked(path: Path, rubric: Rubric) -> Rubric:
    if not rubric.text.strip() and not rubric.criteria:
        raise _bad(path, "neither text nor criteria", "say what a good trajectory is")
    return rubric


def _criterion(path: Path, entry: dict[str, Any]) -> Criterion:
    name, text, weight = entry.get("name"), entry.get("text"), entry.get("weight", 1.0)
    if not isinstance(name, str) or not name.isidentifier() or not isinstance(text, str):
        raise _bad(path, f"criterion {entry!r}", "give it a one-word name and a text")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise _bad(path, f"criterion {name!r} with weight {weight!r}", "make the weight a number above 0")
    return Criterion(name, text, float(weight))


def _bad(path: Path, found: str, fix: str) -> JudgeError:
    return JudgeError(asked=f"the rubric file {path}", found=found, fix=fix)
