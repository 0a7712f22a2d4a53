"""What calls that have no answer yet may hold of the gateway's memory, whether their clients are still there or not."""

import json
import re
import socket
from collections.abc import Iterator
from functools import partial

import httpx
import psutil
import pytest

from tests.e2e.test_edge_limits import limited, started
from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway, operators_of
from tests.support.http_bytes import connected, listener_of
from tests.support.mcp_clients import Legacy, Modern, modern_body, modern_headers
from tests.support.waiting import eventually

pytestmark = requirement("wall.memory")

MB = 1 << 20
LARGE = MB - 4_096
"""Bytes of an argument. With them, a body is nearly as large as one may be."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with started(body_bytes=MB, all_in_flight_bytes=32 * MB) as running:
        yield running


def posting(gateway: RunningGateway, headers: dict[str, str], body: bytes, *, part: int | None = None) -> socket.socket:
    """A connection on which that was posted, or the first part of it."""
    connection = connected(listener_of(gateway.url))
    lines = {**headers, "Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    connection.sendall(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body[:part])
    return connection


def hanging(number: int, size: int) -> bytes:
    params = {"name": "hang", "arguments": {"x": "y" * size}}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode()


def in_flight(gateway: RunningGateway) -> int:
    text = httpx.get(f"{operators_of(gateway)}/metrics").text
    found = re.search(r"^mcp_gateway_exchanges_in_flight\S* (\S+)", text, re.MULTILINE)
    assert found is not None, text
    return int(float(found[1]))


def test_large_calls_whose_clients_left_are_bounded_by_their_bytes(gateway: RunningGateway, http: httpx.Client) -> None:
    """In the handshake era a call outlives its connection: it is not enough that connections are bounded."""
    client = Legacy(gateway.url, http).open()
    before = psutil.Process(gateway.pid).memory_info().rss
    refused = limited(gateway, "in_flight")

    def arrived(number: int) -> bool:
        return in_flight(gateway) + limited(gateway, "in_flight") - refused == number

    for number in range(12):
        with posting(gateway, client.request_headers(), hanging(number, LARGE)):
            assert eventually(partial(arrived, number + 1), within_s=10)
    assert in_flight(gateway) == 8
    assert limited(gateway, "in_flight") - refused == 4
    grown = psutil.Process(gateway.pid).memory_info().rss - before
    assert grown < 45 * MB, f"{grown / MB:.0f} MB for 8 MB in flight"

    answer = client.tool("hang", {"x": "y" * LARGE})
    assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
    assert "large requests of this session" in answer.json()["error"]["message"]
    assert client.tool("echo", {"text": "small"}).status_code == 200, "small calls go on"
    assert Legacy(gateway.url, http).open().tool("echo", {"text": "y" * LARGE}).status_code == 200

    # What ends a call gives its bytes back, whoever does it.
    client.notify("notifications/cancelled", {"requestId": 0})
    assert eventually(lambda: client.tool("echo", {"text": "y" * LARGE}).status_code == 200, within_s=5)
    assert client.delete().status_code == 200
    assert eventually(lambda: in_flight(gateway) == 0, within_s=5)


def test_one_address_holds_half_of_what_all_may(gateway: RunningGateway, http: httpx.Client) -> None:
    """Many sessions, and bodies that are never sent whole: all of it is one account of the process."""
    clients = [Legacy(gateway.url, http).open() for _ in range(2)]
    calls = [posting(gateway, c.request_headers(), hanging(n, LARGE)) for c in clients for n in range(7)]
    assert eventually(lambda: in_flight(gateway) == 14, within_s=10)
    refused = limited(gateway, "in_flight")
    headers = clients[0].request_headers()
    parts = [posting(gateway, headers, hanging(9, LARGE), part=LARGE) for _ in range(3)]
    assert eventually(lambda: limited(gateway, "in_flight") > refused, within_s=10)
    stranger = Legacy(gateway.url, http).open()
    answer = stranger.tool("echo", {"text": "y" * LARGE})
    assert answer.status_code == 429 and "of your address" in answer.json()["error"]["message"]
    assert stranger.tool("echo", {"text": "small"}).status_code == 200

    for connection in (*calls, *parts):
        connection.close()
    for client in clients:
        assert client.delete().status_code == 200
    assert eventually(lambda: stranger.tool("echo", {"text": "y" * LARGE}).status_code == 200, within_s=5)


def test_a_modern_call_gives_its_bytes_back_when_its_client_leaves(gateway: RunningGateway, http: httpx.Client) -> None:
    token = (
        Modern(gateway.url, http)
        .tool("echo", {"text": "x"})
        .json()["result"]["_meta"]["io.github.mcp-session-gateway/session"]
    )
    body = modern_body("tools/call", {"name": "hang", "arguments": {"x": "y" * LARGE}})
    headers = {**modern_headers(body), "MCP-Gateway-Session": token}
    for _ in range(4):
        with posting(gateway, headers, json.dumps(body).encode()):
            assert eventually(lambda: in_flight(gateway) == 1, within_s=5)
        assert eventually(lambda: in_flight(gateway) == 0, within_s=5)
