"""Makes the fixtures of sources that don't speak OTLP, with their real SDKs: `record_runs.py KIND FILE`.

KIND is `langsmith`, `langchain` (through LangSmith) or `weave`: the runs and calls that the SDK posts, start and end
merged as the server does. Or `jaeger`: what the Thrift exporter sends, written in the form of Jaeger's `GET
/api/traces`, which its server makes (tags, times and references as its converter writes them). It runs by hand, in an
environment with that SDK. Tests only read the files.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from pathlib import Path
from typing import Any

from scripted_model import POSTED, REQUEST, SYSTEM, converse, get_order, serve


def client_of(url: str) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{url}/v1", api_key="none")


def run_langsmith(url: str) -> list[Any]:
    os.environ |= {"LANGSMITH_TRACING": "true", "LANGSMITH_ENDPOINT": url, "LANGSMITH_API_KEY": "none"}
    from langsmith import Client, traceable
    from langsmith.wrappers import wrap_openai

    client = Client()
    traced = traceable(get_order, name="get_order", run_type="tool", client=client)
    model = wrap_openai(client_of(url), tracing_extra={"client": client})
    traceable(lambda: converse(model, traced), name="support", run_type="chain", client=client)()
    client.flush()
    return posted_runs()


def run_langchain(url: str) -> list[Any]:
    os.environ |= {"LANGSMITH_TRACING": "true", "LANGSMITH_ENDPOINT": url, "LANGSMITH_API_KEY": "none"}
    from langchain_core.messages import HumanMessage, SystemMessage
    from langchain_core.tools import tool
    from langchain_core.tracers.langchain import wait_for_all_tracers
    from langchain_openai import ChatOpenAI
    from langsmith import Client, traceable

    client = Client()

    @tool("get_order", description="Reads an order.")
    def read_order(order_id: str) -> str:
        return get_order(order_id)

    model = ChatOpenAI(model="tiny", base_url=f"{url}/v1", api_key="none").bind_tools([read_order])

    def support() -> str:
        messages: list[Any] = [SystemMessage(SYSTEM), HumanMessage(REQUEST)]
        asked = model.invoke(messages)
        messages += [asked, read_order.invoke(asked.tool_calls[0])]
        return str(model.invoke(messages).content)

    traceable(support, name="support", run_type="chain", client=client)()
    wait_for_all_tracers()
    client.flush()
    return posted_runs()


def posted_runs() -> list[Any]:
    """Creation and update of each run, merged as the server does."""
    runs: dict[str, Any] = {}
    for posted in POSTED:
        if not posted.path.endswith("/runs/batch"):
            continue
        raw = gzip.decompress(posted.body) if posted.headers.get("content-encoding") == "gzip" else posted.body
        body = json.loads(raw)
        for run in (*body.get("post", ()), *body.get("patch", ())):
            runs.setdefault(run["id"], {}).update({key: value for key, value in run.items() if value is not None})
    return list(runs.values())


def run_weave(url: str) -> list[Any]:
    import weave
    from weave.trace.context import weave_client_context
    from weave.trace.weave_client import WeaveClient
    from weave.trace_server_bindings.remote_http_trace_server import RemoteHTTPTraceServer

    client = WeaveClient("nobody", "support", RemoteHTTPTraceServer(url), ensure_project_exists=False)
    weave_client_context.set_weave_client_global(client)
    weave.integrations.patch_openai()
    traced = weave.op(get_order, name="get_order")
    weave.op(lambda: converse(client_of(url), traced), name="support")()
    client.finish()
    calls: dict[str, Any] = {}
    for posted in POSTED:
        if not posted.path.startswith("/call"):
            continue
        body = json.loads(posted.body)
        parts = [part.get("req", part) for part in body.get("batch", [body])]
        for part in parts:
            call = part.get("start") or part.get("end") or part
            calls.setdefault(call["id"], {}).update({key: value for key, value in call.items() if value is not None})
    return list(calls.values())


def run_jaeger(url: str) -> list[Any]:
    from opentelemetry import trace
    from opentelemetry.exporter.jaeger.thrift import JaegerExporter
    from opentelemetry.exporter.jaeger.thrift.gen.jaeger import ttypes
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from thrift.protocol.TBinaryProtocol import TBinaryProtocol
    from thrift.transport.TTransport import TMemoryBuffer

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(JaegerExporter(collector_endpoint=f"{url}/api/traces?format=x")))
    # Attributes as pydantic-ai wrote them: the fixture that it recorded, sent again through the Jaeger exporter.
    lines = Path(__file__).with_name("genai.otlp.jsonl").read_text(encoding="utf-8").splitlines()
    spans = [
        span
        for line in lines
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    tracer = provider.get_tracer("pydantic-ai")
    _send_again(tracer, trace, sorted(spans, key=lambda span: span["startTimeUnixNano"]))
    provider.shutdown()
    found: list[Any] = []
    for posted in POSTED:
        batch = ttypes.Batch()
        batch.read(TBinaryProtocol(TMemoryBuffer(posted.body)))
        found += [_jaeger_span(span) for span in batch.spans]
    trace_id = found[0]["traceID"]
    return [
        {"data": [{"traceID": trace_id, "spans": found, "processes": {"p1": {"serviceName": "support", "tags": []}}}]}
    ]


def _send_again(tracer: Any, trace: Any, spans: list[Any]) -> None:
    made: dict[str, Any] = {}
    for span in spans:
        above = made.get(span.get("parentSpanId", ""))
        context = trace.set_span_in_context(above) if above is not None else None
        plain = {a["key"]: _plain(a["value"]) for a in span["attributes"]}
        made[span["spanId"]] = tracer.start_span(
            span["name"], context, attributes=plain, start_time=int(span["startTimeUnixNano"])
        )
    for span in spans:
        made[span["spanId"]].end(int(span["endTimeUnixNano"]))


def _plain(value: dict[str, Any]) -> Any:
    (held,) = value.values()
    return [_plain(item) for item in held["values"]] if "arrayValue" in value else held


def _jaeger_span(span: Any) -> dict[str, Any]:
    """A Thrift span as Jaeger's query service writes it: internal/uimodel/converter of jaegertracing/jaeger."""
    trace_id = f"{span.traceIdHigh & (2**64 - 1):016x}{span.traceIdLow & (2**64 - 1):016x}"
    parent = span.parentSpanId & (2**64 - 1)
    reference = {"refType": "CHILD_OF", "traceID": trace_id, "spanID": f"{parent:016x}"}
    names = ("string", "float64", "bool", "int64", "binary")
    tags = [
        {
            "key": tag.key,
            "type": names[tag.vType],
            "value": (tag.vStr, tag.vDouble, tag.vBool, tag.vLong, tag.vBinary)[tag.vType],
        }
        for tag in span.tags or ()
    ]
    return {
        "traceID": trace_id,
        "spanID": f"{span.spanId & (2**64 - 1):016x}",
        "operationName": span.operationName,
        "references": [reference] if parent else [],
        "startTime": span.startTime,
        "duration": span.duration,
        "tags": tags,
        "logs": [],
        "processID": "p1",
        "warnings": None,
    }


KINDS = {"langsmith": run_langsmith, "langchain": run_langchain, "weave": run_weave, "jaeger": run_jaeger}
# Where and on what it was recorded is nobody's business.
PRIVATE = frozenset({"runtime", "LANGSMITH_ENDPOINT", "sys_version", "os_name", "os_version", "os_release"})


def public(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: public(item) for key, item in value.items() if key not in PRIVATE}
    return [public(item) for item in value] if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    rows = KINDS[given.kind](serve())
    given.file.write_text("".join(f"{json.dumps(public(row), default=str)}\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
