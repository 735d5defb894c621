"""Calls the admin API of one or several gateways: opens rollouts, seals them, names the policy, pauses and resumes.

Several share a store and an engine; a rollout lives in one of them, which its id decides and its addresses name.
It knows nothing about agents, sessions or models. Called by rollout.py, training and the command line.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Mapping, Sequence
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
    """The gateways' admin API, over connections that stay open. Made by `attach_gateway`."""

    urls: Sequence[str]
    """Base addresses of the gateways, always in the same order."""
    key: str = field(repr=False)
    """Admin key."""
    http: aiohttp.ClientSession
    """Pooled connections."""

    async def open_rollout(self, request: Mapping[str, Any]) -> OpenedRollout:
        """Open a rollout's doors; `request` as in app.py. Raises GatewayError."""
        url = self._url_of(str(request.get("rollout_id")))
        answer = await self._post(url, "/admin/rollouts", request)
        missing = [name for name in OpenedRollout.__dataclass_fields__ if not isinstance(answer.get(name), str)]
        if missing:
            raise self._unexpected(url, "/admin/rollouts", f"an answer without {missing}")
        return OpenedRollout(answer["key"], answer["model_url"], answer["mcp_url"], answer["otlp_url"])

    async def seal(self, rollout_id: str) -> Seal:
        """End a rollout's key; all its spans are on disk when this returns. Raises GatewayError."""
        return seal_from_dict(await self._post(self._url_of(rollout_id), f"/admin/rollouts/{rollout_id}/seal", {}))

    async def set_policy(self, model: str, policy_version: int) -> None:
        """The policy of rollouts opened from now on that name none. Raises GatewayError."""
        await self._post_to_all("/admin/policy", {"model": model, "policy_version": policy_version})

    async def pause(self) -> None:
        """Have model requests wait, for the time of a publish. Raises GatewayError."""
        await self._post_to_all("/admin/pause", {})

    async def resume(self) -> None:
        """Let waiting model requests go on. Raises GatewayError."""
        await self._post_to_all("/admin/resume", {})

    def _url_of(self, rollout_id: str) -> str:
        """The gateway of a rollout: the same for every process that asks."""
        return self.urls[zlib.crc32(rollout_id.encode()) % len(self.urls)]

    async def _post_to_all(self, path: str, body: Mapping[str, Any]) -> None:
        await asyncio.gather(*(self._post(url, path, body) for url in self.urls))

    async def _post(self, url: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.key}"}
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with self.http.post(f"{url}{path}", json=body, headers=headers) as response:
                    text = await response.text()
                    if response.status >= 400:
                        raise self._unexpected(url, path, f"status {response.status}: {text[:500]}")
                    return cast("dict[str, Any]", await response.json(content_type=None)) if text else {}
            except (aiohttp.ClientError, ConnectionError, TimeoutError, ValueError) as error:
                if attempt == _ATTEMPTS:
                    raise self._unexpected(url, path, f"{type(error).__name__}: {error}") from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _unexpected(self, url: str, path: str, found: str) -> GatewayError:
        fix = "look whether the gateway still runs, and into its log"
        return GatewayError(f"POST {path} of the gateway at {url}", found, fix)


@asynccontextmanager
async def attach_gateway(url: str | Sequence[str], admin_key: str) -> AsyncGenerator[GatewayClient]:
    """The admin API of a running gateway, or of several with one key, for as long as the block runs."""
    # uvicorn closes idle connections after 5 s; a request on a closing one is lost.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S, sock_connect=5.0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        urls = [url] if isinstance(url, str) else url
        yield GatewayClient([one.rstrip("/") for one in urls], admin_key, http)
