"""How fast groups are scored: 1,000 of them, a judge that takes 200 ms, 64 questions under way; then from the cache.

The endpoint is a process of its own, so that its work is not counted as ours. The aim is 90 % of the ideal on free
cores; a busy machine shows less, so the figure is printed and not asserted. Run by `make bench`.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from harness.scoring.judge import Judge
from harness.scoring.judge_cache import JudgeCache
from harness.scoring.litellm_call import JudgeSpec, load_litellm
from harness.scoring.ruler import is_unscored, ruler_score_group
from tests.scripted_judge import a_group, answer, completion, worths_of
from traces.trajectory import Group

GROUPS = 1000
GROUP_SIZE = 8
IN_FLIGHT = 64
LATENCY_S = 0.2
IDEAL_S = GROUPS / IN_FLIGHT * LATENCY_S

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]


async def slow_answer(request: Request) -> Response:
    body = json.loads(await request.body())
    await asyncio.sleep(LATENCY_S)
    return completion(answer(worths_of(body)))


def serve(listener: socket.socket) -> None:
    app = Starlette(routes=[Route("/v1/chat/completions", slow_answer, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off")).run(sockets=[listener])


@pytest.fixture
def endpoint() -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    process = multiprocessing.get_context("fork").Process(target=serve, args=(listener,), daemon=True)
    process.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    process.terminate()
    process.join(10)


def make_groups(count: int) -> list[Group]:
    return [a_group([n / 1000, *(0.1 * place for place in range(1, GROUP_SIZE))]) for n in range(count)]


async def score_all(groups: list[Group], judge: Judge) -> tuple[float, float]:
    """Seconds of wall and of our own CPU for all groups."""
    started, cpu = time.perf_counter(), time.process_time()
    scored = await asyncio.gather(*(ruler_score_group(group, judge) for group in groups))
    elapsed = time.perf_counter() - started, time.process_time() - cpu
    assert not any(is_unscored(group) for group in scored)
    return elapsed


async def test_a_thousand_groups_keep_the_judge_busy_and_a_second_pass_is_free(endpoint: str, tmp_path: Path) -> None:
    spec = JudgeSpec(model="openai/scripted", api_base=endpoint, api_key="k", concurrency=IN_FLIGHT, timeout_s=60.0)
    load_litellm(spec.model)
    await score_all(make_groups(IN_FLIGHT), Judge(spec))  # first calls import half of LiteLLM
    with JudgeCache(tmp_path / "cache.db") as cache:
        wall_s, cpu_s = await score_all(make_groups(GROUPS), Judge(spec, cache))
        again = Judge(spec, cache)
        cached_s, _ = await score_all(make_groups(GROUPS), again)
    print(
        f"\n{GROUPS} groups of {GROUP_SIZE}: {wall_s:.2f} s wall, {1000 * cpu_s / GROUPS:.2f} ms CPU each, "
        f"ideal {IDEAL_S:.2f} s, {IDEAL_S / wall_s:.0%} of the ideal; from the cache {cached_s:.2f} s"
    )
    assert (again.usage.calls, again.usage.cached) == (0, GROUPS)
    assert cached_s < wall_s
