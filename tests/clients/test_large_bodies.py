"""A body that is refused while it is still being sent: the client can read why."""

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from gateway import Settings
from gateway.serving.app import Gateway, create_app
from tests.requirements import requirement
from tests.support.asgi import served
from tests.support.certificates import Authority
from tests.support.gateway_process import PROBE, RunningGateway, running_gateway, server
from tests.tools.obtain import node
from transports.inbound.connections import Connections
from transports.inbound.http_connection import http_connections

pytestmark = requirement("wall.readable-refusal")

FETCH = Path(__file__).with_name("fetch_large.mjs")
ENDED = r"reset|Broken pipe"
PIECE = b"10000\r\n" + b"x" * 65_536 + b"\r\n"


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with running_gateway({"p": server(PROBE)}) as running:
        yield running


@contextlib.contextmanager
def posting(gateway: RunningGateway, *more: str) -> Iterator[socket.socket]:
    """A connection on which the head of a POST was sent, and the body is to follow."""
    host = gateway.base.removeprefix("http://")
    head = [
        "POST /mcp HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        *more,
    ]
    with socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2])), timeout=60) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        yield connection


def rest(connection: socket.socket) -> bytes:
    """All that the gateway sends, up to its end."""
    text = b""
    while chunk := connection.recv(65_536):
        text += chunk
    return text


@pytest.mark.parametrize("kind", ["text", "stream"])
def test_fetch_of_node_reads_why_its_body_was_refused(gateway: RunningGateway, kind: str) -> None:
    for size in ("5", "64"):
        command = [str(node()), str(FETCH), gateway.url, size, kind]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.stdout.startswith("413 ") and "The body is larger than" in done.stdout, done.stderr


UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
"""As Java's HttpClient sends with each POST. Another parser reads such a connection."""


@pytest.mark.parametrize("more", [(), UPGRADE], ids=["plain", "upgrade"])
def test_a_client_that_sends_all_of_its_body_first_reads_why_it_was_refused(
    gateway: RunningGateway, more: tuple[str, ...]
) -> None:
    with posting(gateway, "Content-Length: 6291456", *more) as connection:
        connection.sendall(b"x" * 6_291_456)
        answer = rest(connection)
        assert answer.startswith(b"HTTP/1.1 413 ") and b"connection: close" in answer.lower(), answer
    with posting(gateway, "Transfer-Encoding: chunked", *more) as connection:
        for _ in range(100):
            connection.sendall(PIECE)
        assert rest(connection).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("more", [(), UPGRADE], ids=["plain", "upgrade"])
def test_no_client_keeps_its_connection_by_sending_on(gateway: RunningGateway, more: tuple[str, ...]) -> None:
    began = monotonic()
    with posting(gateway, "Transfer-Encoding: chunked", *more) as connection:
        sent = 0
        with pytest.raises(OSError, match=ENDED):
            while True:
                connection.sendall(PIECE)
                sent += len(PIECE)
    assert monotonic() - began < 6.0, "it has two seconds to read the answer"
    assert sent < 64 << 20, "what is read and thrown away has a bound"
    with posting(gateway, "Content-Length: 6291456", *more) as connection:
        assert rest(connection).startswith(b"HTTP/1.1 413 "), "nothing has to be sent for the answer"
        with pytest.raises(OSError, match=ENDED):
            while monotonic() - began < 12.0:
                connection.sendall(b"x")
                sleep(0.05)  # a trickle
    assert monotonic() - began < 12.0, "a trickle keeps no connection either"


# -- over TLS, where one direction cannot be closed alone


@contextlib.contextmanager
def gateway_under_uvicorn(folder: Path, *, own: bool) -> Iterator[tuple[str, Authority]]:
    """The URL of a gateway under uvicorn with a certificate. `own`: with the connections of the command `run`."""
    authority = Authority(folder)
    certificate = authority.issue("server")
    settings = Settings.model_validate({"mcpServers": {"p": server(PROBE)}})
    gateway = Gateway(settings)
    app = create_app(settings, gateway=gateway)
    http: Any = http_connections(Connections(gateway.limits, gateway.metrics.limited)) if own else "auto"
    tls = {"lifespan": "on", "log_config": None, "ws": "none", "http": http, "ssl_certfile": certificate}
    with served(app, **tls) as url:
        yield url, authority


@pytest.fixture(scope="module", params=[True, False], ids=["run", "uvicorn"])
def over_tls(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Authority]]:
    with gateway_under_uvicorn(tmp_path_factory.mktemp("tls"), own=request.param) as found:
        yield found


@pytest.mark.parametrize("kind", ["text", "stream"])
def test_fetch_of_node_reads_why_its_body_was_refused_over_tls(over_tls: tuple[str, Authority], kind: str) -> None:
    url, authority = over_tls
    env = {**os.environ, "NODE_EXTRA_CA_CERTS": str(authority.folder / "ca.pem")}
    for size in ("5", "64"):
        command = [str(node()), str(FETCH), url, size, kind]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
        assert done.stdout.startswith("413 ") and "The body is larger than" in done.stdout, done.stderr


def test_httpx_reads_why_its_body_was_refused_over_tls(over_tls: tuple[str, Authority]) -> None:
    url, authority = over_tls
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    with authority.client() as http:
        for mebibytes in (5, 64):
            for body in (b"x" * (mebibytes << 20), (b"x" * 65_536 for _ in range(mebibytes * 16))):
                answer = http.post(url, content=body, headers=headers)
                assert answer.status_code == 413 and "The body is larger than" in answer.text
