"""Makes the fixtures of this folder with the real instrumentations, against a scripted model: `record.py KIND FILE`.

KIND is `openinference` (openinference-instrumentation-openai) or `genai` (pydantic-ai's own spans). It runs by hand, in
an environment with those packages; with `--to URL` spans go to a real backend instead, such as `phoenix serve`, whose
answer to `GET /v1/projects/default/spans` is `phoenix_spans.json`. Tests only read the files.
"""

from __future__ import annotations

import argparse
import base64
import json
import threading
from pathlib import Path
from typing import Any

import openai
import uvicorn
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

SYSTEM = "You are a support agent."
REQUEST = "Where is my order #W1?"
RESULT = '{"status": "pending"}'
PARAMETERS = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}
TOOL = {
    "type": "function",
    "function": {"name": "get_order", "description": "Reads an order.", "parameters": PARAMETERS},
}
BODIES: list[bytes] = []


async def chat(request: Request) -> Response:
    messages = (await request.json())["messages"]
    call = {"id": "call_1", "type": "function", "function": {"name": "get_order", "arguments": '{"order_id": "#W1"}'}}
    message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
    if messages[-1]["role"] == "tool":
        message = {"role": "assistant", "content": "Order #W1 is pending."}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "tiny"}
    return JSONResponse({**answer, "choices": [choice], "usage": usage})


async def traces(request: Request) -> Response:
    BODIES.append(await request.body())
    return Response(b"", media_type="application/x-protobuf")


def serve() -> str:
    routes = [Route("/v1/chat/completions", chat, methods=["POST"]), Route("/v1/traces", traces, methods=["POST"])]
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), port=0, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    waiting = threading.Event()
    while not server.started:
        waiting.wait(0.05)
    return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


def run_openinference(provider: TracerProvider, url: str) -> None:
    from openinference.instrumentation.openai import OpenAIInstrumentor

    OpenAIInstrumentor().instrument(tracer_provider=provider)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": REQUEST}]
    tracer = provider.get_tracer("an.agent")
    named = {"openinference.span.kind": "AGENT", "agent.name": "support", "input.value": REQUEST}
    with tracer.start_as_current_span("agent", attributes=named) as root:
        asked: Any = client.chat.completions.create(model="tiny", messages=messages, tools=[TOOL]).choices[0].message
        (call,) = asked.tool_calls
        used = {"openinference.span.kind": "TOOL", "tool.name": "get_order", "input.value": call.function.arguments}
        with tracer.start_as_current_span("get_order", attributes={**used, "output.value": RESULT}):
            pass
        messages += [asked.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
        said = client.chat.completions.create(model="tiny", messages=messages, tools=[TOOL]).choices[0].message
        root.set_attribute("output.value", said.content or "")


def run_genai(provider: TracerProvider, url: str) -> None:
    from pydantic_ai import Agent, InstrumentationSettings
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    Agent.instrument_all(InstrumentationSettings(tracer_provider=provider))
    model = OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    agent = Agent(model, name="support", system_prompt=SYSTEM)

    @agent.tool_plain
    def get_order(order_id: str) -> dict[str, str]:
        """Reads an order."""
        return json.loads(RESULT)

    agent.run_sync(REQUEST)


def hex_ids(value: Any) -> Any:
    """Protobuf's JSON writes ids in base64, OTLP's in hex."""
    if isinstance(value, dict):
        return {
            key: base64.b64decode(item).hex() if key in ("traceId", "spanId", "parentSpanId") else hex_ids(item)
            for key, item in value.items()
        }
    return [hex_ids(item) for item in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["openinference", "genai"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--to", help="URL of a backend's /v1/traces")
    given = parser.parse_args()
    url = serve()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=given.to or f"{url}/v1/traces")))
    (run_openinference if given.kind == "openinference" else run_genai)(provider, url)
    provider.shutdown()
    if given.to is None:
        lines = [json.dumps(hex_ids(MessageToDict(ExportTraceServiceRequest.FromString(body)))) for body in BODIES]
        given.file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
