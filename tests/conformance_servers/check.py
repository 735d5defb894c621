"""The official MCP conformance suite against our task servers, compared with what docs/conformance.md says of it.

    python -m tests.conformance_servers.check retail game_2048        (or `make conformance`, which takes all)

Runs what each protocol version requires. The exit code is 1 where a server passes more or fewer checks of a scenario
than the table says, or sends a message that breaks the protocol's schema. `--write` brings the table up to date; a
scenario with checks that fail needs a reason in its last column, by hand. npx gets the suite, and a Node to run it on.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.served_worlds import SERVERS, run_server

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
VERSIONS = ("2025-11-25", "2026-07-28")
SUITE = "npx --yes -p node@22 -p @modelcontextprotocol/conformance@0.2.0-alpha.12 conformance"
NOT_RUN = "–"
STAMP = re.compile(r"-\d{4}-\d\d-\d\dT[\d-]+Z$")
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)

Cells = dict[str, tuple[str, str]]
"""Scenario → what it came to in each version: "4", "22 of 24", or – where that version doesn't ask for it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a scenario came to."""

    passed: int
    failed: int
    malformed: bool
    """Whether the server sent a message that breaks the protocol's schema."""

    @property
    def cell(self) -> str:
        return f"{self.passed} of {self.passed + self.failed}" if self.failed else str(self.passed)


def run_suite(command: str, url: str, version: str, folder: Path) -> dict[str, Outcome]:
    """All scenarios that a protocol version requires, against one session's address."""
    flags = ["server", "--url", url, "--requirements", version, "--output-dir", str(folder)]
    said = subprocess.run([*shlex.split(command), *flags], capture_output=True, text=True, check=False)
    outcomes: dict[str, Outcome] = {}
    for path in sorted(folder.rglob("checks.json")):
        # Folders are called server-<scenario>-<time stamp>.
        scenario = STAMP.sub("", path.parent.name.removeprefix("server-"))
        checks = [(check["id"], check["status"]) for check in json.loads(path.read_text())]
        statuses = [status for _, status in checks]
        malformed = ("wire-schema-valid", "FAILURE") in checks
        outcomes[scenario] = Outcome(statuses.count("SUCCESS"), statuses.count("FAILURE"), malformed)
    if not outcomes:
        raise SystemExit(f"{command} left no results; it said:\n{(said.stdout + said.stderr)[-2000:]}")
    return outcomes


def run_server_through(command: str, name: str) -> tuple[Cells, list[str]]:
    """What a server comes to in both versions, and the scenarios in which it broke the protocol's schema."""
    by_version: list[dict[str, Outcome]] = []
    for version in VERSIONS:
        with run_server(name=name) as server, server.control() as control, tempfile.TemporaryDirectory() as folder:
            key = control.post("/control/sessions").json()["session_key"]
            by_version.append(run_suite(command, f"{server.ready['url']}/s/{key}/mcp", version, Path(folder)))
    first, second = by_version
    scenarios = sorted(first | second)
    cells = {
        scenario: tuple(found[scenario].cell if scenario in found else NOT_RUN for found in by_version)
        for scenario in scenarios
    }
    broken = [scenario for found in by_version for scenario, outcome in found.items() if outcome.malformed]
    return {scenario: (one, two) for scenario, (one, two) in cells.items()}, broken


def complaints(name: str, found: Cells, broken: list[str], page: str) -> list[str]:
    """Where a server and the page differ, and rows that lack a reason."""
    rows = {scenario: ((one, two), reason.strip()) for scenario, one, two, reason in ROW.findall(page)}
    told = [f"{name}: {scenario} sent messages that break the protocol's schema" for scenario in broken]
    for scenario in sorted(found | rows):
        cells, (said, reason) = found.get(scenario), rows.get(scenario, (None, ""))
        if cells != said:
            told.append(f"{name}: {scenario} came to {cells}; {PAGE.name} says {said}")
        elif cells and not reason and any(" of " in cell for cell in cells):
            told.append(f"{name}: {scenario} has checks that fail, and {PAGE.name} gives no reason")
    return told


def with_table(page: str, found: Cells) -> str:
    """The page with its table made anew; reasons are kept."""
    reasons = {scenario: reason.strip() for scenario, _, _, reason in ROW.findall(page)}
    rows = [f"| `{scenario}` | {one} | {two} | {reasons.get(scenario, '')} |" for scenario, (one, two) in found.items()]
    head, tail = page.split("<!-- table -->\n")[0], page.split("<!-- end of table -->\n")[1]
    columns = "| scenario | 2025-11-25 | 2026-07-28 | what is not applicable, and why |\n|---|---|---|---|\n"
    return f"{head}<!-- table -->\n{columns}" + "\n".join(rows) + f"\n<!-- end of table -->\n{tail}"


def main() -> int:
    """Run the suite; 1 where a server differs from the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="*", default=SERVERS, metavar="SERVER", help=f"of {', '.join(SERVERS)}")
    parser.add_argument("--suite", default=SUITE, help="how the suite is started")
    parser.add_argument("--write", action="store_true", help="bring the table up to date with the first server")
    arguments = parser.parse_args()
    wrong: list[str] = []
    for name in arguments.servers:
        found, broken = run_server_through(arguments.suite, name)
        page = PAGE.read_text(encoding="utf-8")
        if arguments.write and name == arguments.servers[0]:
            page = with_table(page, found)
            PAGE.write_text(page, encoding="utf-8")
        told = complaints(name, found, broken, page)
        wrong += told
        whole = sum(not any(" of " in cell for cell in cells) for cells in found.values())
        print(f"{name}: {whole} of {len(found)} scenarios pass whole; {len(told)} differ from {PAGE.name}", flush=True)
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
