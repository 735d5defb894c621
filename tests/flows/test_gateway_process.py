"""The gateway as a process: it says where it is, keeps its secrets, and loses nothing when it is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from harness.gateway.client import GatewayClient, attach_gateway
from harness.guardian import descendants
from harness.process import Process, ProcessError, ProcessSpec, ready_file, start_process
from tests.scripted_engine import ScriptedEngine, serve_engine
from traces.span import new_trace_id
from traces.store import Store

KEY = "an-admin-key"


def spec(folder: Path, engine_url: str, *more: str, key: str | None = KEY, name: str = "gateway") -> ProcessSpec:
    ready = folder / f"{name}.json"
    argv = [sys.executable, "-m", "harness.gateway", "--store", str(folder / "traces.db"), "--engine-url", engine_url]
    return ProcessSpec(
        [*argv, "--model", "base", "--ready-file", str(ready), *more],
        folder / f"{name}.log",
        name=name,
        env={"HARNESS_ADMIN_KEY": key} if key else {"HARNESS_ADMIN_KEY": ""},
        ready=ready_file(ready),
        ready_timeout_s=150,
    )


@asynccontextmanager
async def gateway_before(engine: ScriptedEngine, folder: Path) -> AsyncGenerator[tuple[Process, GatewayClient]]:
    async with (
        serve_engine(engine) as url,
        start_process(spec(folder, url)) as process,
        attach_gateway(process.ready["url"], KEY) as admin,
    ):
        yield process, admin


def opening(rollout_id: str) -> dict[str, Any]:
    fields = {"run_id": "run", "group_id": "g", "task_id": "t", "trace_id": new_trace_id()}
    return {"rollout_id": rollout_id, **fields}


async def ask(model_url: str, text: str) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    async with aiohttp.ClientSession() as http, http.post(f"{model_url}/chat/completions", json=body) as response:
        return await response.json()


async def test_every_answer_that_was_given_survives_a_hard_kill(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda prompt: f"echo {len(prompt)}<|im_end|>")
    given: list[str] = []
    async with gateway_before(engine, tmp_path) as (process, admin):
        opened = await admin.open_rollout(opening("r-1"))

        async def keep_asking(worker: int) -> None:
            for number in range(1000):
                answer = await ask(opened.model_url, f"{worker} {number}")
                given.append(answer["choices"][0]["message"]["content"])

        workers = [asyncio.create_task(keep_asking(worker)) for worker in range(8)]
        async with asyncio.timeout(30):
            while len(given) < 40:  # noqa: ASYNC110 - the workers have no event
                await asyncio.sleep(0.01)
        for pid in descendants(process.pid):
            os.kill(pid, signal.SIGKILL)
        await asyncio.wait_for(process.wait(), 10)
        outcomes = await asyncio.gather(*workers, return_exceptions=True)
    assert all(isinstance(outcome, aiohttp.ClientError) for outcome in outcomes)
    with Store(tmp_path / "traces.db") as store:
        spans = store.spans("r-1")
    kept = [span.attributes["gen_ai.output.messages"][0]["parts"][0]["content"] for span in spans]
    assert len(kept) >= len(given) >= 40
    assert all(kept.count(text) >= given.count(text) for text in set(given))


async def test_several_gateways_share_the_rollouts_of_one_store_and_are_paused_together(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: "x<|im_end|>")
    async with (
        serve_engine(engine) as url,
        start_process(spec(tmp_path, url, name="one")) as one,
        start_process(spec(tmp_path, url, name="two")) as two,
        attach_gateway([one.ready["url"], two.ready["url"]], KEY) as admin,
    ):
        ids = [f"r-{number}" for number in range(16)]
        opened = [await admin.open_rollout(opening(rollout_id)) for rollout_id in ids]
        assert {one.model_url.partition("/r/")[0] for one in opened} == {one.ready["url"], two.ready["url"]}
        await admin.set_policy("policy-v1", 1)
        await admin.pause()
        waiting = [asyncio.create_task(ask(one.model_url, "hello")) for one in opened]
        done, _ = await asyncio.wait(waiting, timeout=1.0)
        assert not done
        await admin.resume()
        await asyncio.wait_for(asyncio.gather(*waiting), 60)
        later = await admin.open_rollout(opening("later"))
        await ask(later.model_url, "hello")
        assert [(await admin.seal(rollout_id)).turns for rollout_id in [*ids, "later"]] == [1] * 17
    with Store(tmp_path / "traces.db") as store:
        assert [len(store.spans(rollout_id)) for rollout_id in ids] == [1] * 16
        assert store.spans("later")[0].policy_version == 1


async def test_no_key_reaches_the_store_the_log_or_a_readable_file(tmp_path: Path) -> None:
    async with gateway_before(ScriptedEngine(lambda _: "x<|im_end|>"), tmp_path) as (_, admin):
        opened = await admin.open_rollout(opening("r-1"))
        await ask(opened.model_url, "hello")
        async with aiohttp.ClientSession() as http, http.post(f"{opened.model_url}/chat/completions", data=b"{") as bad:
            assert bad.status == 400
        await admin.seal("r-1")
    for path in tmp_path.iterdir():
        if path.name != "gateway.json":
            content = path.read_bytes()
            assert opened.key.encode() not in content, path
            assert KEY.encode() not in content, path
    assert stat.S_IMODE((tmp_path / "gateway.json").stat().st_mode) == 0o600


async def test_without_a_key_given_one_is_made_and_told_in_the_ready_file_only(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: "x<|im_end|>")
    async with serve_engine(engine) as url, start_process(spec(tmp_path, url, key=None)) as process:
        made = process.ready["admin_key"]
        async with attach_gateway(process.ready["url"], made) as admin:
            assert (await admin.open_rollout(opening("r-1"))).model_url.startswith(process.ready["url"])
    log = (tmp_path / "gateway.log").read_text()
    assert json.loads(log.splitlines()[0]) == {"url": process.ready["url"]}
    assert made not in log


@pytest.mark.parametrize("case", ["port in use", "other machines", "no such folder", "not a store"])
async def test_what_cannot_be_served_is_told_at_start(tmp_path: Path, case: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        more, words = {
            "port in use": (["--port", port], port),
            "other machines": (["--host", "0.0.0.0"], "HARNESS_ADMIN_KEY is not set"),
            "no such folder": (["--store", str(tmp_path / "nowhere" / "traces.db")], "nowhere"),
            "not a store": (["--store", __file__], "test_gateway_process.py"),
        }[case]
        with pytest.raises(ProcessError) as raised:
            async with start_process(spec(tmp_path, "http://127.0.0.1:9", *more, key=None)):
                pass
    assert words in raised.value.found
    assert "code 2" in raised.value.found
    assert "Traceback" not in raised.value.found


async def test_admin_calls_that_are_repeated_or_wrong_are_answered_plainly(tmp_path: Path) -> None:
    async with gateway_before(ScriptedEngine(lambda _: "x<|im_end|>"), tmp_path) as (process, admin):
        first, again = [await admin.open_rollout(opening("r-1")) for _ in range(2)]
        assert first == again
        seals = [await admin.seal("r-1") for _ in range(2)]
        assert seals[0] == seals[1]
        await admin.set_policy("policy-v7", 7)
        headers = {"authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(process.ready["url"], headers=headers) as http:
            for path, body, status in [
                ("/admin/rollouts", json.dumps(opening("r-1")), 409),
                ("/admin/rollouts", '{"rollout_id": "x"}', 400),
                ("/admin/rollouts", json.dumps({**opening("r-2"), "modle": "m"}), 400),
                ("/admin/rollouts/nobody/seal", "", 404),
                ("/admin/nothing", "", 404),
            ]:
                async with http.post(path, data=body) as response:
                    assert (response.status, bool((await response.json())["error"]["message"])) == (status, True)
        opened = await admin.open_rollout(opening("r-3"))
        async with aiohttp.ClientSession() as http, http.get(f"{opened.model_url}/models") as response:
            assert (await response.json())["data"][0]["id"] == "policy-v7"
