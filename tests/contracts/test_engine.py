"""Our engine module against real vLLM: it starts, serves adapters, and says why when it can't."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import aiohttp
import pytest

from harness.adapter import AdapterMismatch, check_adapter
from harness.engine import Engine, EngineConfig, attach, engine_argv, start_engine
from harness.errors import EngineError
from tests.contracts.conftest import NANO, Adapters

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
ASK = [{"role": "user", "content": "hello"}]


async def greedy_ids(engine: Engine, model: str) -> list[int]:
    """Token ids of a greedy answer."""
    body = {"model": model, "messages": ASK, "temperature": 0, "max_tokens": 12, "return_token_ids": True}
    url = f"{engine.url}/v1/chat/completions"
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
        assert response.status == 200, await response.text()
        return (await response.json())["choices"][0]["token_ids"]


async def test_an_adapter_is_served_under_its_name_as_soon_as_it_is_loaded(engine: Engine, adapters: Adapters) -> None:
    await engine.load_adapter("policy-v1", adapters.one)
    await engine.load_adapter("policy-v2", adapters.two)
    await engine.load_adapter("policy-v2", adapters.two)  # said twice, as after a lost reply
    base, one, two = [await greedy_ids(engine, name) for name in (engine.model_name, "policy-v1", "policy-v2")]
    assert len({tuple(base), tuple(one), tuple(two)}) == 3
    assert {"policy-v1", "policy-v2"} <= set(await engine.adapters())
    await engine.unload_adapter("policy-v1")
    await engine.unload_adapter("policy-v1")
    assert "policy-v1" not in await engine.adapters()
    await engine.unload_adapter("policy-v2")


async def test_an_adapter_that_does_not_fit_is_refused_with_the_reason(
    engine: Engine, adapters: Adapters, tmp_path: Path
) -> None:
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "adapter_config.json").write_text('{"r": 8}')
    whole = (adapters.one / "adapter_model.safetensors").read_bytes()
    (tmp_path / "cut" / "adapter_model.safetensors").write_bytes(whole[: len(whole) // 2])
    cases = {
        adapters.wrong_base: "takes 64 inputs, that of the base",
        adapters.large_rank: "its rank is 32, the engine serves at most 8",
        tmp_path / "absent": "there is no",
        tmp_path / "cut": "is cut off",
    }
    for path, reason in cases.items():
        with pytest.raises(EngineError, match=reason) as raised:
            await engine.load_adapter("policy-v9", path)
        assert "policy-v9" in raised.value.asked
    assert "policy-v9" not in await engine.adapters()
    assert await engine.healthy()


def test_an_adapter_of_another_published_model_is_told_by_name(adapters: Adapters, tmp_path: Path) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_bytes((adapters.one / name).read_bytes())
    config = tmp_path / "adapter_config.json"
    config.write_text(config.read_text().replace(str(NANO), "Qwen/Qwen3-4B"))
    check_adapter(tmp_path, "Qwen/Qwen3-4B", 8)
    with pytest.raises(AdapterMismatch, match=r"trained on 'Qwen/Qwen3-4B'.* serves 'Qwen/Qwen3-8B'"):
        check_adapter(tmp_path, "Qwen/Qwen3-8B", 8)


async def test_attaching_finds_the_base_model_of_a_running_server(engine: Engine, adapters: Adapters) -> None:
    attached = await attach(f"{engine.url}/v1/")
    assert (attached.url, attached.model_name, attached.process) == (engine.url, engine.model_name, None)
    with pytest.raises(EngineError, match="takes 64 inputs"):
        await attached.load_adapter("policy-v9", adapters.wrong_base)


async def test_attaching_to_nothing_or_to_something_else_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(EngineError, match="no answer"):
        await attach(f"http://127.0.0.1:{port}")


async def test_a_missing_model_folder_is_named_before_anything_starts(tmp_path: Path) -> None:
    for model in (str(tmp_path / "nowhere"), "./nowhere", str(tmp_path)):
        with pytest.raises(EngineError, match=r"no such folder|no config\.json") as raised:
            async with start_engine(EngineConfig(model, tmp_path / "log")):
                pass
        assert model in raised.value.asked


async def test_a_port_in_use_is_told_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EngineError, match="in use"):
            async with start_engine(EngineConfig(str(NANO), tmp_path / "log", port=port)):
                pass
    assert not (tmp_path / "log").exists()


async def test_an_engine_that_dies_at_start_is_reported_with_its_last_words(tmp_path: Path) -> None:
    config = EngineConfig(str(NANO), tmp_path / "log", extra_args=("--no-such-flag",))
    with pytest.raises(EngineError, match="--no-such-flag") as raised:
        async with start_engine(config):
            pass
    assert "ended with code" in raised.value.found


def test_the_command_line_serves_what_gateways_and_trainer_rely_on(tmp_path: Path) -> None:
    config = EngineConfig("m", tmp_path / "log", max_loras=3, reasoning_parser="qwen3", extra_args=("--seed", "1"))
    cpu, gpu = (" ".join(engine_argv(config, 8000, build)) for build in ("cpu", "gpu"))
    for line in (cpu, gpu):
        assert line.startswith(f"{sys.executable} -m vllm.entrypoints.openai.api_server")
        for part in ("--enable-scale-out", "--enable-lora", "--max-loras 3", "--tool-call-parser hermes", "--seed 1"):
            assert part in line
    assert "--dtype float32" in cpu
    assert "--dtype auto" in gpu
