"""tests/README.md lists what this project promises; the list and the tests agree, both ways."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| (?P<id>[A-Z]\d+[a-z]?) \| (?P<sentence>[^|]+) \| (?P<tests>[^|]+) \|$")
CITED = re.compile(r"`([\w/]+\.py)(?:::(\w+))?`")
LAWS = 10
MIN_WORDS = 6


@dataclass(frozen=True, slots=True)
class Promise:
    id: str
    sentence: str
    tests: tuple[tuple[str, str], ...]


def read_promises(text: str) -> list[Promise]:
    rows = (ROW.match(line) for line in text.splitlines())
    return [Promise(row["id"], row["sentence"].strip(), tuple(CITED.findall(row["tests"]))) for row in rows if row]


def names_of_tests(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


PROMISES = read_promises((TESTS / "README.md").read_text(encoding="utf-8"))


def test_every_promise_has_an_id_of_its_own_and_a_test() -> None:
    ids = [promise.id for promise in PROMISES]
    assert len(ids) == len(set(ids)), f"ids used twice: {sorted({name for name in ids if ids.count(name) > 1})}"
    assert not [promise.id for promise in PROMISES if not promise.tests]


def test_every_test_that_a_promise_cites_is_there() -> None:
    missing = [
        f"{promise.id}: {file}::{name}"
        for promise in PROMISES
        for file, name in promise.tests
        if not (TESTS / file).is_file() or (name and name not in names_of_tests(TESTS / file))
    ]
    assert not missing, "\n".join(missing)


def test_every_file_of_tests_guards_a_promise_on_the_list() -> None:
    cited = {file for promise in PROMISES for file, _ in promise.tests}
    there = {path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")}
    assert not there - cited, f"not on the list in tests/README.md: {sorted(there - cited)}"


def test_every_law_of_the_architecture_is_promised() -> None:
    promised = {promise.id.rstrip("abcdefghijklmnopqrstuvwxyz") for promise in PROMISES}
    assert not {f"L{number}" for number in range(1, LAWS + 1)} - promised


def test_the_reader_of_the_list_takes_rows_and_nothing_else() -> None:
    row = "| L1a | Ids come from the engine. | `laws/test_a.py::test_b` `laws/c.py` |"
    text = f"| id | promise | test |\n|---|---|---|\n{row}\n"
    assert read_promises(text) == [
        Promise("L1a", "Ids come from the engine.", (("laws/test_a.py", "test_b"), ("laws/c.py", "")))
    ]


def test_names_of_tests_are_sentences_of_six_words_on_the_median() -> None:
    names = [name for path in TESTS.rglob("test_*.py") for name in names_of_tests(path)]
    words = sorted(len(name.split("_")) - 1 for name in names)
    assert words[len(words) // 2] >= MIN_WORDS
