"""An OpenTelemetry collector for tests: receives spans (OTLP over HTTP) and keeps them in memory."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.http_thread import Handler, answering

KINDS = {2: "server", 3: "client"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One span. Times are seconds since the epoch."""

    service: str
    name: str
    kind: str
    trace: str
    id: str
    parent: str
    began: float
    ended: float
    facts: dict[str, Any]
    failed: bool


class Collector:
    """The spans received so far; `url` is its endpoint."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.url = ""

    def take(self, body: bytes) -> None:
        """Add the spans of one export request, a serialised `ExportTraceServiceRequest`."""
        exported = ExportTraceServiceRequest()
        exported.ParseFromString(body)
        for of_resource in exported.resource_spans:
            resource = {a.key: a.value.string_value for a in of_resource.resource.attributes}
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    self.spans.append(
                        Received(
                            service=resource.get("service.instance.id") or resource["service.name"],
                            name=span.name,
                            kind=KINDS.get(span.kind, "internal"),
                            trace=span.trace_id.hex(),
                            id=span.span_id.hex(),
                            parent=span.parent_span_id.hex(),
                            began=span.start_time_unix_nano / 1e9,
                            ended=span.end_time_unix_nano / 1e9,
                            facts={a.key: a.value.string_value or a.value.int_value for a in span.attributes},
                            failed=span.status.code == 2,
                        )
                    )


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens on a free port until the block ends."""
    collector = Collector()

    class Spans(Handler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.respond(200)

    with answering(Spans) as port:
        collector.url = f"http://127.0.0.1:{port}"
        yield collector
