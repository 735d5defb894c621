"""Does the MCP Inspector's command line work through the tool gateway? The same commands directly and through it.

    python -m tests.conformance_gateway.inspector --url http://127.0.0.1:3001/mcp

For a server with the fixtures of the conformance suite (see compare.py). The exit code is 1 where anything that the
Inspector prints differs. Needs Node 22 or newer.
"""

from __future__ import annotations

import itertools
import shlex

from tests.conformance_gateway.both_ways import gateway_before, main, run

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
    flags = ["--cli", url, "--transport", "http", "--protocol-era", era, "--method", *shlex.split(command)]
    code, said = await run(inspector, *flags)
    return code, said.replace(url, "<url>")


async def compare(url: str, inspector: str) -> int:
    """Run every command on both ways; returns how many differ."""
    differing = 0
    async with gateway_before(url) as gateway_url:
        for era, command in itertools.product(("legacy", "modern"), COMMANDS):
            directly = await inspect(inspector, url, era, command)
            through = await inspect(inspector, gateway_url, era, command)
            differing += directly != through
            outcome = "same" if directly == through else f"{directly}\n  through: {through}"
            print(f"{era:<7} {command:<85} exit {directly[0]}  {outcome}", flush=True)
    return differing


if __name__ == "__main__":
    main(__doc__, INSPECTOR, compare)
