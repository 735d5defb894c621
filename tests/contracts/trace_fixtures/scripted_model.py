"""A model that answers by script at an OpenAI-compatible address, and the conversation that every fixture records.

It also takes whatever tracing SDKs post to it, so that their real requests can be kept. Imported by the scripts of this
folder only; they run by hand, each in an environment with the SDK it records.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

SYSTEM = "You are a support agent."
REQUEST = "Where is my order #W1?"
RESULT = '{"status": "pending"}'
PARAMETERS = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}
TOOL = {
    "type": "function",
    "function": {"name": "get_order", "description": "Reads an order.", "parameters": PARAMETERS},
}


@dataclass(frozen=True)
class Posted:
    """A request that a tracing SDK sent."""

    path: str
    """Where to."""
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    """As it came, compressed or not."""


POSTED: list[Posted] = []
BATCHES = {
    "use_multipart_endpoint": False,
    "size_limit": 100,
    "size_limit_bytes": 1_000_000,
    "scale_up_qsize_trigger": 1000,
    "scale_up_nthreads_limit": 1,
    "scale_down_nempty_trigger": 4,
}
INFO = {"version": "0.13.0", "batch_ingest_config": BATCHES}
"""What LangSmith's server says of itself; without multipart its SDK posts plain JSON."""


async def chat(request: Request) -> Response:
    """The first call asks for the tool, the second answers."""
    messages = (await request.json())["messages"]
    call = {"id": "call_1", "type": "function", "function": {"name": "get_order", "arguments": '{"order_id": "#W1"}'}}
    message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
    if messages[-1]["role"] == "tool":
        message = {"role": "assistant", "content": "Order #W1 is pending."}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "tiny"}
    return JSONResponse({**answer, "choices": [choice], "usage": usage})


async def keep(request: Request) -> Response:
    """Anything else is kept and answered with what SDKs are content with."""
    body = await request.body()
    if request.url.path.endswith("/info"):
        return JSONResponse(INFO)
    if request.method in ("POST", "PATCH"):
        POSTED.append(Posted(request.url.path, {k.lower(): v for k, v in request.headers.items()}, body))
    if request.url.path.endswith("/v1/traces"):
        return Response(b"", media_type="application/x-protobuf")
    # Weave wants the digest of what it uploads.
    return JSONResponse({"id": "x", "status": "ok", "digest": "x" * 43})


def serve() -> str:
    """The address."""
    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/{rest:path}", keep, methods=["GET", "POST", "PATCH"]),
    ]
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), port=0, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    waiting = threading.Event()
    while not server.started:
        waiting.wait(0.05)
    return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


def get_order(order_id: str) -> str:
    """The tool."""
    assert order_id == "#W1"
    return RESULT


def converse(client: Any, use_tool: Any = get_order) -> str:
    """Two model calls and a tool call with an OpenAI client."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": REQUEST}]
    asked: Any = client.chat.completions.create(model="tiny", messages=messages, tools=[TOOL]).choices[0].message
    (call,) = asked.tool_calls
    result = use_tool(**json.loads(call.function.arguments))
    messages += [
        {"role": "assistant", "content": asked.content, "tool_calls": [call.model_dump(exclude_none=True)]},
        {"role": "tool", "tool_call_id": call.id, "content": result},
    ]
    said = client.chat.completions.create(model="tiny", messages=messages, tools=[TOOL]).choices[0].message
    return said.content
