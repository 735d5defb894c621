"""A hosted model in the engine's place: an OpenAI endpoint on this machine whose answers LiteLLM gets.

So that any model can be measured by the same agents, gateways and checks as the policy. It has no token ids, so nothing
of it can be trained. It knows nothing about rollouts. Opened by stack.py; what it cost is a line in the run folder.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from harness.engine import Engine, ServedBase
from harness.errors import JudgeError
from harness.run_facts import HOSTED_LOG
from harness.scoring.litellm_call import (
    EndpointBusy,
    JudgeSpec,
    JudgeUsage,
    RequestRefused,
    endpoint_arguments,
    load_litellm,
    respond,
    usage_of,
)

PASSED_ON = (
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "max_tokens",
    "stop",
    "seed",
    "response_format",
)
"""Fields of a request that every provider, or LiteLLM for it, understands; what only vLLM does is left out."""


class HostedModel:
    """The endpoint's handlers."""

    def __init__(self, spec: JudgeSpec) -> None:
        self.spec = spec
        self.usage = JudgeUsage()
        """Sum over all calls."""
        self._gate = asyncio.Semaphore(spec.concurrency)

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models."""
        return web.json_response({"object": "list", "data": [{"id": self.spec.model, "object": "model"}]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions: 400 for what the provider refuses, 503 for everything that isn't the agent's."""
        body: dict[str, Any] = json.loads(await request.text())
        try:
            response = await self._respond({name: body[name] for name in PASSED_ON if name in body})
        except RequestRefused as error:
            return web.json_response({"error": {"message": str(error), "type": "invalid_request_error"}}, status=400)
        except (EndpointBusy, JudgeError) as error:
            return web.json_response({"error": {"message": str(error), "type": "server_error"}}, status=503)
        self.usage.add(usage_of(response))
        reply: dict[str, Any] = response.model_dump(mode="json")
        if not body.get("stream"):
            return web.json_response(reply)
        events = "".join(f"data: {json.dumps(event)}\n\n" for event in _chunks(reply))
        return web.Response(text=events + "data: [DONE]\n\n", content_type="text/event-stream")

    async def _respond(self, asked: dict[str, Any]) -> Any:
        """LiteLLM's response, after as many attempts as it takes; raises what `respond` raises."""
        for attempt in range(self.spec.attempts):
            try:
                async with self._gate:
                    return await respond(self.spec, {**endpoint_arguments(self.spec), **asked})
            except EndpointBusy as error:
                if attempt + 1 == self.spec.attempts:
                    raise
                self.usage.retries += 1
                await asyncio.sleep(max(error.retry_after_s, self.spec.backoff_s * 2**attempt))
        raise AssertionError("unreachable: the last attempt returns or raises")


def _chunks(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """A whole reply as a stream: one chunk a choice with all of it."""
    head = {name: reply.get(name) for name in ("id", "created", "model")}
    chunks: list[dict[str, Any]] = []
    for choice in reply["choices"]:
        message = dict(choice["message"])
        calls: list[dict[str, Any]] = message.get("tool_calls") or []
        message["tool_calls"] = [{**call, "index": place} for place, call in enumerate(calls)] or None
        kept = {"index": choice["index"], "finish_reason": choice["finish_reason"]}
        chunks.append({**head, "object": "chat.completion.chunk", "choices": [{**kept, "delta": message}]})
    return [*chunks, {**head, "choices": [], "usage": reply.get("usage")}]


@asynccontextmanager
async def open_hosted(model: str, api_base: str | None, folder: Path, *, concurrency: int) -> AsyncGenerator[Engine]:
    """An engine whose base model is `model`, a LiteLLM model string; raises JudgeError where LiteLLM isn't there."""
    await asyncio.to_thread(load_litellm, model)
    hosted = HostedModel(JudgeSpec(model=model, api_base=api_base, concurrency=concurrency))
    app = web.Application(client_max_size=2**26)
    app.router.add_get("/v1/models", hosted.models)
    app.router.add_post("/v1/chat/completions", hosted.chat)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield Engine(f"http://{host}:{port}", ServedBase(model, model))
    finally:
        await runner.cleanup()
        _write_cost(folder, hosted)


def _write_cost(folder: Path, hosted: HostedModel) -> None:
    row = {"model": hosted.spec.model, "time": time.time(), **hosted.usage.as_metrics("hosted/")}
    with (folder / HOSTED_LOG).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
