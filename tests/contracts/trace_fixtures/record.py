"""Makes the OTLP fixtures of this folder with the real SDKs, against a scripted model: `record.py KIND FILE`.

KIND is `openinference` (openinference-instrumentation-openai), `genai` (pydantic-ai's own spans), `openllmetry`
(traceloop-sdk), `langfuse` or `logfire`. It runs by hand, in an environment with that SDK; with `--to URL` spans of the
first two go to a real backend instead, such as `phoenix serve`, whose answer to `GET /v1/projects/default/spans` is
`phoenix_spans.json`. Tests only read the files.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import os
from pathlib import Path
from typing import Any

import openai
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from scripted_model import POSTED, REQUEST, RESULT, SYSTEM, converse, get_order, serve


def exporting(url: str) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return provider


def client_of(url: str) -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none")


def run_openinference(url: str, to: str) -> None:
    from openinference.instrumentation.openai import OpenAIInstrumentor

    provider = exporting(to)
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    tracer = provider.get_tracer("an.agent")

    def use_tool(**arguments: str) -> str:
        used = {"openinference.span.kind": "TOOL", "tool.name": "get_order", "input.value": json.dumps(arguments)}
        with tracer.start_as_current_span("get_order", attributes={**used, "output.value": RESULT}):
            return get_order(**arguments)

    named = {"openinference.span.kind": "AGENT", "agent.name": "support", "input.value": REQUEST}
    with tracer.start_as_current_span("agent", attributes=named) as root:
        root.set_attribute("output.value", converse(client_of(url), use_tool))
    provider.shutdown()


def run_genai(url: str, to: str) -> None:
    from pydantic_ai import Agent, InstrumentationSettings
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = exporting(to)
    Agent.instrument_all(InstrumentationSettings(tracer_provider=provider))
    model = OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    agent = Agent(model, name="support", system_prompt=SYSTEM)

    @agent.tool_plain(name="get_order")
    def read_order(order_id: str) -> dict[str, str]:
        """Reads an order."""
        return json.loads(get_order(order_id))

    agent.run_sync(REQUEST)
    provider.shutdown()


def run_openllmetry(url: str, to: str) -> None:
    from traceloop.sdk import Traceloop
    from traceloop.sdk.decorators import agent, tool

    Traceloop.init(
        app_name="support", exporter=OTLPSpanExporter(endpoint=to), disable_batch=True, telemetry_enabled=False
    )
    traced = tool(name="get_order")(get_order)
    agent(name="support")(lambda: converse(client_of(url), traced))()


def run_langfuse(url: str, to: str) -> None:
    from langfuse import Langfuse, observe
    from langfuse.openai import OpenAI

    langfuse = Langfuse(public_key="pk", secret_key="sk", base_url=url)
    traced = observe(get_order, name="get_order", as_type="tool")
    observe(lambda: converse(OpenAI(base_url=f"{url}/v1", api_key="none"), traced), name="support", as_type="agent")()
    langfuse.flush()
    langfuse.shutdown()


def run_logfire(url: str, to: str) -> None:
    import logfire

    processor = SimpleSpanProcessor(OTLPSpanExporter(endpoint=to))
    logfire.configure(send_to_logfire=False, console=False, additional_span_processors=[processor])
    client = client_of(url)
    logfire.instrument_openai(client)
    traced = logfire.instrument("get_order", record_return=True)(get_order)
    with logfire.span("support"):
        converse(client, traced)


KINDS = {
    "openinference": run_openinference,
    "genai": run_genai,
    "openllmetry": run_openllmetry,
    "langfuse": run_langfuse,
    "logfire": run_logfire,
}


def without_paths(request: Any) -> Any:
    """Where it was recorded is nobody's business."""
    for resource in request["resourceSpans"]:
        resource.pop("resource", None)
        for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
            span["attributes"] = [a for a in span.get("attributes", ()) if not a["key"].startswith("code.")]
    return request


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
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--to", help="URL of a backend's /v1/traces")
    given = parser.parse_args()
    os.environ["TRACELOOP_TRACE_CONTENT"] = "true"
    url = serve()
    KINDS[given.kind](url, given.to or f"{url}/v1/traces")
    if given.to is None:
        bodies = [p for p in POSTED if p.path.endswith("/v1/traces")]
        raw = [gzip.decompress(p.body) if p.headers.get("content-encoding") == "gzip" else p.body for p in bodies]
        requests = [hex_ids(MessageToDict(ExportTraceServiceRequest.FromString(body))) for body in raw]
        lines = [json.dumps(without_paths(request)) for request in requests]
        given.file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
