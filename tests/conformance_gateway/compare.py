"""Is the tool gateway transparent? The MCP conformance suite against a server directly, and through the gateway.

    python -m tests.conformance_gateway.compare --url http://127.0.0.1:3001/mcp

The server is any that implements the suite's fixtures: the everything-server among the MCP Python SDK's examples does.
Both protocol versions are run; the exit code is 1 where any check of any scenario has another outcome through the
gateway. Needs Node 22 or newer for the suite.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from pathlib import Path

from tests.conformance_gateway.both_ways import gateway_before, main, run

VERSIONS = ("2025-11-25", "2026-07-28")
SUITE = "npx --yes @modelcontextprotocol/conformance@0.2.0-alpha.12"

RESULT_FOLDER = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")

Outcomes = dict[str, list[tuple[str, str]]]
"""Scenario → (check, outcome) in the order in which they were made."""


async def run_suite(command: str, url: str, version: str, folder: Path) -> Outcomes:
    """Run all scenarios of a protocol version; returns what each check said."""
    flags = ["server", "--url", url, "--suite", "all", "--spec-version", version, "--output-dir", str(folder)]
    _, said = await run(command, *flags)
    files = sorted(folder.rglob("checks.json"))
    if not files:
        raise SystemExit(f"{command} left no results in {folder}; it said:\n{said[-2000:]}")
    outcomes: Outcomes = {}
    for path in files:
        scenario = scenario_of(path.parent.name)
        outcomes[scenario] = [(check["id"], check["status"]) for check in json.loads(path.read_text())]
    return outcomes


def scenario_of(folder: str) -> str:
    """The scenario of a folder called `server-<scenario>-<ISO time>`; raises SystemExit for any other name."""
    found = RESULT_FOLDER.fullmatch(folder)
    if found is None:
        raise SystemExit(
            f"the suite left its results in {folder!r}, not server-<scenario>-<time>: another version of it?"
        )
    return found["scenario"]


def told(checks: list[tuple[str, str]]) -> str:
    """`12 success, 1 failure`."""
    return ", ".join(f"{count} {status.lower()}" for status, count in sorted(Counter(s for _, s in checks).items()))


async def compare(url: str, command: str) -> int:
    """Run both versions on both ways; returns how many scenarios differ."""
    differing = 0
    for version in VERSIONS:
        async with gateway_before(url) as gateway_url:
            with tempfile.TemporaryDirectory() as folder:
                direct = await run_suite(command, url, version, Path(folder) / "direct")
                through = await run_suite(command, gateway_url, version, Path(folder) / "through")
        for scenario in sorted(direct | through):
            before, after = direct.get(scenario, []), through.get(scenario, [])
            differing += before != after
            print(f"{version}  {scenario:<50} {told(before):<28} {'same' if before == after else told(after)}")
            for check in sorted(set(before) ^ set(after)):
                print(f"{'':12}{'directly' if check in before else 'through'}: {check[0]} {check[1]}")
        checks = [check for checks in through.values() for check in checks]
        print(f"{version}  {len(through)} scenarios, through the gateway: {told(checks)}", flush=True)
    return differing


if __name__ == "__main__":
    main(__doc__, SUITE, compare)
