"""The model gateway in front of real vLLM, with the official client: exact tokens, tools, streams, adapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from openai import AsyncOpenAI

from harness.engine import Engine
from harness.gateway.client import OpenedRollout
from harness.gateway.replies import ChatChoice, ChatReply
from harness.gateway.upstream import Upstream
from tests.contracts.conftest import Adapters
from tests.model_doors import TOOLS, Doors, anthropic_client, client, serve_doors
from tests.talks import DIALECTS, Talk, assert_each_turn_reads_the_one_before

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
ASK: list[Any] = [{"role": "system", "content": "You help."}, {"role": "user", "content": "cancel #W1, please"}]


async def chat(sdk: AsyncOpenAI, messages: list[Any], *, stream: bool = False) -> dict[str, Any]:
    """One answer as an SDK would put it into its history."""
    if not stream:
        answer = await sdk.chat.completions.create(model="any", messages=messages, tools=TOOLS)
        return answer.choices[0].message.model_dump(exclude_none=True)
    said = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    async for chunk in await sdk.chat.completions.create(model="any", messages=messages, tools=TOOLS, stream=True):
        for choice in chunk.choices:
            said["content"] += choice.delta.content or ""
            for part in choice.delta.tool_calls or ():
                blank = {"id": part.id, "type": "function", "function": {"name": "", "arguments": ""}}
                call = calls.setdefault(part.index, blank)
                assert part.function is not None
                call["function"]["name"] += part.function.name or ""
                call["function"]["arguments"] += part.function.arguments or ""
    return {**said, **({"tool_calls": list(calls.values())} if calls else {})}


def follow_up(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """What comes after an answer: tool results, or the user again."""
    calls = answer.get("tool_calls")
    if not calls:
        return [{"role": "user", "content": "and then?"}]
    return [{"role": "tool", "tool_call_id": call["id"], "content": '{"status": "pending"}'} for call in calls]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("takes_ids", [True, False])
async def test_random_answers_are_continued_token_for_token(
    engine: Engine, tmp_path: Path, stream: bool, takes_ids: bool
) -> None:
    async with serve_doors(engine.url, tmp_path) as doors:
        answerer = doors.app.doors.model.answerer
        for number in range(6):
            answerer.sampler.takes_ids_in_chat = takes_ids
            rollout_id = f"r-{number}"
            # A hot policy says what no template would: odd spacing, cut-off turns, broken JSON.
            sampling = {"temperature": 1.0 + number / 5, "max_tokens": 24 + number}
            opened = await doors.open(rollout_id, sampling=sampling)
            messages = list(ASK)
            async with client(opened) as sdk:
                for _ in range(4):
                    answer = await chat(sdk, messages, stream=stream)
                    messages += [answer, *follow_up(answer)]
            seal = await doors.admin.seal(rollout_id)
            assert (seal.turns, seal.drift_tokens, dict(seal.forks)) == (4, 0, {})
            assert_each_turn_reads_the_one_before(doors, 4, rollout_id)
        assert answerer.sampler.takes_ids_in_chat is takes_ids


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS[1:])
async def test_every_dialect_continues_what_a_hot_policy_sampled(
    engine: Engine, tmp_path: Path, dialect: str, stream: bool
) -> None:
    async with serve_doors(engine.url, tmp_path) as doors:
        for number in range(3):
            rollout_id = f"r-{number}"
            sampling = {"temperature": 0.8 + number / 3, "max_tokens": 40 + number}
            talk = Talk(dialect, await doors.open(rollout_id, sampling=sampling), stream=stream)
            await talk.say("cancel #W1, please")
            for _ in range(3):
                calls = talk.calls()
                await (talk.results(*['{"status": "pending"}' for _ in calls]) if calls else talk.say("and then?"))
            seal = await doors.admin.seal(rollout_id)
            assert (seal.turns, seal.drift_tokens, dict(seal.forks)) == (4, 0, {})
            assert_each_turn_reads_the_one_before(doors, 4, rollout_id)


async def test_texts_are_completed_further_and_prompts_counted_by_real_vllm(engine: Engine, tmp_path: Path) -> None:
    async with serve_doors(engine.url, tmp_path) as doors:
        opened = await doors.open()
        sdk, other = client(opened), anthropic_client(opened)
        text = "The order #W1 is"
        for stream in (False, True, False):
            if stream:
                chunks = await sdk.completions.create(model="m", prompt=text, stream=True, max_tokens=12)
                text += "".join([chunk.choices[0].text async for chunk in chunks]) + " and"
            else:
                text += (await sdk.completions.create(model="m", prompt=text, max_tokens=12)).choices[0].text + " and"
        messages: Any = [{"role": "user", "content": "cancel #W1"}]
        counted = await other.messages.count_tokens(model="m", messages=messages)
        answer = await other.messages.create(model="m", messages=messages, max_tokens=3)
        assert counted.input_tokens == answer.usage.input_tokens > 0
        seal = await doors.admin.seal("r-1")
        spans = doors.turns()
    assert (seal.turns, seal.drift_tokens, dict(seal.forks)) == (4, 0, {})
    read = [span.tokens.prompt_ids_T.tolist() + span.tokens.completion_ids_T.tolist() for span in spans if span.tokens]
    assert read[1][: len(read[0])] == read[0]
    assert read[2][: len(read[1])] == read[1]


async def test_a_tool_call_with_odd_spacing_is_parsed_for_the_client_and_kept_as_sampled(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = '<tool_call>\n{"name": "get_order",  "arguments": {"order_id":"#W1"}}\n</tool_call><|im_end|>'
    async with aiohttp.ClientSession() as http:
        asked = {"model": engine.model_name, "prompt": odd, "add_special_tokens": False}
        async with http.post(f"{engine.url}/tokenize", json=asked) as response:
            ids: list[int] = (await response.json())["tokens"]
    async with serve_doors(engine.url, tmp_path) as doors:
        upstream = doors.app.doors.model.answerer.upstream

        async def as_if_sampled(body: dict[str, Any]) -> ChatReply:
            monkeypatch.undo()
            return await reply_with(upstream, body, ids)

        monkeypatch.setattr(upstream, "chat", as_if_sampled)
        opened = await doors.open(sampling={"max_tokens": 16})
        async with client(opened) as sdk:
            answer = await chat(sdk, ASK)
            assert json.loads(answer["tool_calls"][0]["function"]["arguments"]) == {"order_id": "#W1"}
            await chat(sdk, [*ASK, answer, *follow_up(answer)])
        seal = await doors.admin.seal("r-1")
        assert (seal.drift_tokens, dict(seal.forks)) == (0, {})
        first = doors.turns()[0].tokens
        assert first is not None
        assert first.completion_ids_T.tolist() == ids
        rendered = await upstream.render(
            {"model": engine.model_name, "messages": [*ASK, answer], "tools": TOOLS, "add_generation_prompt": False}
        )
        sampled = [*first.prompt_ids_T.tolist(), *ids]
        assert rendered[: len(sampled)] != sampled  # what a plain client would have sent back to the policy
        assert_each_turn_reads_the_one_before(doors, 2)


async def reply_with(upstream: Upstream, body: dict[str, Any], ids: list[int]) -> ChatReply:
    """The engine's reply to `body`, had it sampled `ids`; the engine itself renders and parses."""
    prompt = await upstream.render({name: body[name] for name in ("model", "messages", "tools")})
    choice = {"index": 0, "token_ids": ids[:-1], "finish_reason": "stop"}
    response = {"request_id": "x", "choices": [choice], "prompt_token_ids": prompt}
    request = {"model": body["model"], "messages": body["messages"], "tools": body["tools"]}
    reply = await upstream.derender({"model": body["model"], "generate_response": response, "chat_request": request})
    logprobs = msgspec.Raw(msgspec.json.encode({"content": [{"logprob": -1.0}] * len(ids)}))
    message = reply.choices[0].message
    said = ChatChoice(message=message, finish_reason="tool_calls", token_ids=ids, logprobs=logprobs)
    return ChatReply("chat-x", 1, [said], prompt, {})


async def test_the_adapter_and_sampling_of_the_rollout_answer_whatever_is_asked(
    engine: Engine, adapters: Adapters, tmp_path: Path
) -> None:
    await engine.load_adapter("gateway-v1", adapters.one)
    async with serve_doors(engine.url, tmp_path) as doors:
        said: dict[str, list[int]] = {}
        for model, version in ((engine.model_name, 0), ("gateway-v1", 1)):
            opened = await doors.open(model, model=model, policy_version=version, sampling={"temperature": 0})
            body = {"model": "gpt-9", "messages": ASK, "max_tokens": 8, "temperature": 1.9}
            said[model] = await answer_ids(doors, opened, body)
            await answer_ids(doors, opened, body)
            spans = doors.turns(model)
            assert [span.policy_version for span in spans] == [version, version]
            first, second = (span.tokens.completion_ids_T.tolist() for span in spans if span.tokens is not None)
            assert first == second
        assert said[engine.model_name] != said["gateway-v1"]
        opened = await doors.open("lost", model="no-such-adapter")
        status, _ = await doors.post(opened, {"model": "m", "messages": ASK})
        seal = await doors.admin.seal("lost")
    assert status == 503
    assert "no-such-adapter" in (seal.infrastructure_error or "")
    await engine.unload_adapter("gateway-v1")


async def answer_ids(doors: Doors, opened: OpenedRollout, body: dict[str, Any]) -> list[int]:
    """Ids of an answer, asked for by vLLM's own field."""
    status, answer = await doors.post(opened, {**body, "return_token_ids": True})
    assert status == 200, answer
    return answer["choices"][0]["token_ids"]


async def test_logprobs_usage_and_several_answers_reach_clients_that_ask(engine: Engine, tmp_path: Path) -> None:
    async with serve_doors(engine.url, tmp_path) as doors:
        opened = await doors.open()
        async with client(opened) as sdk:
            answer = await sdk.chat.completions.create(
                model="m", messages=ASK, n=2, logprobs=True, top_logprobs=2, max_tokens=5
            )
            stream = await sdk.chat.completions.create(
                model="m", messages=ASK, max_tokens=5, stream=True, stream_options={"include_usage": True}
            )
            usages = [chunk.usage async for chunk in stream if chunk.usage is not None]
        assert len(answer.choices) == 2
        for choice in answer.choices:
            assert choice.logprobs is not None
            assert choice.logprobs.content is not None
            assert not choice.logprobs.content[0].token.startswith("token_id:")
            assert len(choice.logprobs.content[0].top_logprobs) == 2
        assert answer.usage is not None
        assert usages[0].prompt_tokens == answer.usage.prompt_tokens > 0
        assert len(doors.turns()) == 3


async def test_a_prompt_beyond_the_models_context_ends_the_rollout_for_its_tokens(
    engine: Engine, tmp_path: Path
) -> None:
    async with serve_doors(engine.url, tmp_path) as doors:
        opened = await doors.open()
        status, answer = await doors.post(opened, {"messages": [{"role": "user", "content": "word " * 5000}]})
        seal = await doors.admin.seal("r-1")
    assert status == 400
    assert "context length" in answer["error"]["message"]
    assert (seal.limit_hit, seal.infrastructure_error) == ("tokens", None)
