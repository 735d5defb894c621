"""Several servers of one rollout as one: listings joined, requests sent to whose they are, streams run together.

Names of tools and prompts get their server's name in front only where two servers have the same one; of resources
with the same address the first server's counts. All servers are asked in the protocol version the agent speaks.
It knows nothing about the once law or spans. tools.py makes one for a rollout with more than one server, or none.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast
from uuid import uuid4

from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY

from harness.gateway.events import Event
from harness.gateway.exchange import Exchange, Reply, error_reply, our_reply
from harness.gateway.servers import Change, Route, pass_on
from harness.gateway.toolserver import (
    SESSION_HEADER,
    Answer,
    Headers,
    ToolServerFailure,
    ToolServerLink,
    forwarded_headers,
    objects_of,
    params_of,
    with_header,
    with_method,
    with_name,
)

_NAME = "harness-tool-gateway"
_STATELESS = "2026-07-28"
_INVALID_PARAMS = -32602
_METHOD_NOT_FOUND = -32601
_MAX_PAGES = 100
_LISTS = {
    "tools/list": ("tools", "name"),
    "prompts/list": ("prompts", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
}
"""Method → where its result keeps the list, and what tells its items apart."""
_OPENINGS = ("initialize", "server/discover")
_OF_ONE = {
    "prompts/get": ("prompts/list", "name"),
    "resources/read": ("resources/list", "uri"),
    "resources/subscribe": ("resources/list", "uri"),
    "resources/unsubscribe": ("resources/list", "uri"),
}
"""Method for one server's item → the listing that says whose it is, and the parameter that names it."""


class ManyServers:
    """A rollout's servers, in the order in which their tools are listed."""

    def __init__(self, links: Sequence[ToolServerLink], allowed: frozenset[str] | None) -> None:
        self._links = links
        self._allowed = allowed
        self._sessions: dict[str, list[str | None]] = {}
        self._owners: dict[str, dict[str, tuple[int, str]]] = {}

    async def relay(self, exchange: Exchange, method: str, message: dict[str, Any] | None, change: Change) -> None:
        """Answer one request from the servers it concerns."""
        asked = str((message or {}).get("method", ""))
        if message is None or asked == "subscriptions/listen":
            await self._stream(exchange, method, message, change)
        elif "method" not in message:
            await self._answer_server(exchange, message)
        elif message.get("id") is None:
            await asyncio.gather(*(self._status(index, exchange, message) for index in range(len(self._links))))
            await exchange.reply(Reply(Event(b"", framed=False), 202, []))
        elif asked in _LISTS:
            key, _ = _LISTS[asked]
            items = await self._list(exchange, asked, message)
            result = {key: items, "ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
            await exchange.reply(our_reply({"jsonrpc": "2.0", "id": message["id"], "result": result}))
        elif asked in _OPENINGS:
            await self._open(exchange, message)
        elif asked in _OF_ONE:
            await self._of_one(exchange, message)
        else:
            await self._first_good(exchange, message)

    async def route(self, exchange: Exchange, name: str) -> Route | None:
        """The server and own name of a tool."""
        owner = await self._owner(exchange, "tools/list", name)
        if owner is None:
            return None
        index, own_name = owner
        return Route(self._links[index], own_name, self._headers(index, exchange), self._renamed(index))

    def _headers(self, index: int, exchange: Exchange) -> list[tuple[str, str]]:
        headers = forwarded_headers(exchange.headers)
        sessions = self._sessions.get(exchange.session or "")
        return with_header(headers, SESSION_HEADER, sessions[index]) if sessions else headers

    def _renamed(self, index: int) -> Change:
        """Requests of a server get its number in their id, so that the agent's answer finds back."""

        async def change(event: Event) -> Event:
            message = event.message
            if message is None or "method" not in message or message.get("id") is None:
                return event
            return event.replaced({**message, "id": f"{index}:{json.dumps(message['id'])}"})

        return change

    async def _answer_server(self, exchange: Exchange, message: dict[str, Any]) -> None:
        index, _, own_id = str(message.get("id")).partition(":")
        if not index.isdigit() or int(index) >= len(self._links):
            await exchange.reply(error_reply(None, _INVALID_PARAMS, f"No server asked {message.get('id')!r}", 400))
            return
        status = await self._status(int(index), exchange, {**message, "id": json.loads(own_id)})
        await exchange.reply(Reply(Event(b"", framed=False), status, []))

    async def _status(self, index: int, exchange: Exchange, message: Mapping[str, Any]) -> int:
        async with self._links[index].ask("POST", self._headers(index, exchange), message) as answer:
            return answer.status

    async def _ask(self, index: int, exchange: Exchange, message: Mapping[str, Any]) -> tuple[dict[str, Any], Answer]:
        """One server's answer; what it says before is left out."""
        headers = with_method(self._headers(index, exchange), str(message.get("method")))
        async with self._links[index].ask("POST", headers, message) as answer:
            async for event in answer.events():
                if event.message is not None and event.answers:
                    return event.message, answer
        detail = f"HTTP status {answer.status} without an MCP answer"
        raise ToolServerFailure("refused", f"server {self._links[index].door.name!r}: {detail}", reached=True)

    async def _all(self, exchange: Exchange, message: Mapping[str, Any]) -> list[tuple[dict[str, Any], Answer]]:
        return await asyncio.gather(*(self._ask(index, exchange, message) for index in range(len(self._links))))

    async def _pages(self, index: int, exchange: Exchange, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """One server's whole list; empty where it doesn't know such lists."""
        key, identity = _LISTS[message["method"]]
        items: list[dict[str, Any]] = []
        params = {name: value for name, value in params_of(message).items() if name != "cursor"}
        for _ in range(_MAX_PAGES):
            answer, _ = await self._ask(index, exchange, {**message, "params": params})
            error = _error_of(answer)
            if error is not None and error.get("code") == _METHOD_NOT_FOUND:
                return []
            if error is not None:
                raise ToolServerFailure("refused", f"{message['method']}: {error.get('message')}", reached=True)
            result: dict[str, Any] = answer.get("result") or {}
            items += [item for item in objects_of(result.get(key)) if isinstance(item.get(identity), str)]
            cursor = result.get("nextCursor")
            if cursor is None:
                return items
            params["cursor"] = cursor
        raise ToolServerFailure("refused", f"{message['method']} did not end after {_MAX_PAGES} pages", reached=True)

    async def _list(self, exchange: Exchange, method: str, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The joined list as the agent sees it; notes whose each item is."""
        identity = _LISTS[method][1]
        listed = await asyncio.gather(*(self._pages(index, exchange, message) for index in range(len(self._links))))
        counts: dict[str, int] = {}
        for items in listed:
            for item in items:
                counts[item[identity]] = counts.get(item[identity], 0) + 1
        owners: dict[str, tuple[int, str]] = {}
        joined: list[dict[str, Any]] = []
        for index, items in enumerate(listed):
            for item in items:
                own: str = item[identity]
                prefixed = identity == "name" and counts[own] > 1
                name = f"{self._links[index].door.name}__{own}" if prefixed else own
                allowed = method != "tools/list" or self._allowed is None or {name, own} & self._allowed
                if allowed and name not in owners:
                    owners[name] = (index, own)
                    joined.append({**item, identity: name})
        self._owners[method] = owners
        return joined

    async def _owner(self, exchange: Exchange, listing: str, name: str) -> tuple[int, str] | None:
        if name not in self._owners.get(listing, {}):
            message = {"jsonrpc": "2.0", "id": f"list-{uuid4().hex}", "method": listing, "params": _envelope(exchange)}
            await self._list(exchange, listing, message)
        return self._owners[listing].get(name)

    async def _of_one(self, exchange: Exchange, message: dict[str, Any]) -> None:
        """A request about an item that one of the servers lists; of unlisted ones each server is asked."""
        listing, parameter = _OF_ONE[message["method"]]
        name = str(params_of(message).get(parameter))
        owner = await self._owner(exchange, listing, name)
        if owner is None:
            await self._first_good(exchange, message)
            return
        index, own = owner
        renamed = {**message, "params": {**params_of(message), parameter: own}}
        headers = self._headers(index, exchange)
        headers = with_name(headers, own) if own != name else headers
        async with self._links[index].ask("POST", headers, renamed) as answer:
            await pass_on(exchange, answer, self._renamed(index))

    async def _first_good(self, exchange: Exchange, message: dict[str, Any]) -> None:
        """Every server is asked; the first result is the answer, or the last error."""
        answers = [answer for answer, _ in await self._all(exchange, message)] or [{**_head(message), "result": {}}]
        good = [answer for answer in answers if "result" in answer]
        await exchange.reply(our_reply((good or answers[-1:])[0]))

    async def _open(self, exchange: Exchange, message: dict[str, Any]) -> None:
        """The greeting of all servers: what any of them can do, in a version that all speak."""
        answers = await self._all(exchange, message)
        refused = [answer for answer, _ in answers if "result" not in answer]
        if refused:
            await exchange.reply(our_reply(refused[0]))
            return
        spoken = params_of(message).get("protocolVersion")
        named = {"protocolVersion": spoken} if spoken else {"supportedVersions": [_STATELESS]}
        nothing: dict[str, Any] = {**named, "capabilities": {"tools": {}}}
        results: list[dict[str, Any]] = [answer["result"] for answer, _ in answers] or [nothing]
        capabilities: dict[str, Any] = {}
        for result in results:
            for name, value in result.get("capabilities", {}).items():
                capabilities[name] = {**capabilities.get(name, {}), **value}
        joined = {**results[0], "capabilities": capabilities, "serverInfo": {"name": _NAME, "version": "1"}}
        said = [str(result["instructions"]) for result in results if result.get("instructions")]
        if said:
            joined["instructions"] = "\n\n".join(said)
        if "protocolVersion" in joined:
            joined["protocolVersion"] = min(str(result["protocolVersion"]) for result in results)
        if "supportedVersions" in joined:
            spoken_by = [cast("list[str]", result["supportedVersions"]) for result in results]
            common = [version for version in spoken_by[0] if all(version in versions for versions in spoken_by)]
            joined["supportedVersions"] = sorted(set(common), reverse=True)
        await exchange.reply(
            Reply(our_reply({**_head(message), "result": joined}).event, 200, self._session([a for _, a in answers]))
        )

    def _session(self, answers: Sequence[Answer]) -> Headers:
        """Headers of a greeting; with a session of ours where a server opened one."""
        sessions = [answer.session for answer in answers]
        headers = [("content-type", "application/json")]
        if not any(sessions):
            return headers
        token = uuid4().hex
        self._sessions[token] = sessions
        return [*headers, (SESSION_HEADER, token)]

    async def _stream(self, exchange: Exchange, method: str, message: dict[str, Any] | None, change: Change) -> None:
        """The same stream of every server, run together; servers that have none are left out."""
        opened = 0

        async def one(index: int) -> None:
            nonlocal opened
            renamed = self._renamed(index)
            async with self._links[index].ask(method, self._headers(index, exchange), message) as answer:
                if not answer.streams:
                    return
                opened += 1
                await exchange.emit(b"", answer)
                async for event in answer.events():
                    # One server's end is not the end of the others.
                    if message is None or not event.answers:
                        await exchange.emit((await change(await renamed(event))).raw, answer)

        try:
            async with asyncio.TaskGroup() as group:
                for index in range(len(self._links)):
                    group.create_task(one(index))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        if not opened:
            status = 200 if method == "DELETE" else 405
            await exchange.reply(Reply(Event(b"", framed=False), status, []))


def _envelope(exchange: Exchange) -> dict[str, Any]:
    """Parameters of a request of our own, in the version that the agent speaks."""
    version = exchange.header(MCP_PROTOCOL_VERSION_HEADER)
    if version is None or version < _STATELESS:
        return {}
    info = {"name": _NAME, "version": "1"}
    keys = (PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY)
    return {"_meta": dict(zip(keys, (version, info, {}), strict=True))}


def _error_of(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """The error that a server answers with, in whatever form; None for a result."""
    error = answer.get("error")
    if error is None:
        return None
    return cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": str(error)}


def _head(message: Mapping[str, Any]) -> dict[str, Any]:
    """The head of an answer to a request."""
    return {"jsonrpc": "2.0", "id": message.get("id")}
