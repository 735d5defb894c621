"""Spans in the store: read back exactly, kept once, small, and acknowledged only when committed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flows.recorded import RUN, model_span
from traces.compaction import compact
from traces.span import Span, SpanEvent, SpanKind, SpanStatus, Tokens, new_span_id, new_trace_id
from traces.store import Store, StoreWriter


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "traces.db") as opened:
        yield opened


def test_a_span_comes_back_with_every_field_as_it_was_given(store: Store) -> None:
    span = Span(
        trace_id=new_trace_id(),
        span_id=new_span_id(),
        parent_id=new_span_id(),
        name="chat m",
        kind=SpanKind.CLIENT,
        start_ns=2**62,
        end_ns=2**62 + 1,
        status=SpanStatus.ERROR,
        status_message="it broke",
        attributes={
            "a": [1, {"b": None}],
            "gen_ai.input.messages": [{"role": "user"}, {"role": "user"}],
            "c": "\ud800",
        },
        events=(SpanEvent("e", 5, {"x": 1.5}),),
        rollout_id="r",
        group_id="g",
        run_id=RUN,
        policy_version=7,
        tokens=Tokens(np.arange(700, dtype=np.int32), np.array([5], np.int32), np.array([-1.5], np.float32)),
        source="someone",
    )
    assert store.append_spans([span]) == 1
    assert store.spans("r") == [span]
    assert store.spans_of_trace(span.trace_id) == [span]


def test_a_span_sent_twice_is_kept_once(store: Store) -> None:
    span = model_span("r", [1, 2], [3])
    assert store.append_spans([span, span]) == 1
    assert store.append_spans([span]) == 0
    assert len(store.spans("r")) == 1


token_lists = st.lists(st.integers(0, 2**31 - 1), max_size=40)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), token_lists, token_lists), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_any_mixture_of_shared_prompts_is_read_back_exactly(turns: list[tuple[int, int, list[int], list[int]]]) -> None:
    spans: list[Span] = []
    for base, cut, rest, completion in turns:
        prompt: list[int] = []
        if base < len(spans):
            tokens = spans[base].tokens
            assert tokens is not None
            prompt = [*tokens.prompt_ids_T.tolist(), *tokens.completion_ids_T.tolist()]
            prompt = prompt[: len(prompt) - cut]
        spans.append(model_span("r", [*prompt, *rest] * (1 + 8 * (cut == 1)), completion))
    with TemporaryDirectory() as folder, Store(Path(folder) / "traces.db") as store:
        store.append_spans(spans[: len(spans) // 2])
        store.append_spans(spans[len(spans) // 2 :])
        assert store.spans("r") == spans


def test_ten_turns_cost_what_they_add_and_not_their_square(store: Store) -> None:
    held = list(range(2000))
    for turn in range(10):
        completion = list(range(turn * 100, turn * 100 + 50))
        store.append_spans([model_span("r", held, completion)])
        held = [*held, *completion, 1, 2, 3]
    ((stored,),) = store.query("size", "SELECT SUM(LENGTH(prompt) + LENGTH(completion) + LENGTH(logprobs)) FROM tokens")
    ((shared,),) = store.query("size", "SELECT SUM(LENGTH(body)) FROM contents WHERE TYPEOF(body)='blob'")
    added = 10 * (50 * 8 + 3 * 4)
    assert stored + shared < 2000 * 4 + added + 100


def test_a_first_prompt_of_many_rollouts_is_stored_once(store: Store) -> None:
    for number in range(20):
        store.append_spans([model_span(f"r{number}", list(range(2048)), [number])])
    ((shared,),) = store.query("size", "SELECT SUM(LENGTH(body)) FROM contents WHERE TYPEOF(body)='blob'")
    ((own,),) = store.query("size", "SELECT SUM(LENGTH(prompt)) FROM tokens")
    assert (shared, own) == (2048 * 4, 0)


def test_compacting_shortens_what_two_processes_wrote_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "traces.db"
    held, spans = list(range(300)), list[Span]()
    for turn in range(12):
        spans.append(model_span("r", held, [turn]))
        with Store(path) as writer_of_its_own:
            writer_of_its_own.append_spans([spans[-1]])
        held = [*held, turn, 7]
    with Store(path) as store:
        ((before,),) = store.query("size", "SELECT SUM(LENGTH(prompt)) FROM tokens")
        done = compact(store)
        ((after,),) = store.query("size", "SELECT SUM(LENGTH(prompt)) FROM tokens")
        assert (done.rewritten, store.spans("r")) == (11, spans)
        assert compact(store).rewritten == 0
    assert after <= (300 % 256) * 4 + 11 * 4 < before
    assert done.bytes_after <= done.bytes_before


def test_a_failed_append_leaves_nothing_and_the_next_one_is_whole(store: Store) -> None:
    good = model_span("r", list(range(100)), [1])
    bad = Span(trace_id="t", span_id="s", name="n", start_ns=2**70, end_ns=0)
    with pytest.raises(OverflowError):
        store.append_spans([good, bad])
    assert store.spans("r") == []
    store.append_spans([good])
    second = model_span("r", [*range(100), 1, 5], [6])
    store.append_spans([second])
    assert store.spans("r") == [good, second]


async def test_the_writer_resolves_each_caller_after_its_commit(store: Store, tmp_path: Path) -> None:
    async with StoreWriter(store) as writer:

        async def append(number: int) -> None:
            await writer.append([model_span(f"r{number}", [1, 2], [3])])
            with Store(tmp_path / "traces.db") as other:
                assert len(other.spans(f"r{number}")) == 1

        await asyncio.wait_for(asyncio.gather(*(append(number) for number in range(50))), 30)


async def test_the_writer_fails_only_the_caller_whose_span_is_bad(store: Store) -> None:
    bad = Span(trace_id="t", span_id="s", name="n", start_ns=0, end_ns=0, attributes={"x": object()})
    async with StoreWriter(store) as writer:
        calls = [writer.append([model_span(f"r{number}", [1], [2])]) for number in range(20)]
        results = await asyncio.wait_for(asyncio.gather(*calls, writer.append([bad]), return_exceptions=True), 30)
    assert results[:-1] == [None] * 20
    assert isinstance(results[-1], TypeError)
    assert all(len(store.spans(f"r{number}")) == 1 for number in range(20))
