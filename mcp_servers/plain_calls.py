"""Plain `tools/call` requests, answered without the SDK's way through a dozen models, which costs five times the call.

It takes only requests that leave nothing to judge: a JSON-RPC call with the headers and fields that either protocol
version asks for, and no others. Everything else, and everything that ends in a protocol error, is the SDK's to answer.
The SDK's middleware, which writes the OpenTelemetry span, runs around both. Used by serve.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from mcp.server.context import ServerRequestContext
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    CallToolResult,
    ClientCapabilities,
    Implementation,
)
from pydantic import ValidationError

LATEST, HANDSHAKE = "2026-07-28", "2025-11-25"
MAX_BODY_BYTES = 4 * 1024 * 1024
"""The SDK's own limit."""
MEMBERS = {"jsonrpc", "id", "method", "params"}
PARAMS = {"name", "arguments", "_meta"}
# Headers that carry arguments, or that belong to a stateful session: rules of their own, kept by the SDK.
SPECIAL_HEADERS = ("mcp-param-", "mcp-session-id", "transfer-encoding", "content-encoding", "origin")
Headers = dict[str, str]


@dataclass(frozen=True, slots=True)
class PlainCall:
    """One request that is answered here."""

    version: str
    """Protocol version."""
    id: int | str
    """Its JSON-RPC id."""
    params: dict[str, Any]
    """`name`, `arguments` and `_meta`, as sent."""

    @property
    def meta(self) -> dict[str, Any]:
        """The request's `_meta`; empty where there is none."""
        return self.params.get("_meta") or {}

    def context(self) -> ServerRequestContext[Any, Any]:
        """What the SDK's middleware reads of a request."""
        return ServerRequestContext(
            session=cast("Any", None),
            lifespan_context=None,
            protocol_version=self.version,
            method="tools/call",
            params=self.params,
            request_id=self.id,
            meta=cast("Any", self.meta or None),
        )

    def body(self, result: CallToolResult, server_info: Mapping[str, Any]) -> bytes:
        """The JSON-RPC answer as this protocol version words it."""
        answer = result.model_dump(by_alias=True, mode="json", exclude_none=True, include={"content", "is_error"})
        if result.structured_content is not None:
            answer["structuredContent"] = result.structured_content
        if self.version == LATEST:
            answer |= {"resultType": "complete", "_meta": {SERVER_INFO_META_KEY: server_info}}
        return json.dumps({"jsonrpc": "2.0", "id": self.id, "result": answer}, separators=(",", ":")).encode()


def plain_headers(scope: Mapping[str, Any], allowed_hosts: tuple[str, ...] | None) -> Headers | None:
    """The headers of a request whose body may be a plain call; None where the SDK is to judge the request.

    `allowed_hosts` are the host names under which loopback may be spoken to; None allows any.
    """
    if scope["method"] != "POST":
        return None
    pairs: list[tuple[bytes, bytes]] = scope["headers"]
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
    if len(headers) != len(pairs) or any(name.startswith(SPECIAL_HEADERS) for name in headers):
        return None
    length, host = headers.get("content-length", ""), headers.get("host", "")
    agreed = (
        headers.get("mcp-protocol-version") in (LATEST, HANDSHAKE)
        and headers.get("content-type") == "application/json"
        and "application/json" in headers.get("accept", "")
        and length.isascii()
        and length.isdigit()
        and int(length) <= MAX_BODY_BYTES
        and (allowed_hosts is None or host in allowed_hosts or host.rpartition(":")[0] in allowed_hosts)
    )
    return headers if agreed else None


def plain_call(headers: Headers, body: bytes) -> PlainCall | None:
    """The call in a request's body; None where the SDK is to judge it. `headers` are those of `plain_headers`."""
    # Escaped surrogates may stand alone, and then no text holds them: the SDK judges.
    if b"\\ud" in body or b"\\uD" in body:
        return None
    try:
        request = _object(json.loads(body))
    except (ValueError, RecursionError):
        return None
    if request is None or set(request) != MEMBERS or request["jsonrpc"] != "2.0" or request["method"] != "tools/call":
        return None
    version, params = headers["mcp-protocol-version"], _object(request["params"])
    if params is None or not _are_params(params) or type(request["id"]) not in (int, str):
        return None
    agreed = _agrees_2026(headers, params) if version == LATEST else "progressToken" not in params.get("_meta", {})
    return PlainCall(version, request["id"], params) if agreed else None


def _object(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if type(value) is dict else None


def _are_params(params: dict[str, Any]) -> bool:
    return (
        set(params) <= PARAMS
        and type(params.get("name")) is str
        and type(params.get("arguments", {})) is dict
        and type(params.get("_meta", {})) is dict
    )


def _agrees_2026(headers: Headers, params: dict[str, Any]) -> bool:
    """Whether headers and `_meta` say the same, and all that the protocol of 2026-07-28 wants them to say."""
    meta = params.get("_meta", {})
    if (
        meta.get(PROTOCOL_VERSION_META_KEY) != LATEST
        or headers.get("mcp-method") != "tools/call"
        or headers.get("mcp-name") != params["name"]
        or params["name"].startswith("=?")  # that is how encoded header values begin
        or "progressToken" in meta
        or type(meta.get(CLIENT_CAPABILITIES_META_KEY)) is not dict
    ):
        return False
    try:
        ClientCapabilities.model_validate(meta[CLIENT_CAPABILITIES_META_KEY], by_name=False)
        if CLIENT_INFO_META_KEY in meta:
            Implementation.model_validate(meta[CLIENT_INFO_META_KEY], by_name=False)
    except ValidationError:
        return False
    return True
