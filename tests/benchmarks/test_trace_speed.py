"""How fast spans become rows, how fast spans are written, and whether a large store still answers at once.

`make bench` prints the figures; the assertions are the promises with room for a busy machine.
`TRACES_BENCH_ROLLOUTS` sets how many rollouts the large store holds (default 100,000).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.show import find_rollout, rollout_table
from traces.build import ModelCall, Outcome, Place, ToolUse, chat_span, tool_span
from traces.records import GroupRecord, PolicyRecord, RolloutRecord
from traces.span import Span, Tokens, new_trace_id
from traces.store import Store, StoreWriter
from traces.tokens import cut_rows
from traces.trajectory import Ending, Score

pytestmark = pytest.mark.benchmark

RUN = "bench"
SYSTEM = {"role": "system", "content": "policy " * 800}
TOOLS = [
    {"type": "function", "function": {"name": f"tool_{i}", "description": "what it does " * 8, "parameters": {}}}
    for i in range(16)
]
FIRST_PROMPT = np.random.default_rng(0).integers(0, 150_000, 2_000, dtype=np.int32)


def rollout_spans(number: int, turns: int) -> list[Span]:
    """A retail rollout: 2,000 ids of policy and tools, then `turns` times 60 sampled and 120 of a tool's result."""
    dice = np.random.default_rng(number)
    place = Place(trace_id=new_trace_id(), rollout_id=f"r{number}", group_id=f"g{number // 8}", run_id=RUN)
    messages: list[dict[str, Any]] = [SYSTEM, {"role": "user", "content": f"request {number}"}]
    held = np.concatenate([FIRST_PROMPT, dice.integers(0, 150_000, 40, dtype=np.int32)])
    spans: list[Span] = []
    for turn in range(turns):
        now = number * 1000 + turn * 10
        completion = dice.integers(0, 150_000, 60, dtype=np.int32)
        function = {"name": "tool_1", "arguments": f'{{"order_id": "#W{number}{turn}"}}'}
        output = {"role": "assistant", "content": None, "tool_calls": [{"id": f"c{turn}", "function": function}]}
        tokens = Tokens(held, completion, dice.standard_normal(60, dtype=np.float32))
        call = ModelCall(
            model="policy-v3", messages=list(messages), tools=TOOLS, output=output, finish_reason="tool_calls",
            tokens=tokens, policy_version=number // 1000,
        )  # fmt: skip
        spans.append(chat_span(place, Outcome(start_ns=now, end_ns=now + 1), call))
        result = "status pending " * 10 + str(turn)
        use = ToolUse(name="tool_1", arguments=function["arguments"], result=result)
        spans.append(tool_span(place, Outcome(start_ns=now + 2, end_ns=now + 3), use))
        messages += [output, {"role": "tool", "tool_call_id": f"c{turn}", "content": result}]
        held = np.concatenate([held, completion, dice.integers(0, 150_000, 120, dtype=np.int32)])
    return spans


def end(store: Store, number: int) -> None:
    store.append_rollout(
        RolloutRecord(
            rollout_id=f"r{number}", group_id=f"g{number // 8}", run_id=RUN, task_id="t", split="train",
            policy_version=number // 1000, ending=Ending.ANSWERED,
        )
    )  # fmt: skip


def timed(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Least seconds of five: other programs on the machine only add to it."""
    taken: list[float] = []
    for _ in range(5):
        started = clock()
        work()
        taken.append(clock() - started)
    return min(taken)


def test_spans_become_training_rows_at_a_million_tokens_a_second(tmp_path: Path) -> None:
    count, turns = 100, 10
    with Store(tmp_path / "traces.db") as store:
        for number in range(count):
            store.append_spans(rollout_spans(number, turns))
            end(store, number)
        trajectories = [store.trajectory(f"r{number}") for number in range(count)]
        tokens = sum(len(row.ids_T) for trajectory in trajectories for row in cut_rows(trajectory).rows)
        cut_s = timed(lambda: [cut_rows(trajectory) for trajectory in trajectories], time.process_time)
        whole_s = timed(
            lambda: [cut_rows(store.trajectory(f"r{number}")) for number in range(count)], time.process_time
        )
        size = (tmp_path / "traces.db").stat().st_size
    print(f"\nrows of {tokens / count:.0f} tokens: {tokens / cut_s / 1e6:.1f} M tokens/s from trajectories,")
    print(f"{tokens / whole_s / 1e6:.2f} M tokens/s from the store; {size / tokens:.1f} bytes a row token on disk")
    assert tokens / whole_s > 1e6


async def test_the_writer_commits_many_callers_without_making_them_wait(tmp_path: Path) -> None:
    spans = [span for number in range(100) for span in rollout_spans(number, 10)]
    waits: list[float] = []
    with Store(tmp_path / "traces.db") as store:
        async with StoreWriter(store) as writer:

            async def append(mine: list[Span]) -> None:
                for span in mine:
                    started = time.perf_counter()
                    await writer.append([span])
                    waits.append(time.perf_counter() - started)

            started, busy = time.perf_counter(), time.process_time()
            await asyncio.gather(*(append(spans[caller::32]) for caller in range(32)))
            taken, busy = time.perf_counter() - started, time.process_time() - busy
    waits.sort()
    p50, p99 = (waits[int(len(waits) * share)] * 1000 for share in (0.5, 0.99))
    print(f"\n{len(spans) / taken:.0f} spans/s ({len(spans) / busy:.0f} per second of one core) by 32 callers,")
    print(f"each waiting p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    assert len(spans) / busy > 2000


def test_a_hundred_thousand_rollouts_answer_within_fifty_milliseconds(tmp_path: Path) -> None:
    count = int(os.environ.get("TRACES_BENCH_ROLLOUTS", "100000"))
    with Store(tmp_path / "traces.db") as store:
        started = time.perf_counter()
        for number in range(count):
            store.append_spans(rollout_spans(number % 997, 2) if number < 100 else _cheap(number))
            end(store, number)
            if number % 8 == 7:
                _close(store, number // 8)
        store.append_policy(PolicyRecord(run_id=RUN, version=1, model="policy-v1", adapter_path="p", step=1))
        print(f"\n{count} rollouts written in {time.perf_counter() - started:.0f} s")
        groups = store.groups(RUN)
        store.consume(RUN, [group.group_id for group in groups[:-20]], step=1)
        queries: dict[str, Callable[[], Any]] = {
            "one trajectory": lambda: store.trajectory(f"r{count - 1}"),
            "one group of 8": lambda: store.group(groups[-1].group_id),
            "newest 30 rollouts": lambda: store.rollouts(newest=30),
            "newest 30 that ended so": lambda: store.rollouts(run_id=RUN, ending=Ending.ANSWERED, newest=30),
            "count by ending": lambda: store.count_endings(RUN),
            "unconsumed groups": lambda: store.unconsumed_groups(RUN),
            "groups after a seq": lambda: store.groups(RUN, after_seq=len(groups) - 20),
            "latest policy": lambda: store.latest_policy(RUN),
            "list the newest, as harness show does": lambda: rollout_table(store),
            "find by the beginning of an id": lambda: find_rollout(store, f"r{count - 1}"),
            "find the newest": lambda: find_rollout(store, "last"),
        }
        for name, query in queries.items():
            taken = timed(query) * 1000
            print(f"{name}: {taken:.1f} ms")
            assert taken < 50, name


def _cheap(number: int) -> list[Span]:
    place = Place(trace_id=new_trace_id(), rollout_id=f"r{number}", group_id=f"g{number // 8}", run_id=RUN)
    tokens = Tokens(FIRST_PROMPT[:200], FIRST_PROMPT[:40], np.zeros(40, np.float32))
    call = ModelCall(
        model="m", messages=[{"role": "user", "content": f"request {number}"}],
        output={"role": "assistant", "content": "ok"}, tokens=tokens, policy_version=number // 1000,
    )  # fmt: skip
    use = ToolUse(name="f", arguments="{}", result="ok")
    outcome = Outcome(start_ns=number, end_ns=number + 1)
    return [chat_span(place, outcome, call), tool_span(place, outcome, use), chat_span(place, outcome, call)]


def _close(store: Store, number: int) -> None:
    ids = tuple(f"r{number * 8 + member}" for member in range(8))
    record = GroupRecord(
        group_id=f"g{number}", run_id=RUN, task_id="t", split="train", position=number, rollout_ids=ids
    )
    store.append_group(record, {rollout_id: [Score(value=1.0, name="checks")] for rollout_id in ids})
