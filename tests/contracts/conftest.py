"""One real vLLM for all contract tests: the shipped small policy on whatever wheel is installed."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.engine import Engine, EngineConfig, start_engine

REPO = Path(__file__).resolve().parents[2]
NANO = REPO / "training" / "nano" / "weights"
ADAPTER_RANK = 8


@dataclass(frozen=True)
class Adapters:
    """Folders of LoRA adapters, with random weights so large that answers differ."""

    one: Path
    """Fits the shipped policy."""
    two: Path
    """Fits too, with other weights."""
    wrong_base: Path
    """Made for a narrower model."""
    large_rank: Path
    """Fits, with a rank that the engine does not serve."""


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A healthy engine that lives until the tests end, in an event loop of its own thread."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: pip install -e '.[cpu]' or '.[gpu]'")
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    config = EngineConfig(str(NANO), log, max_model_len=4096, max_num_seqs=32, max_loras=4, max_lora_rank=ADAPTER_RANK)
    started: list[Engine | BaseException] = []
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def live() -> None:
        try:
            async with start_engine(config) as running:
                started.append(running)
                ready.set()
                await stop.wait()
        except BaseException as error:
            started.append(error)
            ready.set()
            raise

    thread = threading.Thread(target=lambda: loop.run_until_complete(live()), name="engine", daemon=True)
    thread.start()
    ready.wait(config.startup_timeout_s + 30)
    if not started or isinstance(started[0], BaseException):
        pytest.fail(f"the engine did not start: {started}; its log is {log}")
    yield started[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    shutil.copy(log, log.with_suffix(".last"))


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Adapters:
    """Adapters written by PEFT."""
    folder = tmp_path_factory.mktemp("adapters")
    made = {
        "one": _adapter(folder / "one", NANO, ADAPTER_RANK, 1),
        "two": _adapter(folder / "two", NANO, ADAPTER_RANK, 2),
        "wrong_base": _adapter(folder / "wrong", _narrow_model(folder / "narrow"), ADAPTER_RANK, 3),
        "large_rank": _adapter(folder / "large", NANO, 4 * ADAPTER_RANK, 4),
    }
    return Adapters(**made)


def _narrow_model(folder: Path) -> Path:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(NANO)
    config.hidden_size, config.num_hidden_layers, config.layer_types = 64, 2, config.layer_types[:2]
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def _adapter(folder: Path, base: Path, rank: int, seed: int) -> Path:
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules="all-linear"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return folder
