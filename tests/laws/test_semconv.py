"""The attributes of ours that spans carry are all explained where readers look for them."""

from __future__ import annotations

import re

from tests.conftest import REPO
from traces import semconv


def test_every_attribute_of_ours_is_in_the_table_and_no_other() -> None:
    page = (REPO / "docs" / "traces.md").read_text(encoding="utf-8")
    told: set[str] = set()
    for row in re.findall(r"^\| (`harness\..*?) \|", page, re.MULTILINE):
        whole = ""
        for name in re.findall(r"`([^`]+)`", row):
            # `.suffix` stands beside a name of the same parent.
            whole = name if name.startswith("harness.") else whole.rpartition(".")[0] + name
            told.add(whole)
    ours = {value for value in vars(semconv).values() if isinstance(value, str) and value.startswith("harness.")}
    assert told == ours
