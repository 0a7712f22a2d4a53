"""Makes the OpenTelemetry provider that exports spans, from the standard environment variables of OpenTelemetry."""

import asyncio
from typing import Final

from opentelemetry import trace

from gateway.config.faults import missing_extra
from gateway.observability.sampling import GivenIds
from gateway.observability.spans import Tracing

__all__ = ["flush", "tracing"]

_FLUSH_MS: Final = 2_000


def tracing(version: str) -> Tracing:
    """Spans for the provider that this program has, else for one that sends them by OTLP over HTTP.

    Raises:
        ConfigurationError: the packages for that are not installed.
    """
    ids = None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise missing_extra("gateway.tracing", "tracing") from None
        named = Resource({"service.name": "mcp-session-gateway", "service.version": version})
        ids = GivenIds()
        provider = TracerProvider(
            resource=named.merge(OTELResourceDetector().detect()),
            id_generator=ids,  # type: ignore[arg-type]  # their base class is in a package that may be missing here
        )
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
    return Tracing(trace.get_tracer("mcp_session_gateway", version), ids)


async def flush() -> None:
    """Have the spans sent that wait to be: the process may end by a signal, and nobody asks it then."""
    send = getattr(trace.get_tracer_provider(), "force_flush", None)
    if send is not None:
        await asyncio.to_thread(send, _FLUSH_MS)
