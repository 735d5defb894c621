"""The OpenAI client of a trainable model: one object, whose calls go to the rollout of the code that makes them.

It knows nothing about how rollouts open (scope.py). Outside of a rollout its calls go to the engine itself and leave no
record. Made by model.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from openai import AsyncOpenAI
from openai._models import FinalRequestOptions

Address = Callable[[], Awaitable[tuple[str, str | None]]]
"""Base URL for a call that is made here and now, and the model to ask for; None leaves it as the caller has it."""


class RolloutClient(AsyncOpenAI):
    """`AsyncOpenAI` that finds its address anew for each request; everything else is the official client."""

    def __init__(self, address: Address) -> None:
        super().__init__(base_url="http://rollout.invalid/v1", api_key="the-address-is-the-key", timeout=600)
        self._address = address

    async def _prepare_options(self, options: FinalRequestOptions) -> FinalRequestOptions:
        # The SDK's hook for changing a request before it is built; nothing is shared between requests here.
        options = await super()._prepare_options(options)
        base_url, model = await self._address()
        options.url = f"{base_url}/{options.url.lstrip('/')}"
        if model is not None and isinstance(options.json_data, dict):
            options.json_data = {**cast("dict[str, Any]", options.json_data), "model": model}
        return options
