"""A body that is refused while it is still being sent: the client can read why."""

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.requirements import requirement
from tests.support.gateway_process import PROBE, RunningGateway, running_gateway, server
from tests.tools.obtain import node

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
    with socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2])), timeout=10) as connection:
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
