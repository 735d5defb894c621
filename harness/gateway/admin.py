"""The gateway's admin API under `/admin`, with a key of its own: open and seal rollouts, name the policy, pause.

It knows nothing about how calls are answered. Agents never learn of it: their keys open nothing here.
app.py routes to it; harness/gateway/client.py is its client.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from harness.gateway.dialects import chat
from harness.gateway.failures import Failure
from harness.gateway.gate import Gate
from harness.gateway.http import header, read_body, send_json
from harness.gateway.keys import KeyRing, LiveRollout, ToolDoor
from harness.gateway.model import ModelGateway
from harness.gateway.otlp_door import SpanDoor
from harness.gateway.tools import ToolGateway

_MAX_BODY_BYTES = 1_000_000
_KEPT_SEALS = 10_000


class _ToolServer(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    """MCP address of this rollout's session."""
    name: str = "tools"
    """Prefix of tool names that collide."""
    headers: dict[str, str] = {}
    """Sent with every request."""
    repeats_safely: bool = False
    """The server keeps the once law itself."""


class _Opening(msgspec.Struct, forbid_unknown_fields=True):
    rollout_id: str
    """Unique over all runs."""
    run_id: str
    """Its run."""
    group_id: str
    """Its group."""
    task_id: str
    """Its task."""
    trace_id: str
    """32 hex digits; all its spans carry it."""
    parent_span_id: str | None = None
    """Span that the gateways' spans hang under."""
    model: str | None = None
    """Name the engine serves its policy under; None for the default policy."""
    policy_version: int | None = None
    """Version of that policy; goes with `model`."""
    sampling: dict[str, Any] = {}
    """Sampling parameters in force."""
    limits: dict[str, float | None] = {}
    """`turns`, `tokens`, `wall_s`; None for no limit."""
    tool_servers: list[_ToolServer] = []
    """Its tool servers."""
    allowed_tools: list[str] | None = None
    """Tools it may use; None for all."""


class Policy(msgspec.Struct, forbid_unknown_fields=True):
    """The policy of rollouts that name none."""

    model: str
    """Name the engine serves it under."""
    policy_version: int
    """Its version."""


@dataclass(frozen=True, slots=True)
class Doors:
    """What the admin API acts on."""

    keys: KeyRing
    """All rollouts."""
    model: ModelGateway
    """The model side."""
    tools: ToolGateway
    """The tool side."""
    spans: SpanDoor
    """The agents' own spans."""
    gate: Gate
    """Shut during a publish."""


@dataclass(slots=True)
class AdminApi:
    """Answers admin requests."""

    doors: Doors
    """What they act on."""
    admin_key: str = field(repr=False)
    """Bearer key that every request must carry."""
    public_url: Callable[[], str]
    """Base address that agents are told."""
    policy: Policy
    """Policy of rollouts that name none."""
    _seals: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    async def handle_admin(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; `path` is what follows `/admin`."""
        status, answer = 401, b'{"error": {"message": "the admin key is missing or wrong"}}'
        if hmac.compare_digest(header(scope, b"authorization").encode(), f"Bearer {self.admin_key}".encode()):
            content = await read_body(receive, _MAX_BODY_BYTES)
            status, answer = await self._act(scope["method"], path.strip("/").split("/"), content)
        await send_json(send, status, answer)

    async def _act(self, method: str, parts: list[str], content: bytes) -> tuple[int, bytes]:
        try:
            match method, parts:
                case "POST", ["rollouts"]:
                    return self._open(msgspec.json.decode(content, type=_Opening))
                case "POST", ["rollouts", rollout_id, "seal"]:
                    return await self._seal(rollout_id)
                case "POST", ["policy"]:
                    self.policy = msgspec.json.decode(content, type=Policy)
                case "POST", ["pause"]:
                    self.doors.gate.pause()
                case "POST", ["resume"]:
                    self.doors.gate.resume()
                case _:
                    return _error(404, f"there is no {method} /admin/{'/'.join(parts)}")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return _error(400, f"the body is not what this call takes: {error}")
        return 200, msgspec.json.encode({"paused": self.doors.gate.paused, "policy": self.policy})

    def _open(self, asked: _Opening) -> tuple[int, bytes]:
        rollout = self.doors.keys.get(asked.rollout_id)
        if asked.rollout_id in self._seals or (rollout is not None and rollout.sealed):
            return _error(409, f"rollout {asked.rollout_id!r} has ended; a retry is a new rollout")
        if rollout is None:
            rollout = self._live(asked)
            self.doors.keys.open(rollout)
        base = f"{self.public_url()}/r/{rollout.key}"
        doors = {"key": rollout.key, "model_url": f"{base}/v1", "mcp_url": f"{base}/mcp", "otlp_url": f"{base}/otlp"}
        return 200, msgspec.json.encode(doors)

    def _live(self, asked: _Opening) -> LiveRollout:
        policy = self.policy
        if asked.model is not None:
            policy = Policy(asked.model, asked.policy_version if asked.policy_version is not None else -1)
        return LiveRollout(
            rollout_id=asked.rollout_id,
            run_id=asked.run_id,
            group_id=asked.group_id,
            task_id=asked.task_id,
            trace_id=asked.trace_id,
            parent_span_id=asked.parent_span_id,
            model=policy.model,
            policy_version=policy.policy_version,
            sampling=asked.sampling,
            limits={name: value for name, value in asked.limits.items() if value is not None},
            tool_servers=tuple(ToolDoor(s.name, s.url, s.headers, s.repeats_safely) for s in asked.tool_servers),
            allowed_tools=frozenset(asked.allowed_tools) if asked.allowed_tools is not None else None,
        )

    async def _seal(self, rollout_id: str) -> tuple[int, bytes]:
        """End a rollout: its key dies, what runs is ended, and all its spans are on disk (laws 7 and 8)."""
        rollout = self.doors.keys.get(rollout_id)
        if rollout is None:
            known = self._seals.get(rollout_id)
            return (200, msgspec.json.encode(known)) if known else _error(404, f"no rollout {rollout_id!r} is open")
        rollout.sealed = True
        summary = await self.doors.model.close_rollout(rollout)
        await self.doors.tools.close_rollout(rollout)
        self.doors.keys.forget(rollout)
        seal = {**summary, **_seal_of(rollout)}
        self._seals[rollout_id] = seal
        if len(self._seals) > _KEPT_SEALS:
            self._seals.pop(next(iter(self._seals)))
        return 200, msgspec.json.encode(seal)


def _seal_of(rollout: LiveRollout) -> Mapping[str, Any]:
    failure = rollout.infrastructure_error
    return {
        "tool_calls": rollout.tool_calls,
        "limit_hit": rollout.limit_hit,
        "infrastructure_error": f"{failure[0].value}: {failure[1]}" if failure is not None else None,
    }


def _error(status: int, message: str) -> tuple[int, bytes]:
    return status, chat.write_error(Failure(status, message, "invalid_request_error"))
