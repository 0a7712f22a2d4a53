"""A client and a server of the official SDK that send their spans to a collector: `server`, or `client URL SESSION`.

The variable OTEL_EXPORTER_OTLP_ENDPOINT has the URL of the collector.
"""

import asyncio
import sys

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor


def send_spans(service: str) -> TracerProvider:
    """Set up the OpenTelemetry SDK to export spans, as any traced program does."""
    provider = TracerProvider(resource=Resource({"service.name": service}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider


async def call(url: str, session: str) -> None:
    headers = {"MCP-Gateway-Session": session}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=20) as http,
        Client(streamable_http_client(url, http_client=http), mode="2026-07-28") as client,
    ):
        with trace.get_tracer("agent").start_as_current_span("answer the user"):
            print(await client.call_tool("echo", {"text": "hi"}))  # noqa: T201  # for the test that reads it


if __name__ == "__main__":
    if sys.argv[1] == "client":
        provider = send_spans("agent")
        asyncio.run(call(*sys.argv[2:]))
        provider.shutdown()
    else:
        send_spans("server")
        from tests.matrix.features import main

        sys.argv[1:] = ["stdio"]
        main()
