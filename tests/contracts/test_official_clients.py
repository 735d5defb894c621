"""Each dialect by its official client, over a scripted engine: tools, streams, exact continuation, ends, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.model_doors import Doors, anthropic_client, client, serve_doors
from tests.scripted_engine import ScriptedEngine, decode, encode, serve_engine
from tests.talks import DIALECTS, MESSAGES_TOOLS, Talk, assert_each_turn_reads_the_one_before

TWO_CALLS = (
    "<think>which one?</think>I look."
    '<tool_call>{"name":"get_order",   "arguments": {"order_id":"#W1" }}</tool_call>'
    '<tool_call>{"name":"cancel_order","arguments":{"order_id":"#W2", "share": 1.0}}</tool_call><|im_end|>'
)
RESULTS = ('{"status": "pending"}', "cancelled")
WANTED = [("get_order", {"order_id": "#W1"}), ("cancel_order", {"order_id": "#W2", "share": 1})]


def script(*answers: str) -> ScriptedEngine:
    """These answers one after another, the last one for ever."""
    left = list(answers)
    return ScriptedEngine(lambda _: left.pop(0) if len(left) > 1 else left[0])


@asynccontextmanager
async def doors_of(engine: ScriptedEngine, folder: Path, **options: float) -> AsyncGenerator[Doors]:
    async with serve_engine(engine) as url, serve_doors(url, folder, **options) as doors:
        yield doors


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_parallel_tool_calls_are_answered_and_continued_token_for_token(
    tmp_path: Path, dialect: str, stream: bool
) -> None:
    engine = script(TWO_CALLS, "It is done.<|im_end|>", "You are welcome.<|im_end|>")
    async with doors_of(engine, tmp_path) as doors:
        talk = Talk(dialect, await doors.open(), stream=stream)
        assert await talk.say("cancel both") == "I look."
        assert [(name, arguments) for _, name, arguments in talk.calls()] == WANTED
        assert talk.reasoning() == "which one?"
        assert await talk.results(*RESULTS) == "It is done."
        assert await talk.say("thanks") == "You are welcome."
        seal = await doors.admin.seal("r-1")
        assert_each_turn_reads_the_one_before(doors, 3)
        spans = doors.turns()
    assert (seal.turns, seal.drift_tokens, dict(seal.forks)) == (3, 0, {})
    assert {span.attributes["harness.gateway.dialect"] for span in spans} == {dialect.split()[0]}
    prompts = [decode(prompt) for prompt in engine.read_prompts]
    assert TWO_CALLS in prompts[1]
    assert prompts[1].count("<|im_start|>tool\n") == 2
    assert prompts[2].endswith("user\nthanks<|im_end|>\n<|im_start|>assistant\n")


async def test_dialects_of_one_rollout_share_one_forest(tmp_path: Path) -> None:
    async with doors_of(script(TWO_CALLS, "It is done.<|im_end|>"), tmp_path) as doors:
        opened = await doors.open()
        one, two = Talk("chat", opened), Talk("messages", opened)
        await one.say("cancel both")
        ids = [call_id for call_id, _, _ in one.calls()]
        uses = [{"type": "tool_use", "id": i, "name": n, "input": a} for i, (n, a) in zip(ids, WANTED, strict=True)]
        results = [{"type": "tool_result", "tool_use_id": i, "content": "ok"} for i in ids]
        two.history = [
            {"role": "user", "content": "cancel both"},
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, *uses]},
        ]
        asked = [*two.history, {"role": "user", "content": results}]
        await two.anthropic.messages.create(model="m", max_tokens=9, messages=asked, tools=MESSAGES_TOOLS)
        seal = await doors.admin.seal("r-1")
        assert_each_turn_reads_the_one_before(doors, 2)
    assert dict(seal.forks) == {}


@pytest.mark.parametrize("stream", [False, True])
async def test_the_openai_agents_sdk_is_continued_on_its_default_api(tmp_path: Path, stream: bool) -> None:
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)

    def get_order(order_id: str) -> str:
        """An order."""
        return f"{order_id} is pending"

    def cancel_order(order_id: str, share: float) -> str:
        """Cancel a share of an order."""
        return f"{order_id}: {share}"

    async with doors_of(script(TWO_CALLS, "It is done.<|im_end|>"), tmp_path) as doors:
        model = agents.OpenAIResponsesModel("any", client(await doors.open()))
        tools = [agents.function_tool(get_order), agents.function_tool(cancel_order)]
        agent = agents.Agent("agent", instructions="be", model=model, tools=tools)
        if stream:
            result = agents.Runner.run_streamed(agent, "cancel both")
            async for _ in result.stream_events():
                pass
        else:
            result = await agents.Runner.run(agent, "cancel both")
        seal = await doors.admin.seal("r-1")
        assert_each_turn_reads_the_one_before(doors, 2)
    assert result.final_output == "It is done."
    assert (seal.turns, dict(seal.forks)) == (2, {})


@pytest.mark.parametrize("stream", [False, True])
async def test_ends_are_told_in_each_dialects_words(tmp_path: Path, stream: bool) -> None:
    async with doors_of(script("half a sent", "half a sent", "one two three<|im_end|>"), tmp_path) as doors:
        opened = await doors.open()
        talk = Talk("messages", opened, stream=stream)
        await talk.say("go")
        assert talk.answer.stop_reason == "max_tokens"
        assert talk.answer.usage.output_tokens == len("half a sent")
        assert talk.answer.usage.input_tokens > 0
        other = Talk("responses", opened)
        response = await other.openai.responses.create(model="m", input="go", instructions="be")
        assert (response.status, response.output_text) == ("incomplete", "half a sent")
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.usage is not None
        assert response.usage.output_tokens == len("half a sent")
        asked: Any = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "count"}]}
        stopped = await talk.anthropic.messages.create(**asked, stop_sequences=["two"])
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "two")
        assert [block.text for block in stopped.content if block.type == "text"] == ["one"]


async def test_a_response_is_kept_for_what_follows_until_the_client_says_otherwise(tmp_path: Path) -> None:
    async with doors_of(script("<think>hm</think>Rome.<|im_end|>"), tmp_path) as doors:
        sdk = client(await doors.open())
        kept = await sdk.responses.create(model="m", input="capital?", instructions="be short", metadata={"a": "b"})
        assert (await sdk.responses.retrieve(kept.id)).model_dump() == kept.model_dump()
        assert (kept.metadata, kept.instructions, kept.tool_choice) == ({"a": "b"}, "be short", "auto")
        referred: list[Any] = [{"type": "item_reference", "id": item.id} for item in kept.output]
        again = [{"role": "user", "content": "capital?"}, *referred, {"role": "user", "content": "sure?"}]
        await sdk.responses.create(model="m", input=again, instructions="be short")  # pyright: ignore[reportArgumentType]
        # OpenAI does not hand instructions on: what follows without them is another prompt.
        await sdk.responses.create(model="m", input="sure?", previous_response_id=kept.id)
        unkept = await sdk.responses.create(model="m", input="capital?", store=False)
        for gone in (unkept.id, "resp_of_another_rollout"):
            with pytest.raises(openai.BadRequestError, match=r"Previous response .* not found") as raised:
                await sdk.responses.create(model="m", input="sure?", previous_response_id=gone)
            assert raised.value.param == "previous_response_id"
            with pytest.raises(openai.NotFoundError):
                await sdk.responses.retrieve(gone)
        prompts = [decode(span.tokens.prompt_ids_T.tolist()) for span in doors.turns() if span.tokens is not None]
    assert "<think>hm</think>Rome.<|im_end|>" in prompts[1]
    assert "be short" not in prompts[2]


async def test_a_text_is_completed_further_token_for_token_and_past_its_stop_string(tmp_path: Path) -> None:
    engine = script(" think.\nObservation: none", " Done.<|im_end|>", "a<|im_end|>", "b<|im_end|>")
    async with doors_of(engine, tmp_path) as doors:
        sdk = client(await doors.open(sampling={"temperature": 1.0, "max_tokens": 64}))
        first = await sdk.completions.create(model="m", prompt="Q\nThought:", stop=["Observation:"], max_tokens=99)
        assert (first.choices[0].text, first.choices[0].finish_reason) == (" think.\n", "stop")
        rest = "Q\nThought: think.\nObservation: 4\nThought:"
        stream = await sdk.completions.create(
            model="m", prompt=rest, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == " Done."
        assert chunks[-1].usage is not None
        several = await sdk.completions.create(model="m", prompt="x", n=2, logprobs=0)
        assert [choice.text for choice in several.choices] == ["a", "b"]
        assert several.choices[0].logprobs is not None
        seal = await doors.admin.seal("r-1")
        (one, two, *_) = doors.turns()
    assert one.tokens is not None
    assert two.tokens is not None
    sampled = one.tokens.prompt_ids_T.tolist() + one.tokens.completion_ids_T.tolist()
    assert decode(sampled) == "Q\nThought: think.\nObservation:"
    assert two.tokens.prompt_ids_T.tolist() == sampled + encode(" 4\nThought:")
    assert two.tokens.logprobs_T.tolist() == pytest.approx([-i / 1000 for i in encode(" Done.<|im_end|>")])
    assert (seal.turns, dict(seal.forks)) == (4, {})
    asked = [body for path, body in engine.asked if path == "/v1/completions"]
    assert [body["max_tokens"] for body in asked] == [64, 16, 16]


async def test_prompts_are_counted_and_models_listed_for_either_kind_of_client(tmp_path: Path) -> None:
    async with doors_of(script("x<|im_end|>"), tmp_path) as doors:
        opened = await doors.open()
        sdk, other = anthropic_client(opened), client(opened)
        asked: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": MESSAGES_TOOLS}
        counted = await sdk.messages.count_tokens(**asked)
        answer = await sdk.messages.create(**asked, max_tokens=5)
        assert counted.input_tokens == answer.usage.input_tokens
        assert [model.id async for model in sdk.models.list()] == ["base"]
        assert [model.id async for model in other.models.list()] == ["base"]
        assert (await sdk.models.retrieve("base")).display_name == (await other.models.retrieve("base")).id == "base"
        with pytest.raises(openai.NotFoundError, match="only 'base'"):
            await other.models.retrieve("gpt-9")
        assert len(doors.spans()) == 1


async def test_a_key_in_a_header_opens_the_door_of_clients_with_a_fixed_path(tmp_path: Path) -> None:
    async with doors_of(script("x<|im_end|>"), tmp_path) as doors:
        opened = await doors.open()
        asked: Any = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
        assert (await anthropic.AsyncAnthropic(base_url=doors.url, api_key=opened.key).messages.create(**asked)).content
        sdk = openai.AsyncOpenAI(base_url=f"{doors.url}/v1", api_key=opened.key)
        assert (await sdk.responses.create(model="m", input="hi")).output_text == "x"
        with pytest.raises(anthropic.AuthenticationError) as raised:
            await anthropic.AsyncAnthropic(base_url=doors.url, api_key="guess").messages.create(**asked)
        assert raised.value.body["type"] == "error"  # pyright: ignore[reportIndexIssue, reportCallIssue, reportArgumentType]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_each_failure_is_one_error_of_the_client_which_it_does_not_retry(
    tmp_path: Path, dialect: str, stream: bool
) -> None:
    engine = script("x<|im_end|>")
    async with doors_of(engine, tmp_path) as doors:
        for number, failure in enumerate(["500", "garbage", "close", "400"]):
            engine.fail_next = [failure]
            talk = Talk(dialect, await doors.open(f"r-{number}"), stream=stream, retries=3)
            wanted = (openai.APIError, anthropic.APIError)
            with pytest.raises(wanted) as raised:
                await talk.say("go")
            (span,) = doors.spans(f"r-{number}")
            seal = await doors.admin.seal(f"r-{number}")
            assert span.attributes["error.type"] == ("EngineRefusal" if failure == "400" else "EngineFailure")
            assert (seal.infrastructure_error is None) is (failure == "400")
            if failure != "close":  # streamed, it closes after its first chunk
                assert getattr(raised.value, "status_code", None) == (400 if failure == "400" else 503)
        limited = Talk(dialect, await doors.open("limited", limits={"turns": 1}), stream=stream, retries=3)
        await limited.say("one")
        with pytest.raises(
            (openai.PermissionDeniedError, anthropic.PermissionDeniedError), match="used up its 1 model"
        ):
            await limited.say("two")
        assert (await doors.admin.seal("limited")).limit_hit == "turns"
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError), match="has ended") as raised:
            await limited.say("three")
        assert getattr(raised.value, "status_code", None) == 410
    assert engine.count("/v1/chat/completions") == 5


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_stream_that_breaks_midway_raises_in_each_client(tmp_path: Path, dialect: str) -> None:
    engine = script("some words<|im_end|>")
    engine.fail_next = ["midway"]
    async with doors_of(engine, tmp_path) as doors:
        talk = Talk(dialect, await doors.open(), stream=True)
        with pytest.raises((openai.APIError, anthropic.APIError), match="scripted failure midway"):
            await talk.say("go")
        assert (await doors.admin.seal("r-1")).turns == 0
        assert doors.turns() == []


async def test_a_retry_by_anthropics_client_finds_the_answer_of_the_call_it_gave_up(tmp_path: Path) -> None:
    engine = script("late<|im_end|>")
    engine.hold = asyncio.Event()
    async with doors_of(engine, tmp_path) as doors:
        sdk = anthropic_client(await doors.open(), retries=2).with_options(timeout=0.5)
        messages: Any = [{"role": "user", "content": "hi"}]
        asked = asyncio.create_task(sdk.messages.create(model="m", max_tokens=9, messages=messages))
        await asyncio.wait_for(engine.waiting.acquire(), 10)
        await asyncio.sleep(0.7)  # past the client's own time-out, which is what is tested
        engine.hold.set()
        answer = await asyncio.wait_for(asked, 20)
        seal = await doors.admin.seal("r-1")
    assert answer.content[0].type == "text"
    assert (seal.turns, engine.count("/v1/chat/completions")) == (1, 1)


async def test_arguments_that_are_no_object_leave_anthropics_client_an_empty_one_and_the_turn_exact(
    tmp_path: Path,
) -> None:
    broken = '<tool_call>get_order: {"order_id": </tool_call><|im_end|>'
    async with doors_of(script(broken, "sorry<|im_end|>"), tmp_path) as doors:
        talk = Talk("messages", await doors.open(), stream=True)
        await talk.say("go")
        assert [(name, arguments) for _, name, arguments in talk.calls()] == [("get_order", {})]
        await talk.results("order_id is missing")
        seal = await doors.admin.seal("r-1")
        assert_each_turn_reads_the_one_before(doors, 2)
    assert dict(seal.forks) == {}


BAD: dict[str, tuple[str, Any]] = {
    "no JSON": ("messages", b"{"),
    "no length": ("messages", {"messages": [{"role": "user", "content": "x"}]}),
    "no messages": ("messages", {"messages": [], "max_tokens": 5}),
    "an unknown role": ("messages", {"messages": [{"role": "tool", "content": "x"}], "max_tokens": 5}),
    "a number as content": ("messages", {"messages": [{"role": "user", "content": 3}], "max_tokens": 5}),
    "a document": ("messages", {"messages": [{"role": "user", "content": [{"type": "document"}]}], "max_tokens": 5}),
    "a prefilled answer": ("messages", {"messages": [{"role": "assistant", "content": "x"}], "max_tokens": 5}),
    "a server tool": (
        "messages",
        {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "tools": [{"type": "web_search_20250305"}]},
    ),
    "no JSON for responses": ("responses", b"[1"),
    "no input": ("responses", {"model": "m"}),
    "input audio": ("responses", {"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
    "an unknown item": ("responses", {"input": [{"type": "computer_call_output"}]}),
    "a stranger's item": ("responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
    "image generation": ("responses", {"input": "x", "tools": [{"type": "image_generation"}]}),
    "an answer for later": ("responses", {"input": "x", "background": True}),
    "log-probabilities": ("responses", {"input": "x", "include": ["message.output_text.logprobs"]}),
    "several texts": ("completions", {"prompt": ["a", "b"]}),
    "ids as a text": ("completions", {"prompt": [1, 2]}),
    "an echo": ("completions", {"prompt": "a", "echo": True}),
}


async def test_what_cannot_be_served_faithfully_is_a_clear_400_in_the_clients_shape(tmp_path: Path) -> None:
    async with doors_of(script("x<|im_end|>"), tmp_path) as doors:
        opened = await doors.open()
        for case, (path, body) in BAD.items():
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            async with doors.http.post(f"{opened.model_url}/{path}", data=data) as response:
                answer = await response.json()
            assert response.status == 400, case
            assert answer["error"]["type"] == "invalid_request_error", case
            assert answer["error"]["message"], case
            assert ("param" in answer["error"]) is (path != "messages"), case
        spans = doors.spans()
        seal = await doors.admin.seal("r-1")
    assert [span.attributes["error.type"] for span in spans] == ["BadRequest"] * len(BAD)
    assert (seal.turns, seal.infrastructure_error) == (0, None)


@pytest.mark.parametrize("dialect", DIALECTS[1:])
async def test_a_body_of_more_than_ten_megabytes_is_told_to_each_client(tmp_path: Path, dialect: str) -> None:
    async with doors_of(script("x<|im_end|>"), tmp_path) as doors:
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError), match="longer than 10000000 bytes"):
            await Talk(dialect, await doors.open()).say("x" * 10_000_001)
