"""One call as a trace: a client of the SDK, two replicas, a server of the SDK.

`python -m tests.operating.trace_picture FILE` draws it anew from real spans.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path

import httpx

from tests.support.gateway_process import ROOT, SIGNED, running_gateway, server
from tests.support.mcp_clients import Modern
from tests.support.redis_server import RunningRedis, running_redis
from tests.support.span_collector import Collector, Received, collecting

__all__ = ["picture", "traced_call"]

_SPANS = 7
_COLOURS = {"agent": "#6b4fbb", "replica A": "#1f5fbf", "replica B": "#0b7a75", "server": "#b26a00"}


def traced_call(redis: RunningRedis) -> list[Received]:
    """A session is opened at replica A; a client calls a tool of it by replica B. All spans of that call."""
    with collecting() as collector, contextlib.ExitStack() as stack:
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        entry = server(
            (sys.executable, "-m", "tests.support.traced_programs", "server"),
            cwd=str(ROOT),
            env={**endpoint, "PYTHONPATH": str(ROOT)},
        )
        replicas = [
            stack.enter_context(
                running_gateway(
                    {"features": entry},
                    options={"store": redis.url, "tracing": True},
                    env={**SIGNED, **endpoint, "OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id=replica {name}"},
                    must_stop=False,
                )
            )
            for name in "AB"
        ]
        with httpx.Client(timeout=20) as http:
            opened = Modern(replicas[0].url, http).tool("echo", {"text": "hello"})
        session = opened.headers["mcp-gateway-session"]
        ran = subprocess.run(
            [sys.executable, "-m", "tests.support.traced_programs", "client", replicas[1].url, session],
            env={**os.environ, **endpoint},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "hi" in ran.stdout, ran.stderr
        return _complete(collector)


def _complete(collector: Collector) -> list[Received]:
    """The call's spans once all have come: the gateways send theirs now and then. The client lists tools as well."""
    deadline = time.monotonic() + 15
    while True:
        sent = "MCP send tools/call echo"
        asked = [span for span in collector.spans if span.name == sent]
        call = [span for span in collector.spans for one in asked if span.id == one.parent]
        for span in call:  # grows while it is walked
            below = [other for other in collector.spans if other.parent == span.id]
            call += [other for other in below if span is not call[0] or other in asked]
        if len(call) == _SPANS or time.monotonic() > deadline:
            return sorted(call, key=lambda span: span.began)
        time.sleep(0.05)


def depth_of(span: Received, spans: list[Received]) -> int:
    """How many spans it is within."""
    parent = next((other for other in spans if other.id == span.parent), None)
    return 0 if parent is None else 1 + depth_of(parent, spans)


def _rows(spans: list[Received]) -> Iterator[str]:
    began, ended = min(span.began for span in spans), max(span.ended for span in spans)
    scale = 560 / (ended - began)
    for row, span in enumerate(sorted(spans, key=lambda one: (depth_of(one, spans), one.began))):
        top, left = 44 + row * 30, 330 + (span.began - began) * scale
        width = max(2.0, (span.ended - span.began) * scale)
        indent = 14 + depth_of(span, spans) * 12
        words = f"{span.service} · {span.name}"
        took = f"{(span.ended - span.began) * 1_000:.2f} ms"
        yield f'<text x="{indent}" y="{top + 15}">{escape(words)} <tspan fill="#667">{span.kind}</tspan></text>'
        yield (
            f'<rect x="{left:.1f}" y="{top + 2}" width="{width:.1f}" height="18" rx="2" '
            f'fill="{_COLOURS.get(span.service, "#666")}"/>'
        )
        inside = width > 70
        x, colour = (left + 6, "#fff") if inside else (left + width + 5, "#334")
        yield f'<text x="{x:.1f}" y="{top + 15}" fill="{colour}">{took}</text>'


def picture(spans: list[Received]) -> str:
    """The trace as SVG."""
    height = 60 + 30 * len(spans)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="980" height="{height}" font-family="sans-serif" '
        f'font-size="12"><title>One call, from the client through two replicas to the server</title>'
        f'<rect width="980" height="{height}" fill="#fff"/>'
        f'<text x="14" y="26" font-size="14" font-weight="bold">trace {spans[0].trace}</text>'
    )
    return "\n".join((head, *_rows(spans), "</svg>\n"))


if __name__ == "__main__":
    with running_redis() as own:
        Path(sys.argv[1]).write_text(picture(traced_call(own)), encoding="utf-8")
