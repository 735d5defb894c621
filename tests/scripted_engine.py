"""A fast stand-in for vLLM over real HTTP: characters are tokens, answers come from a script, and every way to fail.

It renders as ChatML does, with tool calls written canonically, so that what was sampled with odd spacing renders
differently: exactly the drift that the gateway must not let through.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.tool_doors import serve

START, END = 1, 2
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.S)
THOUGHT = re.compile(r"<think>(.*?)</think>", re.S)


def encode(text: str) -> list[int]:
    """Characters as ids; the two special tokens are one id each."""
    ids: list[int] = []
    for part in re.split(r"(<\|im_start\|>|<\|im_end\|>)", text):
        ids += {"<|im_start|>": [START], "<|im_end|>": [END]}.get(part) or [ord(c) + 10 for c in part]
    return ids


def decode(ids: list[int]) -> str:
    """The inverse of `encode`."""
    return "".join({START: "<|im_start|>", END: "<|im_end|>"}.get(i) or chr(i - 10) for i in ids)


def render(body: dict[str, Any]) -> list[int]:
    """ChatML; arguments of tool calls are written as this template likes them, not as they were sampled."""
    text = "<|im_start|>tools\n" + ",".join(t["function"]["name"] for t in body.get("tools") or ()) + "<|im_end|>\n"
    for message in body["messages"]:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)
        for call in message.get("tool_calls") or ():
            arguments = _canonical(call["function"]["arguments"])
            content += f'<tool_call>{{"name": "{call["function"]["name"]}", "arguments": {arguments}}}</tool_call>'
        text += f"<|im_start|>{message['role']}\n{content}<|im_end|>\n"
    if body.get("add_generation_prompt", True):
        text += "<|im_start|>assistant\n"
    return encode(text)


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments))
    except ValueError:
        return arguments


def parse(text: str, serial: int) -> dict[str, Any]:
    """Sampled text as a chat message."""
    calls = []
    for number, found in enumerate(CALL.findall(text)):
        name, arguments = _name_and_arguments(found)
        function = {"name": name, "arguments": arguments}
        calls.append({"id": f"call-{serial}-{number}", "type": "function", "function": function})
    reasoning = "".join(THOUGHT.findall(text)) or None
    content = THOUGHT.sub("", CALL.sub("", text)).strip() or None
    return {"role": "assistant", "content": content, "reasoning": reasoning, "refusal": None, "tool_calls": calls}


def _name_and_arguments(text: str) -> tuple[str, str]:
    """A call's parts; `name: text` gives arguments that are no JSON, as lenient parsers let them through."""
    if not text.startswith("{"):
        name, _, arguments = text.partition(": ")
        return name, arguments
    call = json.loads(text)
    return call["name"], json.dumps(call["arguments"])


@dataclass
class ScriptedEngine:
    """What it answers, and how it fails."""

    answer: Callable[[str], str]
    """Prompt text → sampled text; without `<|im_end|>` at its end it was cut at the length limit."""
    takes_ids_in_chat: bool = True
    """Whether chat calls take prompt ids, as vLLM 0.32 does."""
    scale_out: bool = True
    """Whether render, generate and derender are open."""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Path and body of every request."""
    read_prompts: list[list[int]] = field(default_factory=list)
    """Prompt ids of every sampled answer."""
    hold: asyncio.Event | None = None
    """Where set, answers wait for it."""
    waiting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """Released for every answer that waits."""
    fail_next: list[str] = field(default_factory=list)
    """How the next chat calls fail: `500`, `400`, `404`, `garbage`, `close`, `midway`."""

    def count(self, path: str) -> int:
        """How often a path was asked."""
        return sum(asked == path for asked, _ in self.asked)

    def app(self) -> Starlette:
        """The server."""
        chat = "/v1/chat/completions"
        routes = [
            Route("/health", lambda _: Response(), methods=["GET"]),
            Route("/v1/models", lambda _: JSONResponse({"data": [{"id": "base", "root": "scripted"}]})),
            Route(chat, self.chat, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/v1/completions", self.complete, methods=["POST"]),
        ]
        if self.scale_out:
            routes += [
                Route("/tokenize", self.tokenize, methods=["POST"]),
                Route(f"{chat}/render", self.render, methods=["POST"]),
                Route("/inference/v1/generate", self.generate, methods=["POST"]),
                Route(f"{chat}/derender", self.derender, methods=["POST"]),
            ]
        return Starlette(routes=routes)

    async def _body(self, request: Request) -> dict[str, Any]:
        body = await request.json()
        self.asked.append((request.url.path, body))
        return body

    async def detokenize(self, request: Request) -> Response:
        body = await self._body(request)
        return JSONResponse({"prompt": decode(body["tokens"])})

    async def tokenize(self, request: Request) -> Response:
        body = await self._body(request)
        return JSONResponse({"tokens": encode(body["prompt"])})

    async def render(self, request: Request) -> Response:
        body = await self._body(request)
        return JSONResponse({"request_id": "r", "token_ids": render(body), "model": body["model"]})

    async def _sample(self, prompt: list[int]) -> tuple[list[int], str]:
        if self.hold is not None:
            self.waiting.release()
            await self.hold.wait()
        self.read_prompts.append(prompt)
        ids = encode(self.answer(decode(prompt)))
        return ids, "stop" if ids[-1] == END else "length"

    async def generate(self, request: Request) -> Response:
        body = await self._body(request)
        ids, reason = await self._sample(body["token_ids"])
        logprobs = {"content": [{"token_id": i, "logprob": -i / 1000} for i in ids]}
        choice = {"index": 0, "token_ids": ids, "finish_reason": reason, "logprobs": logprobs}
        return JSONResponse({"request_id": "g", "choices": [choice], "usage": {"completion_tokens": len(ids)}})

    async def derender(self, request: Request) -> Response:
        body = await self._body(request)
        choice = body["generate_response"]["choices"][0]
        message = parse(decode(choice["token_ids"]), len(self.asked))
        return JSONResponse({"id": "d", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    async def complete(self, request: Request) -> Response:
        body = await self._body(request)
        prompt = body["prompt"] if isinstance(body["prompt"], list) else encode(body["prompt"])
        choices = []
        for index in range(body.get("n") or 1):
            ids, reason, stopped = _stopped(*await self._sample(prompt), body.get("stop"))
            text = decode(ids).removesuffix("<|im_end|>").removesuffix(stopped or "")
            logprobs = {"tokens": ["?"] * len(ids), "token_logprobs": [-i / 1000 for i in ids]}
            choice = {"index": index, "text": text, "finish_reason": reason, "stop_reason": stopped}
            choices.append({**choice, "token_ids": ids, "prompt_token_ids": prompt, "logprobs": logprobs})
        sampled = sum(len(choice["token_ids"]) for choice in choices)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": sampled, "total_tokens": len(prompt) + sampled}
        reply = {"id": f"cmpl-{len(self.asked)}", "created": 7, "choices": choices}
        if body.get("stream"):
            ends = [{**reply, "choices": []}, {**reply, "choices": [], "usage": usage}]
            events = b"".join(_event(one) for one in (reply, *ends))
            return Response(events + b"data: [DONE]\n\n", media_type="text/event-stream")
        return JSONResponse({**reply, "usage": usage})

    async def chat(self, request: Request) -> Response:
        body = await self._body(request)
        failure = self.fail_next.pop(0) if self.fail_next else ""
        if failure.isdigit():
            error = {"message": f"scripted {failure}", "type": "Scripted"}
            return JSONResponse({"error": error}, int(failure))
        if failure == "garbage":
            return Response(b"<html>not JSON</html>", media_type="text/html")
        given = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
        prompt = given if given and self.takes_ids_in_chat else render(body)
        choices = []
        for index in range(body.get("n") or 1):
            ids, reason, stopped = _stopped(*await self._sample(prompt), body.get("stop"))
            choices.append(self._choice(index, ids, reason, stopped))
        if failure == "close":
            return StreamingResponse(_broken(), media_type="application/json")
        reply = {"id": f"chat-{len(self.asked)}", "created": 7, "choices": choices, "prompt_token_ids": prompt}
        sampled = sum(len(c["token_ids"]) for c in choices)
        counts = {"prompt_tokens": len(prompt), "completion_tokens": sampled, "total_tokens": len(prompt) + sampled}
        reply["usage"] = counts
        if body.get("stream"):
            return StreamingResponse(_events(reply, failure == "midway"), media_type="text/event-stream")
        return JSONResponse(reply)

    def _choice(self, index: int, ids: list[int], reason: str, stopped: str | None) -> dict[str, Any]:
        spoken = decode(ids).removesuffix("<|im_end|>").removesuffix(stopped or "")
        message = parse(spoken, len(self.asked) * 10 + index)
        if message["tool_calls"] and reason == "stop":
            reason = "tool_calls"
        content = [{"token": f"token_id:{i}", "logprob": -i / 1000, "top_logprobs": []} for i in ids]
        return {
            "index": index,
            "message": message,
            "finish_reason": reason,
            "stop_reason": stopped,
            "token_ids": ids,
            "logprobs": {"content": content},
        }


def _stopped(ids: list[int], reason: str, stops: list[str] | str | None) -> tuple[list[int], str, str | None]:
    """What is left of an answer that ends with the first stop string in it."""
    text = decode(ids)
    for stop in [stops] if isinstance(stops, str) else stops or ():
        if stop in text:
            return encode(text[: text.index(stop) + len(stop)]), "stop", stop
    return ids, reason, None


async def _broken() -> AsyncGenerator[bytes]:
    yield b'{"id": "x", "choi'
    raise RuntimeError("the scripted engine breaks off here")


def _events(reply: dict[str, Any], broken: bool) -> Iterator[bytes]:
    """The reply in three parts a choice, the ids among them; a broken one ends after the second."""
    head = {"id": reply["id"], "created": reply["created"]}
    first = {**head, "prompt_token_ids": reply["prompt_token_ids"]}
    yield _event({**first, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    for choice in reply["choices"]:
        message, ids = choice["message"], choice["token_ids"]
        calls = [{**call, "index": i} for i, call in enumerate(message["tool_calls"])]
        half = len(ids) // 2
        text = message["content"] or ""
        thought = {"reasoning": message["reasoning"]} if message["reasoning"] else {}
        parts = ({"content": text[:1], **thought}, {"content": text[1:], **({"tool_calls": calls} if calls else {})})
        for part, delta in enumerate(parts):
            if broken and part:
                yield _event({"error": {"message": "scripted failure midway", "type": "Scripted"}})
                return
            some = slice(0, half) if part == 0 else slice(half, None)
            logprobs = {"content": choice["logprobs"]["content"][some]}
            end = {"finish_reason": choice["finish_reason"], "stop_reason": choice["stop_reason"]} if part else {}
            said = {"index": choice["index"], "delta": delta, "token_ids": ids[some], "logprobs": logprobs, **end}
            yield _event({**head, "choices": [said]})
    yield _event({**head, "choices": [], "usage": reply["usage"]})
    yield b"data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


@asynccontextmanager
async def serve_engine(engine: ScriptedEngine) -> AsyncGenerator[str]:
    """The engine on a free port; its base URL."""
    async with serve(engine.app()) as url:
        yield url
