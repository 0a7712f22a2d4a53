"""What each feature costs a call: a configuration with nothing, one for each feature, and one with everything."""

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from bench.load import Load
from bench.place import Place, Row
from bench.subjects import echo_server

TOOLS: Final = 25
SERVERS: Final = 20
ARGUMENTS: Final = {"text": "hello", "team": "red"}
ORIGIN: Final = "https://agents.example"
RATES: Final = {
    "session_rate": {"per_s": 100_000, "burst": 100_000},
    "principal_rate": {"per_s": 1_000_000, "burst": 1_000_000},
    "principal_sessions": 10_000,
    "principal_processes": 10_000,
}
_RULED_TOOLS: Final = {
    **{f"tool{n}*": {"permissions": ["write"]} for n in range(5)},
    "*": {"bind": {"team": "workspace"}, "blocked": [r"drop\s+table"], "operation": "write"},
}
_RULES: Final = {
    "rules": [
        *({"principals": [f"nobody-{n}"], "trust": "sandboxed"} for n in range(10)),
        {"principals": ["api-key:*"], "workspace": "red", "permissions": ["use", "write"]},
    ],
    "workspaces": {"blue-*": {}, "red": {"servers": ["s*"], "tools": ["s*__tool*"]}},
}
_KEYS: Final = {"api_keys": {"bench": hashlib.sha256(b"key").hexdigest()}}
_AUDIT: Final = {"audit": {"calls": True}}


def features(place: Place) -> list[Row]:
    """One server and 32 sessions, with one feature after the other. Spans go to a `collector`."""
    tools = ["tool7"]
    server = {"command": str(echo_server()), "env": {"ECHO_TOOLS": str(TOOLS)}}
    ruled = {**server, "permissions": ["use"], "tools": _RULED_TOOLS}
    many = [f"s{n}__tool{n % TOOLS}" for n in range(SERVERS)]
    spans = {"OTEL_EXPORTER_OTLP_ENDPOINT": place.collector, "OTEL_TRACES_SAMPLER": "traceidratio"}

    def row(
        name: str,
        *parts: Mapping[str, Any],
        entry: Mapping[str, Any] = server,
        count: int = 1,
        ratio: float = -1.0,
        **load: Any,
    ) -> Row:
        # The echo servers start faster than their memory can be read: each counts as assumed.
        options: dict[str, Any] = {"limits": {"total_memory_mb": 100_000}}
        for part in parts:
            options |= part
        env = {} if ratio < 0 else {**spans, "OTEL_TRACES_SAMPLER_ARG": str(ratio)}
        subject = place.gateway(options=options, servers={f"s{n}": entry for n in range(count)}, env=env)
        return Row(name=name, subject=subject, load=Load(**{"tools": tools, "arguments": ARGUMENTS, **load}))

    origin = {"Origin": ORIGIN}
    web = {"allowed_origins": [ORIGIN]}
    everything = (_KEYS, {"policy": {**RATES, **_RULES}}, _AUDIT, web)

    def full(name: str, *more: Mapping[str, Any], **load: Any) -> Row:
        load |= {"tools": many, "key": "key", "traced": True, "headers": origin}
        return row(name, *everything, *more, entry=ruled, count=SERVERS, ratio=0.01, **load)

    return [
        row("nothing"),
        row("an API key", _KEYS, key="key"),
        row("rates and quotas", {"policy": RATES}),
        row("every kind of rule", _KEYS, {"policy": _RULES}, entry=ruled, key="key"),
        row("20 servers, 500 tools", count=SERVERS, tools=many),
        row("calls audited", _AUDIT),
        row("a traceparent on each call", traced=True),
        row("an Origin on each call", web, headers=origin),
        row("spans, 1 trace of 100", ratio=0.01),
        row("spans, all traces", ratio=1.0),
        full("everything, spans of 1 trace of 100"),
        full("the same, modern client", era="modern"),
        full("the same, sqlite", {"store": f"sqlite:///{place.folder / 'everything.db'}"}),
    ]


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """The URL of an HTTP server that takes spans, and throws them away."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Collector) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_address[1]}"
        finally:
            http.shutdown()
            thread.join()


class _Collector(BaseHTTPRequestHandler):
    """Answers each export as an OTLP collector does."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing."""
