"""The gate that model requests pass: shut for the time of a publish, so that they wait and never fail.

It knows nothing about what is published. The admin API shuts and opens it, every model call passes it.
"""

from __future__ import annotations

import asyncio
import time


class Gate:
    """Open unless paused."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    @property
    def paused(self) -> bool:
        """True while requests wait."""
        return not self._open.is_set()

    def pause(self) -> None:
        """Have requests wait from now on; those that passed go on."""
        self._open.clear()

    def resume(self) -> None:
        """Let the waiting ones go on."""
        self._open.set()

    async def passed(self) -> float:
        """Wait until the gate is open; the seconds that took."""
        if self._open.is_set():
            return 0.0
        start_s = time.monotonic()
        await self._open.wait()
        return time.monotonic() - start_s
