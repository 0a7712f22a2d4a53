"""A pytest plugin for the interaction tests of the `mcp` SDK: puts a gateway between their client and their server.

Those tests reach servers by the functions of `tests.interaction._connect`, which this module replaces before their
modules are imported. The tests themselves stay as they are. `interaction.py` runs them.

| their transport | the way with a gateway |
|---|---|
| in-memory | Streamable HTTP to the gateway, and the server as an object in its process |
| streamable-http, stateless or not | Streamable HTTP to the gateway, and from there to the server's own HTTP app |
| sse | HTTP+SSE to the gateway, and the server as an object in its process |
| `mounted_app` | an HTTP client at the gateway, which reaches the server's own HTTP app |
"""

import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import anyio
import httpx2
import pytest
import sniffio
import uvicorn
from mcp.client.client import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types.version import LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS

from gateway import Gateway, Settings, create_app
from session_store import KeyRing

_connect: Any = import_module("tests.interaction._connect")  # the `tests` of the SDK, not of this project
StreamingASGITransport: Any = import_module("tests.interaction.transports._bridge").StreamingASGITransport
BASE_URL: str = _connect.BASE_URL
SERVER = "tested"
CONTEXT = b"io.github.mcp-session-gateway/context"
"""Key of what the gateway tells a server of the session, in `_meta` of requests."""
MARKS = {"reason", "correlation_id", "io.github.mcp-session-gateway/trace"}
"""Keys that the gateway adds to `data` of errors and `_meta` of failed results, as docs/errors.md says."""
AUTHORIZATION = {"auth", "token_verifier", "auth_server_provider", "transport_security"}
"""Arguments of `mounted_app` that are about the listener of the server itself: who may send to it."""


@contextlib.asynccontextmanager
async def _gateway(url: str = "", server: Any = None) -> AsyncIterator[Any]:
    """The app of a gateway before the server at `url`, or before a server object."""
    settings = Settings.model_validate(
        {
            "mcpServers": {SERVER: {"url": url, "methods": {"*": {}}}} if url else {},
            "gateway": {"sse": True},
        }
    )
    servers = {} if url else {SERVER: _WithoutContext(server)}
    gateway = Gateway(settings, servers=servers, ring=KeyRing.ephemeral())
    _used.append(True)
    async with gateway.running():
        yield _unmarked(create_app(settings, gateway=gateway))


def _unmarked(app: Any) -> Any:
    """The app without what the gateway adds to messages by design (`MARKS`)."""

    async def unmarked(scope: Any, receive: Any, send: Any) -> None:
        async def sending(event: Any) -> None:
            if event["type"] == "http.response.start":
                kept = [(name, value) for name, value in event["headers"] if name.lower() != b"content-length"]
                event = {**event, "headers": kept}
            elif event["type"] == "http.response.body":
                lines = event.get("body", b"").split(b"\n")
                event = {**event, "body": b"\n".join(map(_without_marks, lines))}
            await send(event)

        await app(scope, receive, sending)

    return unmarked


def _streaming(app: Any) -> Any:
    """The app, which sends a single answer to a legacy client as a stream of one event.

    A server chooses between JSON and a stream. Tests that read the wire know what the SDK's server chooses.
    """

    async def streaming(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])
        is_legacy = headers.get(b"mcp-protocol-version", b"").decode() not in MODERN_PROTOCOL_VERSIONS
        is_single = False

        async def sending(event: Any) -> None:
            nonlocal is_single
            if event["type"] == "http.response.start" and event["status"] == 200:
                kept = dict(event["headers"])
                is_single = kept.get(b"content-type", b"").startswith(b"application/json")
                if is_single:
                    kept[b"content-type"] = b"text/event-stream"
                    event = {**event, "headers": list(kept.items())}
            elif event["type"] == "http.response.body" and is_single and event.get("body"):
                event = {**event, "body": b"event: message\ndata: " + event["body"] + b"\n\n"}
            await send(event)

        is_call = scope["method"] == "POST" and b"text/event-stream" in headers.get(b"accept", b"")
        await app(scope, receive, sending if is_legacy and is_call else send)

    return streaming


def _without_context(app: Any) -> Any:
    """The app of a server, which is not given what the gateway tells it of the session in `_meta`."""

    async def unmarked(scope: Any, receive: Any, send: Any) -> None:
        async def receiving() -> Any:
            event = await receive()
            if event["type"] == "http.request" and CONTEXT in event.get("body", b""):
                body, more = event["body"], event.get("more_body", False)
                while more:
                    event = await receive()
                    body, more = body + event.get("body", b""), event.get("more_body", False)
                message = json.loads(body)
                _take_context(message["params"])
                event = {"type": "http.request", "body": json.dumps(message).encode(), "more_body": False}
            return event

        kept = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        await app({**scope, "headers": kept}, receiving, send)

    return unmarked


def _take_context(params: dict[str, Any]) -> None:
    meta = params["_meta"]
    meta.pop(CONTEXT.decode(), None)
    if not meta:
        del params["_meta"]


class _WithoutContext:
    """A server object, which is not given what the gateway tells it of the session in `_meta`."""

    def __init__(self, server: Any) -> None:
        self._server = getattr(server, "_lowlevel_server", server)

    def create_initialization_options(self) -> Any:
        return self._server.create_initialization_options()

    async def run(self, read: Any, write: Any, options: Any) -> None:
        receive = read.receive

        async def receiving() -> Any:
            received = await receive()
            params = getattr(received.message, "params", None)
            if params is not None and "_meta" in params:
                _take_context(params)
            return received

        read.receive = receiving
        await self._server.run(read, write, options)


def _without_marks(line: bytes) -> bytes:
    name, found, value = line.partition(b"data: ")
    start, text = (found, value) if found and not name else (b"", line)
    if not text.startswith(b"{"):
        return line
    message = json.loads(text)
    for part, key in (
        (message.get("error"), "data"),
        (message.get("result"), "_meta"),
        (message.get("params"), "_meta"),
    ):
        if isinstance(part, dict) and isinstance(marked := part.get(key), dict):
            kept = {name: value for name, value in marked.items() if name not in MARKS}
            if kept:
                part[key] = kept
            elif marked:
                del part[key]
    return start + json.dumps(message).encode()


@contextlib.asynccontextmanager
async def _listening(app: Any) -> AsyncIterator[str]:
    """The URL of an ASGI app on a socket."""
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        with anyio.CancelScope(shield=True):
            await server.shutdown()


@contextlib.asynccontextmanager
async def _before_its_app(server: Any, **options: Any) -> AsyncIterator[Any]:
    """A gateway's app; the server listens on HTTP."""
    options.setdefault("transport_security", _connect.NO_DNS_REBINDING_PROTECTION)
    lowlevel = getattr(server, "_lowlevel_server", server)
    app = lowlevel.streamable_http_app(**options)
    async with server.session_manager.run(), _listening(_without_context(app)) as url, _gateway(url) as gateway:
        yield gateway


@contextlib.asynccontextmanager
async def _connected(way: Callable[..., Any], server: Any, spec_version: str, **options: Any) -> AsyncIterator[Any]:
    served = ("stateless_http", "json_response", "event_store", "retry_interval")
    of_server = {name: options.pop(name) for name in served if name in options}
    mode = spec_version if spec_version in MODERN_PROTOCOL_VERSIONS else "legacy"
    async with (
        way(server, **of_server) as app,
        httpx2.AsyncClient(transport=StreamingASGITransport(app), base_url=BASE_URL) as http,
        Client(streamable_http_client(f"{BASE_URL}/mcp", http_client=http), mode=mode, **options) as client,
    ):
        yield client


@contextlib.asynccontextmanager
async def in_memory(
    server: Any, *, spec_version: str = LATEST_HANDSHAKE_VERSION, **options: Any
) -> AsyncIterator[Client]:
    async with _connected(lambda tested: _gateway(server=tested), server, spec_version, **options) as client:
        yield client


@contextlib.asynccontextmanager
async def over_streamable_http(
    server: Any, *, spec_version: str = LATEST_HANDSHAKE_VERSION, **options: Any
) -> AsyncIterator[Client]:
    async with _connected(_before_its_app, server, spec_version, **options) as client:
        yield client


@contextlib.asynccontextmanager
async def over_sse(
    server: Any, *, spec_version: str = LATEST_HANDSHAKE_VERSION, **options: Any
) -> AsyncIterator[Client]:
    async with _gateway(server=server) as app:

        def http_client(
            headers: dict[str, str] | None = None,
            timeout: httpx2.Timeout | None = None,
            auth: httpx2.Auth | None = None,
        ) -> httpx2.AsyncClient:
            transport = StreamingASGITransport(app, cancel_on_close=False)
            options: dict[str, Any] = {"headers": headers, "timeout": timeout, "auth": auth}
            return httpx2.AsyncClient(transport=transport, base_url=BASE_URL, **options)

        transport = sse_client(f"{BASE_URL}/sse", httpx_client_factory=http_client)
        async with Client(transport, mode="legacy", **options) as client:
            yield client


@contextlib.asynccontextmanager
async def _as_it_is(thing: Any) -> AsyncIterator[Any]:
    yield thing


def _mounted_app(original: Any) -> Any:
    @contextlib.asynccontextmanager
    async def mounted_app(
        server: Any, *, on_request: Any = None, on_response: Any = None, headers: Any = None, **options: Any
    ) -> AsyncIterator[Any]:
        if not AUTHORIZATION.isdisjoint(options) or sniffio.current_async_library() != "asyncio":
            hooks = {"on_request": on_request, "on_response": on_response, "headers": headers}
            async with original(server, **hooks, **options) as direct:
                yield direct
            return
        given = {"request": on_request, "response": on_response}
        hooks = {name: [hook] for name, hook in given.items() if hook is not None}
        async with (
            _before_its_app(server, **options) as app,
            _as_it_is(app if options.get("json_response") else _streaming(app)) as seen,
            httpx2.AsyncClient(
                transport=StreamingASGITransport(seen), base_url=BASE_URL, event_hooks=hooks, headers=headers
            ) as http,
        ):
            yield http, server.session_manager

    return mounted_app


REPLACED = {
    "connect_in_memory": in_memory,
    "connect_over_streamable_http": over_streamable_http,
    "connect_over_streamable_http_stateless": partial(over_streamable_http, stateless_http=True),
    "connect_over_sse": over_sse,
    "mounted_app": _mounted_app(_connect.mounted_app),
}
for _name, _way in REPLACED.items():
    setattr(_connect, _name, _way)

_used: list[bool] = []
"""Of the test that runs: whether it has started a gateway."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """Leave the tests out that reach no server by a replaced function."""
    reach = [
        item for item in items if "connect" in item.fixturenames or not vars(item.module).keys().isdisjoint(REPLACED)
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in reach])
    items[:] = reach


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    _used.clear()
    try:
        return (yield)
    finally:
        item.user_properties.append(("gateway", bool(_used)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One line of JSON for each test that a gateway took part in: its id, and whether it passed."""
    if (
        report.when == "call"
        and "PYTEST_XDIST_WORKER" not in os.environ
        and dict(report.user_properties).get("gateway")
    ):
        line = {"test": report.nodeid, "passed": report.outcome != "failed"}
        with open(os.environ["SDK_INTERACTION_REPORT"], "a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")
