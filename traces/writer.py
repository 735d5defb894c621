"""One thread that commits the spans of many async callers together, and tells each when its own are on disk.

It knows nothing about what the spans say.
The gateways append through it: an answer is returned to the agent only after `append` has returned (law 8).
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from traces.span import Span
from traces.spanlog import SpanLog

_MOST_SPANS = 512
"""Spans in one transaction; more wait for the next, so that the first are not kept waiting."""


@dataclass(frozen=True, slots=True)
class _Request:
    spans: Sequence[Span]
    """What to write."""
    loop: asyncio.AbstractEventLoop
    """Where the caller waits."""
    done: asyncio.Future[None]
    """Resolved after the commit."""


class StoreWriter:
    """`async with StoreWriter(store) as writer: await writer.append([span])`; many loops and tasks may share it."""

    def __init__(self, store: SpanLog) -> None:
        self._store = store
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="store-writer", daemon=True)
        self._closed = False
        self._thread.start()

    async def append(self, spans: Sequence[Span]) -> None:
        """Return once the spans are committed; raises what `SpanLog.append_spans` raises."""
        if self._closed:
            raise RuntimeError(f"append {len(spans)} spans: this StoreWriter is closed; make a new one")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._requests.put(_Request(spans, loop, done))
        await done

    async def close(self) -> None:
        """Commit what is waiting, then end the thread; the store stays open."""
        self._closed = True
        self._requests.put(None)
        await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    def _work(self) -> None:
        while (first := self._requests.get()) is not None:
            batch, stop = self._gather(first)
            self._commit(batch)
            if stop:
                return

    def _gather(self, first: _Request) -> tuple[list[_Request], bool]:
        batch, size = [first], len(first.spans)
        while size < _MOST_SPANS:
            try:
                request = self._requests.get_nowait()
            except queue.Empty:
                return batch, False
            if request is None:
                return batch, True
            batch.append(request)
            size += len(request.spans)
        return batch, False

    def _commit(self, batch: list[_Request]) -> None:
        try:
            self._store.append_spans([span for request in batch for span in request.spans])
        except Exception as error:  # noqa: BLE001 - handed to the callers, who raise it
            if len(batch) == 1:
                _answer(batch[0], error)
                return
            # One caller's bad span must not fail the others: each by itself.
            for request in batch:
                self._commit([request])
            return
        for request in batch:
            _answer(request)


def _answer(request: _Request, error: Exception | None = None) -> None:
    # A caller whose loop has ended waits for nothing any more.
    with contextlib.suppress(RuntimeError):
        request.loop.call_soon_threadsafe(_resolve, request.done, error)


def _resolve(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(None)
