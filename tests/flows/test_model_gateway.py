"""The model gateway over real HTTP, with the official client, a real store and a scripted engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from tests.model_doors import TOOLS, Doors, client, serve_doors
from tests.scripted_engine import END, ScriptedEngine, decode, encode, serve_engine
from traces.node import ForkCause
from traces.tokens import TokenForest

CALL = '<tool_call>{"name":"get_order",   "arguments": {"order_id":"#W1" }}</tool_call><|im_end|>'
STRICT_TOOLS: list[Any] = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
ASK = [{"role": "system", "content": "policy"}, {"role": "user", "content": "cancel #W1"}]


def script(*answers: str) -> ScriptedEngine:
    """These answers one after another, the last one for ever."""
    left = list(answers)
    return ScriptedEngine(lambda _: left.pop(0) if len(left) > 1 else left[0])


@asynccontextmanager
async def doors_of(engine: ScriptedEngine, folder: Path, **options: float) -> AsyncGenerator[Doors]:
    async with serve_engine(engine) as url, serve_doors(url, folder, **options) as doors:
        yield doors


async def until(true: Callable[[], bool]) -> None:
    """Wait for something that has no event of its own."""
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - there is nothing to wait on
            await asyncio.sleep(0.01)


async def two_turns(doors: Doors, *, stream: bool = False) -> tuple[Any, Any]:
    """A tool call with odd spacing, then an answer, as an SDK would ask for them."""
    opened = await doors.open()
    async with client(opened) as sdk:
        first = await ask(sdk, ASK, stream)
        calls = first.tool_calls
        history = [
            *ASK,
            {"role": "assistant", "content": first.content, "tool_calls": [call.model_dump() for call in calls]},
            {"role": "tool", "tool_call_id": calls[0].id, "content": '{"status": "pending"}'},
        ]
        return first, await ask(sdk, history, stream)


async def ask(sdk: openai.AsyncOpenAI, messages: list[Any], stream: bool) -> Any:
    if not stream:
        answer = await sdk.chat.completions.create(model="any", messages=messages, tools=TOOLS)
        return answer.choices[0].message
    async with sdk.chat.completions.stream(model="any", messages=messages, tools=STRICT_TOOLS) as events:
        async for _ in events:
            pass
        return (await events.get_final_completion()).choices[0].message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("takes_ids", [True, False])
async def test_the_second_turn_reads_token_for_token_what_the_first_sampled(
    tmp_path: Path, stream: bool, takes_ids: bool
) -> None:
    engine = script(CALL, "It is pending.<|im_end|>")
    engine.takes_ids_in_chat = takes_ids
    async with doors_of(engine, tmp_path) as doors:
        first, second = await two_turns(doors, stream=stream)
        assert first.tool_calls[0].function.name == "get_order"
        assert json.loads(first.tool_calls[0].function.arguments) == {"order_id": "#W1"}
        assert second.content == "It is pending."
        seal = await doors.admin.seal("r-1")
        one, two = doors.turns()
    assert one.tokens is not None
    assert two.tokens is not None
    sampled = [*one.tokens.prompt_ids_T.tolist(), *one.tokens.completion_ids_T.tolist()]
    assert decode(one.tokens.completion_ids_T.tolist()) == CALL
    assert two.tokens.prompt_ids_T.tolist()[: len(sampled)] == sampled
    assert decode(two.tokens.prompt_ids_T.tolist()[len(sampled) :]).startswith("\n<|im_start|>tool\n")
    assert engine.read_prompts[-1] == two.tokens.prompt_ids_T.tolist()
    assert two.tokens.logprobs_T.tolist() == pytest.approx([-i / 1000 for i in two.tokens.completion_ids_T.tolist()])
    assert (seal.turns, seal.drift_tokens, dict(seal.forks)) == (2, 0, {})
    assert one.policy_version == 3


async def test_a_turn_cut_at_its_length_is_closed_by_the_template(tmp_path: Path) -> None:
    engine = script("half a sent", "on<|im_end|>")
    async with doors_of(engine, tmp_path) as doors:
        opened = await doors.open()
        status, first = await doors.post(opened, {"model": "m", "messages": ASK})
        assert (status, first["choices"][0]["finish_reason"]) == (200, "length")
        history = [*ASK, {"role": "assistant", "content": "half a sent"}, {"role": "user", "content": "go on"}]
        await doors.post(opened, {"model": "m", "messages": history})
        one, two = doors.turns()
    assert one.tokens is not None
    assert two.tokens is not None
    tail = two.tokens.prompt_ids_T.tolist()[one.tokens.prompt_ids_T.size + one.tokens.completion_ids_T.size :]
    assert tail[0] == END


async def test_an_edited_history_forks_with_its_cause_and_place(tmp_path: Path) -> None:
    engine = script("Paris.<|im_end|>", "Rome.<|im_end|>")
    async with doors_of(engine, tmp_path) as doors:
        opened = await doors.open()
        await doors.post(opened, {"model": "m", "messages": ASK})
        edited = [*ASK, {"role": "assistant", "content": "London."}, {"role": "user", "content": "sure?"}]
        await doors.post(opened, {"model": "m", "messages": edited})
        seal = await doors.admin.seal("r-1")
    assert dict(seal.forks) == {ForkCause.EDITED_HISTORY.value: 1}
    assert seal.drift_tokens == 0


async def test_an_engine_without_the_endpoints_is_served_and_its_forks_counted(tmp_path: Path) -> None:
    engine = script(CALL, "done<|im_end|>")
    engine.scale_out = False
    async with doors_of(engine, tmp_path) as doors:
        await two_turns(doors)
        seal = await doors.admin.seal("r-1")
    assert dict(seal.forks) == {ForkCause.TOOL_JSON.value: 1}
    assert seal.drift_tokens > 0


async def test_parallel_samples_of_one_prompt_are_rows_of_their_own(tmp_path: Path) -> None:
    engine = script("a<|im_end|>", "b<|im_end|>", "c<|im_end|>")
    async with doors_of(engine, tmp_path) as doors:
        opened = await doors.open()
        await asyncio.gather(*(doors.post(opened, {"model": "m", "messages": ASK}) for _ in range(3)))
        await doors.post(opened, {"model": "m", "messages": ASK, "n": 2})
        seal = await doors.admin.seal("r-1")
        assert len(doors.turns()) == seal.turns == 5
    assert not seal.forks


async def test_a_parent_and_its_subagent_in_turns_are_two_rows_without_a_fork(tmp_path: Path) -> None:
    engine = script(*(f"answer {number}<|im_end|>" for number in range(6)))
    async with doors_of(engine, tmp_path) as doors:
        opened = await doors.open()
        parent = [{"role": "system", "content": "You delegate."}, {"role": "user", "content": "cancel #W1"}]
        helper = [{"role": "system", "content": "You look things up."}, {"role": "user", "content": "find #W1"}]
        for _ in range(3):
            for history in (parent, helper):
                _, answer = await doors.post(opened, {"model": "m", "messages": history})
                said = answer["choices"][0]["message"]["content"]
                history += [{"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]
        seal = await doors.admin.seal("r-1")
        forest = TokenForest()
        for span in doors.turns():
            assert span.tokens is not None
            forest.attach(span.tokens, 3)
    parents = {node.parent.index for node in forest.nodes if node.parent is not None}
    assert [node.index in parents for node in forest.nodes] == [True, True, True, True, False, False]
    assert (seal.turns, dict(seal.forks), seal.drift_tokens) == (6, {}, 0)


async def test_an_avowed_retry_of_a_call_in_flight_shares_its_answer(tmp_path: Path) -> None:
    engine = script("once<|im_end|>")
    engine.hold = asyncio.Event()
    async with doors_of(engine, tmp_path) as doors:
        opened = await doors.open()
        body = {"model": "m", "messages": ASK}
        first = asyncio.create_task(doors.post(opened, body))
        await asyncio.wait_for(engine.waiting.acquire(), 10)
        retry = asyncio.create_task(doors.post(opened, body, {"x-stainless-retry-count": "1"}))
        engine.hold.set()
        answers = await asyncio.gather(first, retry)
        seal = await doors.admin.seal("r-1")
    assert answers[0] == answers[1]
    assert (seal.turns, engine.count("/v1/chat/completions")) == (1, 1)


async def test_the_official_clients_retry_after_its_time_out_finds_the_answer(tmp_path: Path) -> None:
    engine = script("late<|im_end|>")
    engine.hold = asyncio.Event()
    async with doors_of(engine, tmp_path) as doors:
        opened = await doors.open()
        async with client(opened, retries=2, timeout_s=0.5) as sdk:
            asked = asyncio.create_task(sdk.chat.completions.create(model="m", messages=ASK))  # pyright: ignore[reportArgumentType]
            await asyncio.wait_for(engine.waiting.acquire(), 10)
            await asyncio.sleep(0.7)  # past the client's own time-out, which is what is tested
            engine.hold.set()
            answer = await asyncio.wait_for(asked, 20)
        seal = await doors.admin.seal("r-1")
    assert answer.choices[0].message.content == "late"
    assert (seal.turns, engine.count("/v1/chat/completions")) == (1, 1)


async def test_an_answer_nobody_came_back_for_is_no_turn(tmp_path: Path) -> None:
    engine = script("unseen<|im_end|>")
    engine.hold = asyncio.Event()
    async with doors_of(engine, tmp_path) as doors:
        opened = await doors.open()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await doors.post(opened, {"model": "m", "messages": ASK})
        side = doors.app.doors.model.sides["r-1"]
        await until(lambda: any(attempt.lost for attempt in side.retries.attempts()))
        engine.hold.set()
        seal = await doors.admin.seal("r-1")
        assert doors.turns() == []
    assert seal.turns == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_rollout_over_its_turns_gets_an_error_its_client_does_not_retry(tmp_path: Path, stream: bool) -> None:
    engine = script("one<|im_end|>")
    async with doors_of(engine, tmp_path) as doors:
        opened = await doors.open(limits={"turns": 1, "tokens": 1000, "wall_s": 60})
        async with client(opened, retries=3) as sdk:
            await ask(sdk, ASK, stream)
            with pytest.raises(openai.PermissionDeniedError) as raised:
                await ask(sdk, ASK, stream)
        seal = await doors.admin.seal("r-1")
    assert raised.value.body["code"] == "turns"  # pyright: ignore[reportIndexIssue, reportCallIssue, reportArgumentType]
    assert (seal.limit_hit, seal.turns, engine.count("/v1/chat/completions")) == ("turns", 1, 1)


async def test_the_token_limit_bounds_the_answer_and_then_ends_the_rollout(tmp_path: Path) -> None:
    engine = script("0123456789<|im_end|>")
    async with doors_of(engine, tmp_path) as doors:
        opened = await doors.open(limits={"tokens": 15}, sampling={"temperature": 0.5, "max_tokens": 12})
        body = {"model": "m", "messages": ASK, "max_tokens": 500, "temperature": 2, "seed": 1, "top_k": 3}
        statuses = [(await doors.post(opened, body))[0] for _ in range(3)]
        seal = await doors.admin.seal("r-1")
    asked = [sent for path, sent in engine.asked if path == "/v1/chat/completions"]
    assert statuses == [200, 200, 403]
    assert [sent["max_tokens"] for sent in asked] == [12, 4]
    assert [(sent["temperature"], "seed" in sent, "top_k" in sent) for sent in asked] == [(0.5, False, False)] * 2
    assert (seal.limit_hit, seal.tokens) == ("tokens", 22)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_wall_limit_cuts_a_hanging_call(tmp_path: Path, stream: bool) -> None:
    engine = script("never<|im_end|>")
    engine.hold = asyncio.Event()
    async with doors_of(engine, tmp_path) as doors:
        opened = await doors.open(limits={"wall_s": 0.4})
        status, answer = await doors.post(opened, {"model": "m", "messages": ASK, "stream": stream})
        seal = await doors.admin.seal("r-1")
        engine.hold.set()
    assert (status, answer["error"]["code"], seal.limit_hit) == (403, "wall_s", "wall_s")
    assert seal.infrastructure_error is None


async def test_requests_wait_while_a_policy_is_published_and_never_fail(tmp_path: Path) -> None:
    engine = script("after<|im_end|>")
    async with doors_of(engine, tmp_path) as doors:
        opened = await doors.open(limits={"wall_s": 0.5})
        await doors.admin.pause()
        waiting = asyncio.create_task(doors.post(opened, {"model": "m", "messages": ASK}))
        await asyncio.sleep(0.8)  # longer than the wall limit: a publish is not charged to it
        assert not waiting.done()
        assert engine.count("/v1/chat/completions") == 0
        await doors.admin.resume()
        status, _ = await asyncio.wait_for(waiting, 10)
    assert status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_sealed_key_is_refused_and_late_answers_never_join(tmp_path: Path, stream: bool) -> None:
    engine = script("late<|im_end|>")
    engine.hold = asyncio.Event()
    async with doors_of(engine, tmp_path) as doors:
        opened = await doors.open()
        body = {"model": "m", "messages": ASK, "stream": stream}
        late = asyncio.create_task(doors.post(opened, body))
        await asyncio.wait_for(engine.waiting.acquire(), 10)
        seal = await doors.admin.seal("r-1")
        engine.hold.set()
        try:
            assert (await late)[0] == 410
        except (aiohttp.ClientError, json.JSONDecodeError):
            assert stream  # a stream under way just ends
        assert (await doors.post(opened, body))[0] == 410
        assert await doors.admin.seal("r-1") == seal
        assert doors.turns() == []
    assert seal.turns == 0


async def test_a_strangers_key_and_a_missing_admin_key_open_nothing(tmp_path: Path) -> None:
    async with doors_of(script("x<|im_end|>"), tmp_path) as doors:
        opened = await doors.open()
        for url in (f"{doors.url}/r/guess/v1/models", f"{doors.url}/r/guess/mcp"):
            async with doors.http.get(url) as response:
                assert response.status == 401
        for key in ("", f"Bearer {opened.key}"):
            async with doors.http.post(f"{doors.url}/admin/pause", headers={"authorization": key}) as response:
                assert response.status == 401
        async with doors.http.get(f"{opened.model_url}/models") as response:
            assert [model["id"] for model in (await response.json())["data"]] == ["base"]


@pytest.mark.parametrize("failure", ["500", "garbage", "close"])
async def test_a_failing_engine_is_an_infrastructure_failure_with_a_span(tmp_path: Path, failure: str) -> None:
    engine = script("x<|im_end|>")
    engine.fail_next = [failure]
    async with doors_of(engine, tmp_path) as doors:
        status, answer = await doors.post(await doors.open(), {"model": "m", "messages": ASK})
        seal = await doors.admin.seal("r-1")
        (span,) = doors.spans()
    assert (status, answer["error"]["code"]) == (503, "engine_error")
    assert (seal.infrastructure_error or "").startswith("engine_error: ")
    assert span.attributes["error.type"] == "EngineFailure"


async def test_an_engine_that_is_gone_or_hangs_is_reported_within_the_time_out(tmp_path: Path) -> None:
    async with serve_doors("http://127.0.0.1:9", tmp_path / "gone") as doors:
        status, answer = await doors.post(await doors.open(), {"model": "m", "messages": ASK})
        assert (status, "can't be reached" in answer["error"]["message"]) == (503, True)
    engine = script("x<|im_end|>")
    engine.hold = asyncio.Event()
    async with doors_of(engine, tmp_path / "hung", engine_timeout_s=0.5) as doors:
        status, answer = await doors.post(await doors.open(), {"model": "m", "messages": ASK})
        engine.hold.set()
    assert (status, "no answer in 0.5 s" in answer["error"]["message"]) == (503, True)


async def test_a_stream_that_breaks_midway_tells_the_client_and_is_no_turn(tmp_path: Path) -> None:
    engine = script("some words<|im_end|>")
    engine.fail_next = ["midway"]
    async with doors_of(engine, tmp_path) as doors:
        opened = await doors.open()
        async with client(opened) as sdk:
            with pytest.raises(openai.APIError, match="scripted failure midway"):
                await ask(sdk, ASK, True)
        seal = await doors.admin.seal("r-1")
        assert doors.turns() == []
    assert (seal.turns, (seal.infrastructure_error or "").partition(":")[0]) == (0, "engine_error")


async def test_the_engines_refusal_reaches_the_client_as_its_own_mistake(tmp_path: Path) -> None:
    engine = script("x<|im_end|>")
    engine.fail_next = ["400"]
    async with doors_of(engine, tmp_path) as doors:
        status, answer = await doors.post(await doors.open(), {"model": "m", "messages": ASK})
        seal = await doors.admin.seal("r-1")
    assert (status, answer["error"]["message"], seal.infrastructure_error) == (400, "scripted 400", None)


BAD = {
    "not JSON": b"{",
    "not an object": b"[]",
    "no messages": b'{"model": "m"}',
    "empty messages": b'{"model": "m", "messages": []}',
    "a role nobody knows": b'{"messages": [{"role": "king", "content": "x"}]}',
    "a number as content": b'{"messages": [{"role": "user", "content": 3}]}',
    "audio": b'{"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}',
    "audio out": b'{"messages": [{"role": "user", "content": "x"}], "modalities": ["audio"]}',
    "n of zero": b'{"messages": [{"role": "user", "content": "x"}], "n": 0}',
    "bad encoding": b'{"messages": [{"role": "user", "content": "\xff"}]}',
    "deep nesting": b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("case", BAD)
async def test_bad_bodies_get_a_clear_400_in_the_clients_shape(tmp_path: Path, case: str) -> None:
    async with doors_of(script("x<|im_end|>"), tmp_path) as doors:
        opened = await doors.open()
        async with doors.http.post(f"{opened.model_url}/chat/completions", data=BAD[case]) as response:
            answer = await response.json()
        assert response.status == 400
        assert answer["error"]["type"] == "invalid_request_error"
        assert answer["error"]["message"]
        assert (await doors.post(opened, {"model": "m", "messages": ASK, "unknown_field": 1}))[0] == 200
        seal = await doors.admin.seal("r-1")
    assert (seal.turns, seal.infrastructure_error) == (1, None)


async def test_a_body_of_more_than_ten_megabytes_is_refused(tmp_path: Path) -> None:
    async with doors_of(script("x<|im_end|>"), tmp_path) as doors:
        opened = await doors.open()
        status, answer = await doors.post(opened, {"messages": [{"role": "user", "content": "x" * 10_000_001}]})
    assert (status, answer["error"]["type"]) == (413, "request_too_large")


async def test_tool_calls_are_noted_for_the_tool_gateway_before_the_answer(tmp_path: Path) -> None:
    async with doors_of(script(CALL), tmp_path) as doors:
        opened = await doors.open()
        _, answer = await doors.post(opened, {"model": "m", "messages": ASK, "tools": TOOLS})
        (asked,) = doors.app.doors.keys.find(opened.key).asked_calls
    assert asked.call_id == answer["choices"][0]["message"]["tool_calls"][0]["id"]
    assert (asked.name, json.loads(asked.arguments)) == ("get_order", {"order_id": "#W1"})


async def test_what_the_gateway_keeps_live_is_what_the_store_gives_back(tmp_path: Path) -> None:
    engine = script(CALL, "It is pending.<|im_end|>")
    async with doors_of(engine, tmp_path) as doors:
        await two_turns(doors)
        forest = TokenForest()
        for span in doors.turns():
            assert span.tokens is not None
            forest.attach(span.tokens, 3)
    assert [node.parent is not None for node in forest.nodes] == [False, True]
    assert encode(decode(forest.nodes[1].sequence().tolist())) == forest.nodes[1].sequence().tolist()
