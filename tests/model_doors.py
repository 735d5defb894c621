"""A whole gateway in front of an engine, over real HTTP and a real store, with its admin client. For tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from harness.gateway.app import GatewayApp, GatewayConfig, open_gateway
from harness.gateway.client import GatewayClient, OpenedRollout, attach_gateway
from tests.tool_doors import serve
from traces.span import Span, new_span_id, new_trace_id
from traces.store import Store

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
        },
    }
    for name in ("get_order", "cancel_order")
]


@dataclass
class Doors:
    """A served gateway."""

    url: str
    """Its address."""
    app: GatewayApp
    """Itself."""
    admin: GatewayClient
    """Its admin API."""
    store: Store
    """A second view of its store."""
    http: aiohttp.ClientSession
    """For raw requests."""

    async def open(self, rollout_id: str = "r-1", **fields: Any) -> OpenedRollout:
        """Open a rollout of the base model."""
        opening: dict[str, Any] = {
            "rollout_id": rollout_id,
            "run_id": "run",
            "group_id": "g",
            "task_id": "t",
            "trace_id": new_trace_id(),
            "parent_span_id": new_span_id(),
            "model": "base",
            "policy_version": 3,
        }
        return await self.admin.open_rollout({**opening, **fields})

    async def post(
        self, opened: OpenedRollout, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """A raw chat request; status and parsed answer."""
        url = f"{opened.model_url}/chat/completions"
        async with self.http.post(url, json=body, headers=headers) as response:
            return response.status, await response.json(content_type=None)

    def spans(self, rollout_id: str = "r-1") -> list[Span]:
        """What is on disk."""
        return self.store.spans(rollout_id)

    def turns(self, rollout_id: str = "r-1") -> list[Span]:
        """Answered model calls on disk."""
        return [span for span in self.spans(rollout_id) if span.tokens is not None]


def client(opened: OpenedRollout, *, retries: int = 0, timeout_s: float = 30.0) -> AsyncOpenAI:
    """The official client at a rollout's model door."""
    return AsyncOpenAI(base_url=opened.model_url, api_key=opened.key, max_retries=retries, timeout=timeout_s)


def anthropic_client(opened: OpenedRollout, *, retries: int = 0) -> AsyncAnthropic:
    """Anthropic's official client at the same door."""
    base_url = opened.model_url.removesuffix("/v1")
    return AsyncAnthropic(base_url=base_url, api_key=opened.key, max_retries=retries, timeout=30.0)


@asynccontextmanager
async def serve_doors(engine_url: str, folder: Path, *, engine_timeout_s: float = 60.0) -> AsyncGenerator[Doors]:
    """A gateway in this event loop, with its store in `folder`."""
    folder.mkdir(exist_ok=True)
    config = GatewayConfig(folder / "traces.db", engine_url, "base", engine_timeout_s=engine_timeout_s)
    async with open_gateway(config) as app, serve(app) as url:
        app.public_url = url
        with Store(config.store_path) as store:
            async with attach_gateway(url, config.admin_key) as admin, aiohttp.ClientSession() as http:
                yield Doors(url, app, admin, store, http)
