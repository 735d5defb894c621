"""Rescoring against real vLLM: read off its own words, a policy gets the log-probabilities that it sampled with."""

from __future__ import annotations

from typing import Any

import aiohttp
import numpy as np
import pytest

from harness.engine import Engine
from traces.trajectory import Turn
from training.relabel import Relabeller

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

MESSAGES = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Please cancel order 17."}]
NO_IDS, NO_LOGPROBS = np.zeros(0, np.int32), np.zeros(0, np.float32)


async def sampled(engine: Engine, http: aiohttp.ClientSession) -> dict[str, Any]:
    body = {
        "model": engine.model_name, "messages": MESSAGES, "temperature": 1.0, "seed": 5, "max_tokens": 400,
        "logprobs": True, "return_token_ids": True,
    }  # fmt: skip
    async with http.post(f"{engine.url}/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


def without_tokens(message: dict[str, Any]) -> Turn:
    said = {"role": "assistant", "content": message["content"]}
    return Turn(
        index=0, prompt_ids_T=NO_IDS, completion_ids_T=NO_IDS, logprobs_T=NO_LOGPROBS, policy_version=-1, model="m",
        finish_reason="stop", input_messages=MESSAGES, tools=[], output_message=said, span_id="s", start_ns=0, end_ns=1,
    )  # fmt: skip


async def test_rescoring_a_policys_own_words_gives_what_it_sampled_with(engine: Engine) -> None:
    async with aiohttp.ClientSession() as http:
        reply = await sampled(engine, http)
        choice = reply["choices"][0]
        tokens = await Relabeller(http, engine.url, engine.model_name).tokens(without_tokens(choice["message"]))
    assert tokens is not None
    assert tokens.prompt_ids_T.tolist() == reply["prompt_token_ids"]
    if tokens.completion_ids_T.tolist() != choice["token_ids"]:
        pytest.skip("the tokenizer cuts this answer otherwise than it was sampled: there is nothing to compare")
    logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    np.testing.assert_allclose(tokens.logprobs_T, logprobs, atol=1e-3)
