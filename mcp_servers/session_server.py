"""The SDK's server over a world's sessions: tools, the policy as a resource, tool calls once per idempotency key.

Knows nothing about any domain, and of HTTP only where a request's scope holds its session. Used by serve.py over HTTP,
by command.py over stdio, and by tests.
"""

from __future__ import annotations

import inspect
import logging
from functools import partial
from importlib import metadata
from typing import Any, cast

from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware, ServerRequestContext
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.resources import TextResource
from mcp.server.mcpserver.tools import Tool
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolResult,
    GetPromptResult,
    TextContent,
    ToolAnnotations,
)
from pydantic import TypeAdapter

from mcp_servers.errors import CallKeyReused, ServerError
from mcp_servers.plain_calls import PlainCall
from mcp_servers.sessions import Session, Sessions
from mcp_servers.world import World

SESSION = "mcp_servers.session"
"""Where a request's scope holds its session."""
FAILURE = "mcp_servers.failure"
"""Where a request's scope holds the ServerError that is to be told instead of the SDK's answer."""
KEY_HEADER = "x-idempotency-key"
KEY_META = "harness/idempotency-key"
log = logging.getLogger(__name__)


class SessionServer(MCPServer[Any]):
    """The SDK's server with its tool calls run on the session that the request's path names."""

    def __init__(
        self, world: World, sessions: Sessions, *, output_schemas: bool = True, only: Session | None = None
    ) -> None:
        """`only` is the one session of a server that is spoken to over stdio.

        Without `output_schemas` tools answer text alone. Each client session compiles the schema of each tool it calls,
        which takes it longer than all the rest of the call.
        """
        policy = TextResource(uri=f"policy://{world.name}", name="policy", mime_type="text/markdown", text=world.policy)
        super().__init__(
            world.name,
            version=_version(),
            tools=_tools(world, output_schemas),
            resources=[policy],
            log_level="WARNING",
            subscriptions=False,
        )
        self._sessions = sessions
        self._only = only
        self._structured = output_schemas

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult:
        """Calls a tool once per idempotency key (header or `_meta`); its errors are results that the agent reads."""
        request = context.request_context.request if context else None
        meta = (context.request_context.meta if context else None) or {}
        session = self._only or cast("Session", request.scope[SESSION] if request else None)
        call_key = request.headers.get(KEY_HEADER) if request else None
        try:
            return self.answer(session, name, arguments, call_key or meta.get(KEY_META))
        except CallKeyReused as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
        except ServerError as error:
            if request:
                request.scope[FAILURE] = error
            raise MCPError(INTERNAL_ERROR, str(error)) from error

    def answer(self, session: Session, name: str, arguments: dict[str, Any], call_key: object) -> CallToolResult:
        """Calls a tool of a session, once per key where there is one.

        CallKeyReused where the key stands for another call, ServerError where the server failed; neither took effect.
        """
        try:
            result = self._sessions.call(session, name, arguments, str(call_key) if call_key else None)
        except CallKeyReused:
            raise
        except ServerError as error:
            log.error("session %s: %s", session.id, error)
            raise
        except Exception as error:
            log.exception("session %s: %s failed", session.id, name[:80])
            found = f"a defect of the tool: {type(error).__name__}"
            raise ServerError(
                f"call {name[:80]}", found, "look into the server's log; the call changed nothing"
            ) from error
        return CallToolResult(
            content=[TextContent(type="text", text=result.text)],
            structured_content=result.value if self._structured else None,
            is_error=result.is_error,
        )

    async def answer_plain(self, session: Session, call: PlainCall, call_key: str | None) -> bytes:
        """The answer to a plain call, with the SDK's middleware around it. Raises what `answer` raises."""

        async def inner(ctx: ServerRequestContext[Any, Any]) -> HandlerResult:
            arguments = call.params.get("arguments", {})
            return self.answer(session, call.params["name"], arguments, call_key or call.meta.get(KEY_META))

        chain: CallNext = inner
        for middleware in reversed(self._lowlevel_server.middleware):
            chain = partial(_around, middleware, chain)
        result = cast("CallToolResult", await chain(call.context()))
        return call.body(result, self._lowlevel_server.server_info_stamp)

    async def get_prompt(
        self, name: str, arguments: dict[str, Any] | None = None, context: Context[Any, Any] | None = None
    ) -> GetPromptResult:
        """There are none; the SDK would answer an internal error."""
        raise MCPError(INVALID_PARAMS, f"Unknown prompt: {name[:80]}")

    def _tool_input_schema(self, name: str) -> dict[str, Any] | None:
        # The SDK asks for it before each call, to check parameters that are sent as headers; no tool here has any.
        return None


def _tools(world: World, output_schemas: bool) -> list[Tool]:
    tools: list[Tool] = []
    for name, function in world.toolbox.tools.items():
        text, writes = world.texts[name], name in world.toolbox.writes
        annotations = ToolAnnotations(
            title=text.title,
            read_only_hint=not writes,
            destructive_hint=writes,
            idempotent_hint=not writes or text.idempotent,
            open_world_hint=False,
        )
        tool = Tool.from_function(
            function,
            name=name,
            title=text.title,
            description=text.description,
            # The first parameter is the session's view: filled in here, so agents are not told of it.
            context_kwarg=next(iter(inspect.signature(function).parameters)),
            annotations=annotations,
            structured_output=False,
        )
        if text.output is not None and output_schemas:
            tool.fn_metadata.output_schema = _untitled(TypeAdapter(text.output).json_schema())
        tools.append(tool)
    return tools


def _untitled(schema: Any) -> Any:
    """A JSON schema without the titles that repeat its property names, which are a fifth of its text."""
    if isinstance(schema, dict):
        parts = cast("dict[str, Any]", schema).items()
        return {name: _untitled(part) for name, part in parts if not (name == "title" and isinstance(part, str))}
    return [_untitled(part) for part in cast("list[Any]", schema)] if isinstance(schema, list) else schema


async def _around(
    middleware: ServerMiddleware[Any], call_next: CallNext, ctx: ServerRequestContext[Any, Any]
) -> HandlerResult:
    return await middleware(ctx, call_next)


def _version() -> str:
    try:
        return metadata.version("mcp-agent-training-harness")
    except metadata.PackageNotFoundError:
        return "unpackaged"
