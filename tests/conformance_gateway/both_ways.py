"""What the comparisons of this folder share: a reference server's address directly and through the tool gateway,
programs whose words are read, and a command line."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from harness.gateway.keys import ToolDoor
from tests.tool_doors import serve_gateway

Compare = Callable[[str, str], Awaitable[int]]
"""Address of the reference server, program → how many things differ."""


@asynccontextmanager
async def gateway_before(url: str) -> AsyncGenerator[str]:
    """The address of a tool gateway that passes on to the server at `url`."""
    async with serve_gateway() as gateway:
        yield gateway.mcp_url(gateway.open(ToolDoor("reference", url)))


async def run(program: str, *arguments: str) -> tuple[int | None, str]:
    """Run a program to its end; its exit code and all it printed."""
    process = await asyncio.create_subprocess_exec(
        *shlex.split(program), *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    return process.returncode, said.decode(errors="replace")


def main(description: str | None, program: str, compare: Compare) -> None:
    """Compare as the command line says; the exit code is 1 where something differs."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="MCP address of the running reference server")
    parser.add_argument("--program", default=program, help="how the program is started that asks the server")
    arguments = parser.parse_args()

    async def comparing() -> int:
        return await compare(arguments.url, arguments.program)

    sys.exit(int(asyncio.run(comparing()) > 0))
