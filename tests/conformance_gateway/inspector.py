"""Does the MCP Inspector's command line work through the tool gateway? The same commands directly and through it.

    python -m tests.conformance_gateway.inspector --url http://127.0.0.1:3001/mcp

For a server with the fixtures of the conformance suite (see compare.py). The exit code is 1 where anything that the
Inspector prints differs. Needs Node 22 or newer.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shlex
import sys

from harness.gateway.keys import ToolDoor
from tests.tool_doors import serve_gateway

INSPECTOR = "npx --yes @modelcontextprotocol/inspector@2.12.0"
COMMANDS = (
    "tools/list",
    "tools/call --tool-name test_simple_text",
    "tools/call --tool-name test_image_content",
    "tools/call --tool-name test_error_handling",
    "tools/call --tool-name test_tool_with_progress",
    "resources/list",
    "resources/templates/list",
    "resources/read --uri test://static-text",
    "resources/read --uri test://template/7/data",
    "prompts/list",
    "prompts/get --prompt-name test_simple_prompt",
    "prompts/get --prompt-name test_prompt_with_arguments --prompt-args arg1=a arg2=b",
    "logging/setLevel --log-level debug",
)


async def inspect(inspector: str, url: str, era: str, command: str) -> tuple[int | None, str]:
    """Run one command; its exit code and what it printed."""
    argv = [*shlex.split(inspector), "--cli", url, "--transport", "http", "--protocol-era", era]
    argv += ["--method", *shlex.split(command)]
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode(errors="replace").replace(url, "<url>")


async def compare(url: str, inspector: str) -> int:
    """Run every command on both ways; returns how many differ."""
    differing = 0
    async with serve_gateway() as gateway:
        rollout = gateway.open(ToolDoor("reference", url))
        for era, command in itertools.product(("legacy", "modern"), COMMANDS):
            directly = await inspect(inspector, url, era, command)
            through = await inspect(inspector, gateway.mcp_url(rollout), era, command)
            differing += directly != through
            outcome = "same" if directly == through else f"{directly}\n  through: {through}"
            print(f"{era:<7} {command:<85} exit {directly[0]}  {outcome}", flush=True)
    return differing


def main() -> int:
    """Compare; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="MCP address of the running reference server")
    parser.add_argument("--inspector", default=INSPECTOR, help="how the Inspector is started")
    arguments = parser.parse_args()
    return int(asyncio.run(compare(arguments.url, arguments.inspector)) > 0)


if __name__ == "__main__":
    sys.exit(main())
