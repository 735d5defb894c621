"""OpenAI Responses: requests read, whole answers and errors written as the official clients expect them.

It knows nothing about the engine, rollouts or tokens. `previous_response_id` and item references are served from the
rollout's own record. What items mean is items.py's, the events are responses_stream.py's.
Source: OpenAI API reference, responses/create and responses/retrieve. Called by model.py.
"""

from __future__ import annotations

from typing import Any

import msgspec

from harness.gateway.dialects import chunks
from harness.gateway.dialects.bodies import decode_body, encode_messages, pick, picker, response_format
from harness.gateway.dialects.items import output_items, read_input, read_tools
from harness.gateway.dialects.response import Asked, response_id, response_object
from harness.gateway.dialects.responses_stream import ResponsesStreamWriter
from harness.gateway.record import AnswerRecord, StoredResponse
from harness.gateway.request import BadRequest, ModelAnswer, ModelRequest

NAME: str = "responses"
"""What spans call this dialect."""

_SAMPLING = picker("temperature top_p top_k")
# Repeated in the answer, as OpenAI does.
_ECHO = picker(
    "instructions max_output_tokens max_tool_calls metadata parallel_tool_calls previous_response_id prompt_cache_key"
    " reasoning safety_identifier service_tier store temperature text tool_choice tools top_p truncation user"
)
_ECHO_DEFAULTS: dict[str, Any] = {
    "background": False,
    "error": None,
    "instructions": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
}


class _Reasoning(msgspec.Struct):
    effort: str | None = None
    """How much to reason."""


class _Text(msgspec.Struct):
    format: dict[str, Any] | None = None
    """Schema that the answer must follow."""


class _ResponsesBody(msgspec.Struct):
    """The fields that are acted on; others are ignored."""

    input: str | list[dict[str, Any]] | None = None
    """What is new."""
    model: str = ""
    """Any name: the rollout decides."""
    instructions: str | None = None
    """System message of this call alone."""
    previous_response_id: str | None = None
    """What the input follows."""
    tools: list[dict[str, Any]] | None = None
    """Function tools; others are refused."""
    tool_choice: str | dict[str, Any] | None = None
    """Whether and which tools must be called."""
    parallel_tool_calls: bool | None = None
    """Several calls in one answer."""
    max_output_tokens: int | None = None
    """Longest answer."""
    reasoning: _Reasoning | None = None
    """Effort."""
    text: _Text | None = None
    """Format."""
    stream: bool | None = None
    """Answer in events."""
    store: bool | None = None
    """False: the answer may not be referred to."""
    include: list[str] | None = None
    """More in the answer; log-probabilities are refused, the rest has no meaning here."""
    top_logprobs: int | None = None
    """Refused."""
    background: bool | None = None
    """Refused: answer later."""
    conversation: Any = None
    """Refused: a conversation kept by OpenAI."""
    prompt: Any = None
    """Refused: a prompt kept by OpenAI."""


_BODY = msgspec.json.Decoder(_ResponsesBody)


def parse(content: bytes, record: AnswerRecord) -> ModelRequest:
    """A request, with what it follows; raises BadRequest."""
    body = decode_body(_BODY, content)
    _refuse(body)
    front = [{"role": "system", "content": body.instructions}] if body.instructions else []
    before = _before(body.previous_response_id, record)
    new = read_input(body.input, record.items) if body.input is not None else []
    if not before and not new:
        raise BadRequest("input is empty: give a text or at least one item", "input")
    tools = read_tools(body.tools or [])
    return ModelRequest(
        messages=encode_messages(front) + before + encode_messages(new),
        tools=msgspec.Raw(msgspec.json.encode(tools) if tools else b"null"),
        model=body.model,
        stream=bool(body.stream),
        sampling=pick(_SAMPLING, content),
        constraints=_constraints(body),
        max_tokens=body.max_output_tokens,
        own=Asked({**_ECHO_DEFAULTS, **pick(_ECHO, content)}, len(front)),
    )


def parse_count(content: bytes, record: AnswerRecord) -> ModelRequest:
    """A request whose prompt is to be counted; raises BadRequest."""
    return parse(content, record)


def _refuse(body: _ResponsesBody) -> None:
    for name in ("background", "conversation", "prompt"):
        if getattr(body, name):
            raise BadRequest(f"{name} can't be served: nothing is kept outside this rollout", name)
    if body.top_logprobs or "message.output_text.logprobs" in (body.include or ()):
        raise BadRequest("log-probabilities are served by /v1/chat/completions only", "top_logprobs")


def _before(response_id: str | None, record: AnswerRecord) -> list[msgspec.Raw]:
    if response_id is None:
        return []
    stored = record.responses.get(response_id)
    if stored is None:
        message = f"Previous response with id {response_id!r} not found: this rollout has not stored it"
        raise BadRequest(message, "previous_response_id")
    return stored.messages


def _constraints(body: _ResponsesBody) -> dict[str, Any]:
    constraints: dict[str, Any] = {}
    if body.tools and body.tool_choice is not None:
        constraints["tool_choice"] = _tool_choice(body.tool_choice)
    if body.tools and body.parallel_tool_calls is not None:
        constraints["parallel_tool_calls"] = body.parallel_tool_calls
    if body.reasoning is not None and body.reasoning.effort is not None:
        constraints["reasoning_effort"] = body.reasoning.effort
    wanted = (body.text.format if body.text is not None else None) or {"type": "text"}
    if wanted.get("type") == "json_schema":
        name, strict = str(wanted.get("name")), bool(wanted.get("strict"))
        constraints["response_format"] = response_format(name, wanted.get("schema"), strict)
    elif wanted.get("type") == "json_object":
        constraints["response_format"] = {"type": "json_object"}
    elif wanted.get("type") != "text":
        raise BadRequest(f"text.format.type is {wanted.get('type')!r}: use text, json_schema, json_object", "text")
    return constraints


def _tool_choice(choice: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(choice, str):
        return choice
    if choice.get("type") != "function":
        raise BadRequest(f"tool_choice.type is {choice.get('type')!r}, which can't be served", "tool_choice")
    return {"type": "function", "function": {"name": choice.get("name")}}


def remember(record: AnswerRecord, request: ModelRequest, answer: ModelAnswer) -> None:
    """Keep the answer for requests that follow or name it, unless the client asked not to."""
    asked: Asked = request.own
    if not asked.echo["store"]:
        return
    (sampled,) = answer.choices
    history = [*request.messages[asked.own_messages :], *encode_messages([sampled.message])]
    record.responses[response_id(answer.id)] = StoredResponse(request, answer, history)
    for item in output_items(sampled.message, answer.id, "completed"):
        record.items[item["id"]] = item


def write_answer(request: ModelRequest, answer: ModelAnswer) -> bytes:
    """The whole answer."""
    return msgspec.json.encode(response_object(request, answer))


def write_count(tokens: int) -> bytes:
    """The length of a prompt."""
    return msgspec.json.encode({"object": "response.input_tokens", "input_tokens": tokens})


write_error = chunks.write_error


def stream_writer(request: ModelRequest) -> ResponsesStreamWriter:
    """For one streamed answer."""
    return ResponsesStreamWriter(request)
