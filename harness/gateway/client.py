"""Calls the gateway's admin API: opens rollouts, seals them, names the policy, pauses and resumes.

It knows nothing about agents, sessions or models. Called by rollout.py, training and the command line.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp

from harness.errors import GatewayError

_TIMEOUT_S = 120.0
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class OpenedRollout:
    """The doors of a rollout that was opened."""

    key: str
    """The rollout's secret, part of all URLs."""
    model_url: str
    """OpenAI base URL, ending in `/v1`."""
    mcp_url: str
    """MCP address."""
    otlp_url: str
    """OTLP/HTTP address for the agent's own spans."""


@dataclass(frozen=True, slots=True)
class Seal:
    """What the gateways counted when a rollout was sealed."""

    turns: int = 0
    """Answered model calls."""
    tool_calls: int = 0
    """Calls that reached a tool server."""
    tokens: int = 0
    """Tokens sampled."""
    forks: Mapping[str, int] = field(default_factory=dict[str, int])
    """Forks of the token forest by cause."""
    drift_tokens: int = 0
    """Prompt tokens that differed from what had been sampled."""
    limit_hit: str | None = None
    """`turns`, `tokens` or `wall_s` where the gateway refused a call for it."""
    infrastructure_error: str | None = None
    """`<Ending>: words` of the first failure that was ours."""


def seal_from_dict(raw: Mapping[str, Any]) -> Seal:
    """Read the admin API's answer; unknown fields are left for newer readers."""
    return Seal(**{name: raw[name] for name in Seal.__dataclass_fields__ if name in raw})


@dataclass(frozen=True, slots=True)
class GatewayClient:
    """The gateway's admin API, over connections that stay open. Made by `attach_gateway`."""

    url: str
    """Base address of the gateway."""
    key: str = field(repr=False)
    """Admin key."""
    http: aiohttp.ClientSession
    """Pooled connections."""

    async def open_rollout(self, request: Mapping[str, Any]) -> OpenedRollout:
        """Open a rollout's doors; `request` as in app.py. Raises GatewayError."""
        answer = await self._post("/admin/rollouts", request)
        missing = [name for name in OpenedRollout.__dataclass_fields__ if not isinstance(answer.get(name), str)]
        if missing:
            raise self._unexpected("/admin/rollouts", f"an answer without {missing}")
        return OpenedRollout(answer["key"], answer["model_url"], answer["mcp_url"], answer["otlp_url"])

    async def seal(self, rollout_id: str) -> Seal:
        """End a rollout's key; all its spans are on disk when this returns. Raises GatewayError."""
        return seal_from_dict(await self._post(f"/admin/rollouts/{rollout_id}/seal", {}))

    async def set_policy(self, model: str, policy_version: int) -> None:
        """The policy of rollouts opened from now on that name none. Raises GatewayError."""
        await self._post("/admin/policy", {"model": model, "policy_version": policy_version})

    async def pause(self) -> None:
        """Have model requests wait, for the time of a publish. Raises GatewayError."""
        await self._post("/admin/pause", {})

    async def resume(self) -> None:
        """Let waiting model requests go on. Raises GatewayError."""
        await self._post("/admin/resume", {})

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.key}"}
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with self.http.post(f"{self.url}{path}", json=body, headers=headers) as response:
                    text = await response.text()
                    if response.status >= 400:
                        raise self._unexpected(path, f"status {response.status}: {text[:500]}")
                    return cast("dict[str, Any]", await response.json(content_type=None)) if text else {}
            except (aiohttp.ClientError, ConnectionError, TimeoutError, ValueError) as error:
                if attempt == _ATTEMPTS:
                    raise self._unexpected(path, f"{type(error).__name__}: {error}") from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _unexpected(self, path: str, found: str) -> GatewayError:
        fix = "look whether the gateway still runs, and into its log"
        return GatewayError(f"POST {path} of the gateway at {self.url}", found, fix)


@asynccontextmanager
async def attach_gateway(url: str, admin_key: str) -> AsyncGenerator[GatewayClient]:
    """The admin API of a running gateway, for as long as the block runs."""
    # uvicorn closes idle connections after 5 s; a request on a closing one is lost.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S, sock_connect=5.0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        yield GatewayClient(url.rstrip("/"), admin_key, http)
