"""One chat completion through LiteLLM, with its many errors told apart by what can be done about them.

It knows nothing about verdicts, rubrics, caches or retries. The one file that imports LiteLLM, and only on first use:
the import takes seconds. Called by judge.py.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from harness.errors import JudgeError

Messages = Sequence[dict[str, str]]
LONGEST_RETRY_AFTER_S = 60.0
HOPELESS_STATUS = (401, 402, 403, 404)


class JudgeFailed(JudgeError):
    """This one question got no usable answer; the next may. Whoever asked leaves its trajectories unscored."""


class EndpointBusy(Exception):
    """Rate limit, time-out, server error or lost connection: worth another attempt."""

    def __init__(self, cause: BaseException, retry_after_s: float) -> None:
        super().__init__(one_line(cause))
        self.retry_after_s = retry_after_s
        """How long the server wants us to wait; 0 where it didn't say."""


class RequestRefused(Exception):
    """The endpoint refuses this request; sent again it would refuse it again."""


class PromptRefused(RequestRefused):
    """The endpoint refuses what the messages hold, whatever comes with them: too long, or against its rules."""


class SchemaRefused(Exception):
    """The endpoint refuses a request that carries a JSON schema; it may take it without."""


@dataclass(frozen=True, slots=True)
class JudgeSpec:
    """Which judge, how it is asked, and how patient we are."""

    model: str
    """LiteLLM model string: `openai/gpt-5`, `hosted_vllm/base`, …"""
    api_base: str | None = None
    """Address of an OpenAI-compatible endpoint; None for the provider's own."""
    api_key: str | None = field(default=None, repr=False)
    """Key; None leaves it to LiteLLM, which reads the provider's environment variable."""
    temperature: float | None = None
    """None leaves it to the provider."""
    max_answer_tokens: int = 4096
    """Tokens of one answer, reasoning included."""
    max_prompt_tokens: int = 24_000
    """Budget of one prompt, by an estimate from above."""
    concurrency: int = 8
    """Questions under way at once."""
    timeout_s: float = 120.0
    """Time one attempt has, from sending to the last byte."""
    attempts: int = 5
    """Attempts at one question on rate limits, time-outs and server errors."""
    backoff_s: float = 0.5
    """First wait; doubles each time, with jitter, up to 30 s; a server's Retry-After is kept to."""
    json_schema: bool = True
    """Send a JSON schema; given up for good when the endpoint refuses it."""

    def __str__(self) -> str:
        return repr(self.model) + (f" at {self.api_base}" if self.api_base else "")


@dataclass(slots=True)
class JudgeUsage:
    """What judging has cost so far."""

    calls: int = 0
    """Answers received from the endpoint."""
    cached: int = 0
    """Answers taken from the cache."""
    retries: int = 0
    """Further attempts after a rate limit, time-out or server error."""
    prompt_tokens: int = 0
    """As the endpoint counts them."""
    completion_tokens: int = 0
    """As the endpoint counts them."""
    cost_usd: float = 0.0
    """By LiteLLM's price table, over calls whose model it knows."""
    unpriced_calls: int = 0
    """Calls of models without a known price; not in `cost_usd`."""

    def add(self, other: JudgeUsage) -> None:
        """Count `other` in."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_metrics(self, prefix: str) -> dict[str, float]:
        """The numbers under `prefix`, as metrics."""
        return {f"{prefix}{name}": float(getattr(self, name)) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer."""

    text: str
    """What the judge wrote; empty where it wrote nothing."""
    is_complete: bool
    """False when it was cut off or withheld by the endpoint."""
    usage: JudgeUsage
    """What this answer cost."""


async def complete(spec: JudgeSpec, messages: Messages, schema: dict[str, Any] | None) -> Reply:
    """One attempt at an answer.

    Raises EndpointBusy where another attempt may succeed, SchemaRefused where one without `schema` may, JudgeFailed
    where this request can't succeed, and JudgeError where none can: no such model, no key, no right, no LiteLLM.
    """
    try:
        response = await respond(spec, _arguments(spec, messages, schema))
    except PromptRefused as error:
        raise failed(spec, f"it can't take this prompt: {error}") from error
    except RequestRefused as error:
        if schema is not None:
            raise SchemaRefused(str(error)) from error
        raise failed(spec, f"it refused the request: {error}") from error
    return _reply(response)


async def respond(spec: JudgeSpec, arguments: Mapping[str, Any]) -> Any:
    """One attempt at a completion: LiteLLM's response.

    Raises EndpointBusy where another attempt may succeed, RequestRefused where none at this request can, and JudgeError
    where none at all can.
    """
    litellm = load_litellm(spec.model)
    faults = litellm.exceptions
    try:
        async with asyncio.timeout(spec.timeout_s):
            return await litellm.acompletion(**arguments)
    except (faults.ContextWindowExceededError, faults.ContentPolicyViolationError) as error:
        raise PromptRefused(one_line(error)) from error
    except (faults.AuthenticationError, faults.NotFoundError) as error:
        raise _hopeless(spec, error) from error
    except (faults.BadRequestError, faults.UnprocessableEntityError) as error:
        if "LLM Provider NOT provided" in str(error):
            raise _hopeless(spec, error) from error
        raise RequestRefused(one_line(error)) from error
    except (TimeoutError, *_busy(faults)) as error:
        # LiteLLM has no class of its own for every status: 402 and 403 come as a plain APIError.
        if getattr(error, "status_code", None) in HOPELESS_STATUS:
            raise _hopeless(spec, error) from error
        raise EndpointBusy(error, _retry_after_s(error)) from error


def load_litellm(model: str) -> Any:
    """The LiteLLM module, imported on first use, with its own price table and without chatter. Raises JudgeError."""
    # Else the import fetches the price table from the network, three times, before it falls back to its own copy.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm
    except ImportError as error:
        raise JudgeError(
            asked=f"the judge {model!r}", found=f"LiteLLM can't be imported: {error}", fix="install the extra `judge`"
        ) from error
    module = cast("Any", litellm)
    module.suppress_debug_info = True
    module.telemetry = False
    return module


def price_per_token(model: str) -> tuple[float, float] | None:
    """USD a prompt token and a completion token by LiteLLM's table; None for a model it doesn't know."""
    table = load_litellm(model).model_cost
    entry = table.get(model) or table.get(model.partition("/")[2])
    if not entry or "input_cost_per_token" not in entry:
        return None
    return float(entry["input_cost_per_token"]), float(entry.get("output_cost_per_token") or 0.0)


def failed(spec: JudgeSpec, found: str) -> JudgeFailed:
    """The error of a question that stays unanswered."""
    return JudgeFailed(
        asked=f"a verdict from the judge {spec}",
        found=found,
        fix="the rollouts are kept: score them again with `harness score`, or raise judge.timeout_s",
    )


def one_line(error: BaseException | None) -> str:
    """Type and text of an error on one line of at most 300 characters."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _hopeless(spec: JudgeSpec, error: BaseException) -> JudgeError:
    return JudgeError(
        asked=f"a verdict from the judge {spec}",
        found=one_line(error),
        fix="check judge.model (as in openai/gpt-5), judge.api_base and the provider's key in the environment",
    )


def _busy(faults: Any) -> tuple[type[Exception], ...]:
    return (
        faults.OpenAIError,
        faults.PermissionDeniedError,
        faults.RateLimitError,
        faults.Timeout,
        faults.InternalServerError,
        faults.ServiceUnavailableError,
        faults.BadGatewayError,
        faults.APIConnectionError,
        faults.APIResponseValidationError,
        faults.APIError,
    )


def _arguments(spec: JudgeSpec, messages: Messages, schema: dict[str, Any] | None) -> dict[str, Any]:
    arguments = {**endpoint_arguments(spec), "messages": list(messages), "max_tokens": spec.max_answer_tokens}
    if spec.temperature is not None:
        arguments["temperature"] = spec.temperature
    if schema is not None:
        shape = {"name": "verdict", "strict": True, "schema": schema}
        arguments["response_format"] = {"type": "json_schema", "json_schema": shape}
    return arguments


def endpoint_arguments(spec: JudgeSpec) -> dict[str, Any]:
    """What LiteLLM is told of the endpoint: model, address, key, and to leave retries to us."""
    arguments: dict[str, Any] = {
        "model": spec.model,
        "timeout": spec.timeout_s,
        "max_retries": 0,
        "num_retries": 0,
        "drop_params": True,
    }
    if spec.api_base is not None:
        arguments["api_base"] = spec.api_base
        # OpenAI-compatible servers of one's own often want no key, but the client insists on one.
        arguments["api_key"] = spec.api_key or os.environ.get("OPENAI_API_KEY") or "none"
    elif spec.api_key is not None:
        arguments["api_key"] = spec.api_key
    return arguments


def _retry_after_s(error: BaseException) -> float:
    # LiteLLM's errors carry a response made anew, without headers; what the server sent is kept beside it.
    headers: Any = getattr(error, "litellm_response_headers", None)
    value = headers.get("retry-after") if headers is not None else None
    try:
        return min(LONGEST_RETRY_AFTER_S, max(0.0, float(value))) if value is not None else 0.0
    except ValueError:
        return 0.0


def _reply(response: Any) -> Reply:
    choice = response.choices[0] if response.choices else None
    content = getattr(getattr(choice, "message", None), "content", None)
    finish = getattr(choice, "finish_reason", None)
    is_complete = finish not in ("length", "content_filter")
    return Reply(text=str(content or ""), is_complete=is_complete, usage=usage_of(response))


def usage_of(response: Any) -> JudgeUsage:
    """What one of LiteLLM's responses cost."""
    counted = getattr(response, "usage", None)
    cost = getattr(response, "_hidden_params", {}).get("response_cost")
    return JudgeUsage(
        calls=1,
        prompt_tokens=int(getattr(counted, "prompt_tokens", 0) or 0),
        completion_tokens=int(getattr(counted, "completion_tokens", 0) or 0),
        cost_usd=float(cost or 0.0),
        unpriced_calls=0 if cost else 1,
    )
