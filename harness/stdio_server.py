"""An MCP server that speaks stdio, served over streamable HTTP: `python -m harness.stdio_server PORT COMMAND…`.

Third parties' servers are mostly commands on stdio, and the tool gateway speaks HTTP. One process of this serves one
session; it ends when its command does. It knows nothing about rollouts. Started by session_process.py.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvicorn
from mcp import Client, StdioServerParameters
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    CompleteRequestParams,
    CompleteResult,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
)

LOOPBACK = "127.0.0.1"
Context = ServerRequestContext[Any, Any]


def passed_on(client: Client) -> Server[Any]:
    """A server that has the tools, resources, prompts and completions of the one that `client` speaks with.

    Progress is passed on, and a call that is taken back is taken back there too. What a server asks of its client
    (elicitation, sampling, roots) has no way through.
    """

    async def list_tools(_: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        return await client.list_tools(cursor=params.cursor if params else None)

    async def call_tool(ctx: Context, params: CallToolRequestParams) -> CallToolResult:
        report = ctx.session.report_progress
        return await client.call_tool(params.name, params.arguments or {}, progress_callback=report)

    async def list_resources(_: Any, params: PaginatedRequestParams | None) -> ListResourcesResult:
        return await client.list_resources(cursor=params.cursor if params else None)

    async def read_resource(_: Any, params: ReadResourceRequestParams) -> ReadResourceResult:
        return await client.read_resource(params.uri)

    async def list_templates(_: Any, params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        return await client.list_resource_templates(cursor=params.cursor if params else None)

    async def list_prompts(_: Any, params: PaginatedRequestParams | None) -> ListPromptsResult:
        return await client.list_prompts(cursor=params.cursor if params else None)

    async def get_prompt(_: Any, params: GetPromptRequestParams) -> GetPromptResult:
        return await client.get_prompt(params.name, params.arguments)

    async def complete(_: Any, params: CompleteRequestParams) -> CompleteResult:
        argument = {"name": params.argument.name, "value": params.argument.value}
        return await client.complete(params.ref, argument)

    offers, info = client.server_capabilities, client.server_info
    return Server(
        info.name if info is not None else "server",
        version=info.version if info is not None else "",
        instructions=client.instructions,
        on_list_tools=list_tools if offers.tools else None,
        on_call_tool=call_tool if offers.tools else None,
        on_list_resources=list_resources if offers.resources else None,
        on_read_resource=read_resource if offers.resources else None,
        on_list_resource_templates=list_templates if offers.resources else None,
        on_list_prompts=list_prompts if offers.prompts else None,
        on_get_prompt=get_prompt if offers.prompts else None,
        on_completion=complete if offers.completions else None,
    )


async def serve(port: int, command: list[str]) -> None:
    """Start the command and serve it until the process is stopped."""
    async with Client(StdioServerParameters(command=command[0], args=command[1:])) as client:
        app = passed_on(client).streamable_http_app(stateless_http=True)
        # An idle connection outlives any pause of an agent.
        config = uvicorn.Config(app, host=LOOPBACK, port=port, log_level="warning", timeout_keep_alive=600)
        await uvicorn.Server(config).serve()


def main(argv: list[str]) -> int:
    """Serve; 2 and a message for a wrong command line."""
    if len(argv) < 2 or not argv[0].isdigit():
        print(f"usage: python -m harness.stdio_server PORT COMMAND…, got {argv}", file=sys.stderr)
        return 2
    asyncio.run(serve(int(argv[0]), argv[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
