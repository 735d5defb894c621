"""A stand-in for vLLM that costs almost nothing: fixed answers of 40 tokens to prompts of 400, over bare ASGI.

`python -m tests.fast_engine` serves it on a free port and prints the port. For benchmarks.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import msgspec
import uvicorn
from starlette.types import Receive, Scope, Send

END, NEWLINE = 2, 3
PROMPT = list(range(10, 410))
TURN = [7] * 40 + [END, NEWLINE]
ANSWER = [*range(50, 89), END]
ENCODE = msgspec.json.Encoder().encode
DECODE = msgspec.json.Decoder().decode
LOGPROBS = [{"token": f"token_id:{i}", "logprob": -0.123456789, "bytes": [50, 48], "top_logprobs": []} for i in ANSWER]
CALL = {
    "id": "call-1",
    "type": "function",
    "function": {"name": "get_order_details", "arguments": '{"order_id": "#W1"}'},
}
USAGE = {"prompt_tokens": len(PROMPT), "completion_tokens": len(ANSWER), "total_tokens": len(PROMPT) + len(ANSWER)}
HEAD = {"id": "chatcmpl-0", "created": 1, "model": "base"}


def rendered(body: dict[str, Any]) -> list[int]:
    """ChatML in outline: a prompt, then a closed turn for each further message."""
    messages = body["messages"]
    if messages[0]["content"] == "q":
        return [1, ord(messages[1]["content"]), END, NEWLINE]
    history = [*PROMPT, END, NEWLINE, *TURN * (len(messages) - 2)]
    return history if not body.get("add_generation_prompt", True) else [*history, 1, 5]


def answered(body: dict[str, Any]) -> bytes:
    """A whole answer."""
    given = body.get("kv_transfer_params")
    prompt = given["prompt_token_ids"] if given else rendered(body)
    message = {
        "role": "assistant",
        "content": "I look it up.",
        "reasoning": None,
        "refusal": None,
        "tool_calls": [CALL],
    }
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": "tool_calls",
        "stop_reason": None,
        "token_ids": ANSWER,
        "logprobs": {"content": LOGPROBS},
    }
    return ENCODE({**HEAD, "choices": [choice], "usage": USAGE, "prompt_token_ids": prompt})


def streamed(body: dict[str, Any]) -> list[bytes]:
    """The same in ten chunks of four tokens."""
    given = body.get("kv_transfer_params")
    prompt = given["prompt_token_ids"] if given else rendered(body)
    role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    events: list[Any] = [{**HEAD, "choices": [role], "prompt_token_ids": prompt}]
    for start in range(0, 40, 4):
        part = slice(start, start + 4)
        choice = {
            "index": 0,
            "delta": {"content": "word "},
            "finish_reason": "stop" if start == 36 else None,
            "token_ids": ANSWER[part],
            "logprobs": {"content": LOGPROBS[part]},
        }
        events.append({**HEAD, "choices": [choice]})
    events.append({**HEAD, "choices": [], "usage": USAGE})
    return [b"data: " + ENCODE(event) + b"\n\n" for event in events] + [b"data: [DONE]\n\n"]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """The server."""
    content = b""
    while (message := await receive()).get("more_body"):
        content += message["body"]
    content += message.get("body", b"")
    path: str = scope["path"]
    body = DECODE(content) if content else {}
    kind = b"application/json"
    if path.endswith("/render"):
        parts = [ENCODE({"token_ids": rendered(body)})]
    elif path == "/detokenize":
        parts = [b'{"prompt": "<|im_end|>"}']
    elif path == "/v1/chat/completions":
        parts = streamed(body) if body.get("stream") else [answered(body)]
        kind = b"text/event-stream" if body.get("stream") else kind
    else:
        parts = [b'{"data": [{"id": "base"}]}']
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def main() -> None:
    """Serve until killed."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, http="httptools", lifespan="off", access_log=False, log_level="error")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    sys.exit(main())
