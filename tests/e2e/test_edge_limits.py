"""What a stranger may cost before anybody knows who it is: on the public port, the operators', and a child's socket."""

import asyncio
import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import psutil
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import DEMO, PROBE, ROOT, RunningGateway, operators_of, running_gateway, server
from tests.support.http_bytes import Listener, answers, connected, listener_of, post, read_answers
from tests.support.mcp_clients import ACCEPT, Legacy, Modern, modern_body, modern_headers, tool_text
from tests.support.waiting import GIVE_UP_S, eventually
from transports.inbound.connections import drop

pytestmark = requirement("wall.before-auth")

WHOLE: Final = {"transports.inbound.streamable_http.PRIMING_AFTER_S": 15.0}
"""Else a slow answer would become an event stream on a busy machine."""
GET: Final = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
H2C: Final = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"


def limited(gateway: RunningGateway, kind: str) -> int:
    """What the metric says."""
    text = httpx.get(f"{operators_of(gateway)}/metrics").text
    label = f'mcp_gateway_limited_total{{limit="{kind}"}} '
    return int(float(next(line for line in text.splitlines() if line.startswith(label)).removeprefix(label)))


@contextlib.contextmanager
def started(*, client_timeout_s: float = 3 * GIVE_UP_S, **limits: object) -> Iterator[RunningGateway]:
    """With these limits. This machine's addresses count as peers."""
    options = {
        "admin": {"listen": "127.0.0.1:0"},
        "auth": {"proxies": {"networks": ["192.0.2.0/24"]}},
        "limits": limits,
        "anonymous": True,
    }
    constants = {**WHOLE, "gateway.config.limits.CLIENT_TIMEOUT_S": client_timeout_s}
    # The socket to the state of a sandboxed server serves that server alone, and here we ask it ourselves.
    with running_gateway({"probe": server(PROBE, sandbox="off")}, options=options, constants=constants) as running:
        yield running


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with started(client_timeout_s=1.8, idle_timeout_s=0.8) as running:
        yield running


@pytest.fixture(scope="module")
def places(gateway: RunningGateway) -> dict[str, Listener]:
    with httpx.Client() as http:
        env = json.loads(tool_text(Legacy(gateway.url, http).open().tool("env", {"prefix": "MCP_SESSION_"})))
    return {
        "main": listener_of(gateway.url),
        "admin": listener_of(operators_of(gateway)),
        "state": env["MCP_SESSION_SOCKET"],
    }


@pytest.fixture(params=["main", "admin", "state"])
def place(request: pytest.FixtureRequest, places: dict[str, Listener]) -> Listener:
    return places[request.param]


def closed_after(sock: socket.socket, within_s: float) -> tuple[float, bytes]:
    """How long until the other side closed, and what it said."""
    began, said = time.monotonic(), b""
    sock.settimeout(within_s)
    with contextlib.suppress(ConnectionError):
        while data := sock.recv(1 << 16):
            said += data
    return time.monotonic() - began, said


# -- heads


@pytest.mark.parametrize("offer", [b"", GET + H2C + b"\r\n"], ids=["httptools", "h11"])
def test_a_head_without_end_is_refused_at_its_bound(place: Listener, offer: bytes) -> None:
    with connected(place) as sock:
        sock.sendall(offer)
        if offer:
            assert sock.recv(1 << 16)
        sent = 0
        with contextlib.suppress(ConnectionError):
            sock.sendall(GET + b"X: ")
            while sent < 128 << 20:
                sock.sendall(b"a" * 4_096)
                sent += 4_096
        assert sent < 64 << 20, "nobody reads on"  # the kernel's buffers of both sides take 36 MiB at most
        took, said = closed_after(sock, 5)
        # 408: on a busy machine, the time for a head may end before its bound is read.
        assert took < 5 and (not said or any(status in said for status in (b" 431 ", b" 400 ", b" 408 ")))


@pytest.mark.parametrize(("request_", "status"), [
    (GET + b"X: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    (GET + b"X: " + b"a" * 60_000 + b"\r\n\r\n", 200),
    (GET + b"a: b\r\n" * 140 + b"\r\n", 431),
    (GET + b"a: b\r\n" * 127 + b"\r\n", 200),
    (GET + H2C + b"a: b\r\n" * 140 + b"\r\n", 431),
    (GET.replace(b"healthz", b"healthz?" + b"a" * 70_000) + b"\r\n", 431),
])  # fmt: skip
def test_heads_have_a_size_and_a_number_of_headers(places: dict[str, Listener], request_: bytes, status: int) -> None:
    ways: list[list[bytes | float]] = [[request_], [request_[:5_000], 0.05, request_[5_000:]]]
    for chunks in ways:
        assert answers(places["main"], chunks, quiet_s=0.1).statuses == [status]


@pytest.mark.parametrize("start", [b"", b"G", GET, GET + H2C, GET + H2C + b"\r\n" + GET], ids=repr)
def test_a_head_that_does_not_come_ends_the_connection(place: Listener, start: bytes) -> None:
    with connected(place) as sock:
        sock.sendall(start)
        took, said = closed_after(sock, 6)
        assert took < 3
        if (start and not start.endswith(GET)) or start == GET:
            assert read_answers(said, closed=True).statuses[-1:] == [408]


def test_a_head_that_dribbles_has_no_longer_than_one_that_stands_still(place: Listener) -> None:
    began = time.monotonic()
    with connected(place) as sock:
        sock.sendall(GET + b"X: ")
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 6:
                sock.sendall(b"a")
                time.sleep(0.05)
    assert time.monotonic() - began < 4


def test_a_connection_that_is_idle_is_closed_and_one_that_waits_for_an_answer_is_not(
    gateway: RunningGateway, places: dict[str, Listener]
) -> None:
    for offer in (b"", H2C):
        with connected(places["main"]) as sock:
            sock.sendall(GET + offer + b"\r\n")
            took, said = closed_after(sock, 6)
            assert 0.6 < took < 4 and read_answers(said, closed=True).statuses == [200]
    with httpx.Client() as http:
        began = time.monotonic()
        assert Legacy(gateway.url, http).open().tool("sleep", {"seconds": 2.5}).status_code == 200
        assert time.monotonic() - began > 2.4


# -- bodies


def upload(size: int) -> tuple[bytes, bytes]:
    message = modern_body("tools/call", {"name": "echo", "arguments": {"pad": "x" * size}})
    named = [f"{name}: {value}" for name, value in modern_headers(message).items()]
    body = json.dumps(message).encode()
    request = post("/mcp", body, "Host: 127.0.0.1", "Content-Type: application/json", *named)
    return request[: -len(body)], body


@pytest.mark.parametrize("offer", [b"", H2C], ids=["httptools", "h11"])
def test_a_body_that_trickles_is_cut_and_one_that_is_slow_is_not(places: dict[str, Listener], offer: bytes) -> None:
    head, body = upload(700_000)
    head = head[:-2] + offer + b"\r\n"
    began = time.monotonic()
    with connected(places["main"]) as sock:
        sock.sendall(head + body[:100_000])
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 8:
                sock.sendall(b"x")
                time.sleep(0.05)
    assert time.monotonic() - began < 5, "a byte now and then is no progress"
    slow: list[bytes | float] = [head]
    for at in range(0, len(body), 100_000):
        slow += [body[at : at + 100_000], 0.25]
    heard = answers(places["main"], slow)
    assert heard.statuses == [200] and len(heard.answers[0].body) > 700_000, "as long as it comes, however long"


@pytest.mark.parametrize("offer", [b"", H2C], ids=["httptools", "h11"])
@pytest.mark.parametrize("endless", [
    b"Content-Length: 9999999999\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    b"Transfer-Encoding: chunked\r\n\r\n1;x=",
], ids=["body", "trailer", "extension of a chunk"])  # fmt: skip
def test_what_comes_behind_an_answer_is_read_up_to_a_bound(
    places: dict[str, Listener], endless: bytes, offer: bytes
) -> None:
    with connected(places["main"]) as sock:
        sent = 0
        with contextlib.suppress(ConnectionError):
            sock.sendall(GET + offer + endless)
            while sent < 64 << 20:
                sock.sendall(b"a" * 65_536)
                sent += 65_536
        assert sent < 64 << 20


def test_so_many_requests_wait_on_one_connection(gateway: RunningGateway, places: dict[str, Listener]) -> None:
    before = limited(gateway, "pipeline")
    heard = answers(places["main"], (GET + b"\r\n") * 2_000, expected=18)
    assert heard.statuses == [200] * (len(heard.statuses) - 1) + [503] and 16 <= len(heard.statuses) <= 20
    assert heard.closed and limited(gateway, "pipeline") == before + 1


# -- answers


@pytest.mark.parametrize("offer", [b"", H2C], ids=["httptools", "h11"])
@pytest.mark.parametrize("kind", ["json", "sse"])
def test_clients_that_do_not_read_are_cut_and_hold_nothing(
    gateway: RunningGateway, http: httpx.Client, kind: str, offer: bytes
) -> None:
    client = Legacy(gateway.url, http).open()
    before, memory = limited(gateway, "write_time"), psutil.Process(gateway.pid).memory_info().rss
    params = {"name": "giant", "arguments": {"size": 12_000_000}}
    if kind == "sse":
        params = {"name": "flood", "arguments": {"megabytes": 20}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    named = [f"{name}: {value}" for name, value in {**ACCEPT, **client.request_headers()}.items()]
    request = post("/mcp", body, "Host: 127.0.0.1", "Content-Type: application/json", *named)
    request = request.replace(b"\r\nHost", b"\r\n" + offer + b"Host", 1)
    number = 3 if kind == "json" else 1  # of more than the 30 MB below
    with contextlib.ExitStack() as stack:
        deaf = [stack.enter_context(connected(listener_of(gateway.url))) for _ in range(number)]
        for sock in deaf:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            sock.sendall(request)
        assert eventually(lambda: limited(gateway, "write_time") == before + number)
        # Not even the kernel or the allocator keeps what they did not read.
        assert eventually(lambda: psutil.Process(gateway.pid).memory_info().rss - memory < 30 << 20)
        assert all(len(closed_after(sock, 10)[1]) < 11_000_000 for sock in deaf)
    assert tool_text(Legacy(gateway.url, http).open().tool("echo", {"a": 1})) == '{"a": 1}'


# -- connections


def served(listener: Listener, source: str = "127.0.0.1") -> bool:
    """Whether somebody at that address is."""
    assert not isinstance(listener, str)
    with contextlib.suppress(OSError), socket.create_connection(listener, 5, source_address=(source, 0)) as sock:
        sock.sendall(GET + b"Connection: close\r\n\r\n")
        return b" 200 " in sock.recv(1 << 16)
    return False


def test_nobody_takes_all_connections() -> None:
    with started(connections=16, client_timeout_s=90) as gateway, contextlib.ExitStack() as stack:
        main, admin = listener_of(gateway.url), listener_of(operators_of(gateway))

        assert not isinstance(main, str)

        def taken(source: str, data: bytes) -> socket.socket:
            sock = stack.enter_context(socket.create_connection(main, 5, source_address=(source, 0)))
            sock.sendall(data)
            return sock

        for _ in range(8):
            taken("127.0.0.1", b"GET /")
        assert not served(main) and served(main, "127.0.0.2"), "one address has its part and no more"
        heard = answers(main, GET + b"\r\n")
        assert heard.statuses in ([503], []) and heard.closed
        assert limited(gateway, "peer_connections") >= 2
        files = psutil.Process(gateway.pid).num_fds
        before = files()
        refused = [taken("127.0.0.1", b"") for _ in range(60)]
        assert eventually(lambda: limited(gateway, "peer_connections") >= 62)
        assert eventually(lambda: files() - before < 10), "refused ones are gone, whatever the other side does"
        del refused
        held = [taken(f"127.0.0.{n}", b"") for n in range(3, 12)]
        # All are taken: who has waited longest for nothing makes room, and whoever comes is served.
        assert eventually(lambda: all(served(main, f"127.0.0.{n}") for n in range(21, 26)))
        assert limited(gateway, "connections") >= 1 and served(admin, "127.0.0.1"), "operators have their own"
        del held


def test_nobody_takes_all_connections_of_the_operators() -> None:
    with started() as gateway, contextlib.ExitStack() as stack:
        admin = listener_of(operators_of(gateway))
        uploading = b"POST /admin/sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n1"
        for _ in range(130):
            stack.enter_context(connected(admin)).sendall(uploading)
        assert not served(admin) and served(admin, "127.0.0.2")


@pytest.mark.parametrize("start", [GET, GET + b"\r\nG", GET + H2C + b"\r\n" + GET], ids=["first", "second", "h11"])
def test_a_connection_that_makes_room_is_gone_though_its_client_does_not_close(start: bytes) -> None:
    with started(connections=16, client_timeout_s=180) as gateway, contextlib.ExitStack() as stack:
        files = psutil.Process(gateway.pid).num_fds
        before = files()

        def evicted() -> int:
            for number in range(16):
                source = f"127.0.0.{number % 4 + 2}"  # else one address would have half of them, and make no room
                stack.enter_context(connected(listener_of(gateway.url), source=source)).sendall(start)
            return limited(gateway, "connections")

        # Which connections may make room is found out once a second, so some of the new ones are refused.
        assert eventually(lambda: evicted() >= 40, 90)
        assert eventually(lambda: files() - before <= 20), files() - before


def test_when_all_connections_work_a_new_one_is_told_to_come_back() -> None:
    with started(connections=6) as gateway, httpx.Client() as http, contextlib.ExitStack() as stack:
        client = Legacy(gateway.url, http).open()
        params = {"name": "sleep", "arguments": {"seconds": 4}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        named = [f"{name}: {value}" for name, value in client.request_headers().items()]
        request = post("/mcp", body, "Host: 127.0.0.1", "Content-Type: application/json", *named)
        http.close()
        sources = ["127.0.0.2", "127.0.0.3"] * 3
        working = [stack.enter_context(connected(listener_of(gateway.url), source=source)) for source in sources]
        for sock in working:
            sock.sendall(request)
        assert eventually(lambda: not served(listener_of(gateway.url), "127.0.0.9"))
        assert all(b" 200 " in sock.recv(1 << 16) for sock in working), "those that work are left alone"
        assert limited(gateway, "connections") >= 1


@requirement("wall.order")
def test_sixty_idle_connections_at_64_files_shut_nobody_out(tmp_path: Path, http: httpx.Client) -> None:
    config = tmp_path / "mcp.json"
    options = {"anonymous": True, "admin": {"listen": "127.0.0.1:0"}}
    config.write_text(json.dumps({"mcpServers": {"demo": server(DEMO)}, "gateway": options}))
    run = f"ulimit -n 64; exec {sys.executable} -m gateway run --port 0 --config {config}"
    process = subprocess.Popen(["sh", "-c", run], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    gateway = RunningGateway(process)
    try:
        gateway.wait_ready()
        for said in (b"", b"POST /mcp HTTP/1.1\r\nHost: local", GET + b"\r\n"):
            with contextlib.ExitStack() as stack:
                for place in (gateway.url, operators_of(gateway)):
                    for _ in range(60):
                        stack.enter_context(connected(listener_of(place))).sendall(said)
                for _ in range(5):
                    assert http.get(f"{gateway.base}/healthz", headers={"Connection": "close"}).status_code == 200
                    assert (
                        http.get(f"{operators_of(gateway)}/metrics", headers={"Connection": "close"}).status_code == 200
                    )
                with httpx.Client(timeout=20) as fresh:
                    client = Legacy(gateway.url, fresh).open()
                    assert tool_text(client.tool("count")) == "1", "there are files for a server too"
                    assert client.delete().status_code == 200
        assert "connections are taken" in gateway.stderr()
        assert "Too many open files" not in gateway.stderr()
        assert gateway.stop() in (0, -signal.SIGTERM)
    finally:
        if process.poll() is None:
            gateway.kill()


def test_a_connection_that_makes_room_waits_for_nobody_to_read() -> None:
    async def drops() -> None:
        closed = asyncio.Event()

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(bytes(32 << 20))
            drop(writer.transport)  # type: ignore[arg-type]  # of a socket
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            closed.set()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server_:
            with socket.create_connection(server_.sockets[0].getsockname()):
                await asyncio.wait_for(closed.wait(), 60)

    asyncio.run(drops())


# -- what calls that have no answer yet may hold of the gateway's memory, whether their clients are still there or not


MB = 1 << 20
LARGE = 4 * MB - 4_096
"""Bytes of an argument. With them, a body is nearly as large as one may be."""


@pytest.fixture(scope="module")
def bounded() -> Iterator[RunningGateway]:
    with started(body_bytes=4 * MB, total_memory_mb=1_024) as running:
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


@requirement("wall.memory")
def test_large_calls_whose_clients_left_are_bounded_by_their_bytes(bounded: RunningGateway, http: httpx.Client) -> None:
    """In the handshake era a call outlives its connection: it is not enough that connections are bounded."""
    client = Legacy(bounded.url, http).open()
    before = psutil.Process(bounded.pid).memory_info().rss
    refused = limited(bounded, "in_flight")

    def arrived(number: int) -> bool:
        return in_flight(bounded) + limited(bounded, "in_flight") - refused == number

    for number in range(12):
        with posting(bounded, client.request_headers(), hanging(number, LARGE)):
            assert eventually(partial(arrived, number + 1))
    assert in_flight(bounded) == 8
    assert limited(bounded, "in_flight") - refused == 4
    grown = psutil.Process(bounded.pid).memory_info().rss - before
    assert grown < 180 * MB, f"{grown / MB:.0f} MB for 32 MB in flight"

    answer = client.tool("hang", {"x": "y" * LARGE})
    assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
    assert "large requests of this session" in answer.json()["error"]["message"]
    assert client.tool("echo", {"text": "small"}).status_code == 200, "small calls go on"
    assert Legacy(bounded.url, http).open().tool("echo", {"text": "y" * LARGE}).status_code == 200

    # What ends a call gives its bytes back, whoever does it.
    client.notify("notifications/cancelled", {"requestId": 0})
    assert eventually(lambda: client.tool("echo", {"text": "y" * LARGE}).status_code == 200)
    assert client.delete().status_code == 200
    assert eventually(lambda: in_flight(bounded) == 0)


@requirement("wall.memory")
def test_one_address_holds_half_of_what_all_may(bounded: RunningGateway, http: httpx.Client) -> None:
    """Many sessions, and bodies that are never sent whole: all of it is one account of the process."""
    clients = [Legacy(bounded.url, http).open() for _ in range(2)]
    calls = []
    for client in clients:
        for number in range(7):  # one by one: what a server has not read yet is bounded, too
            calls.append(posting(bounded, client.request_headers(), hanging(number, LARGE)))
            assert eventually(lambda: in_flight(bounded) == len(calls))
            assert client.tool("echo", {"text": "it has read the line before this one"}).status_code == 200
    refused = limited(bounded, "in_flight")
    headers = clients[0].request_headers()
    parts = [posting(bounded, headers, hanging(9, LARGE), part=LARGE) for _ in range(3)]
    assert eventually(lambda: limited(bounded, "in_flight") > refused)
    stranger = Legacy(bounded.url, http).open()
    answer = stranger.tool("echo", {"text": "y" * LARGE})
    assert answer.status_code == 429 and "of your address" in answer.json()["error"]["message"]
    assert stranger.tool("echo", {"text": "small"}).status_code == 200

    for connection in (*calls, *parts):
        connection.close()
    for client in clients:
        assert client.delete().status_code == 200
    assert eventually(lambda: stranger.tool("echo", {"text": "y" * LARGE}).status_code == 200)


@requirement("wall.memory")
def test_a_modern_call_gives_its_bytes_back_when_its_client_leaves(bounded: RunningGateway, http: httpx.Client) -> None:
    token = Modern(bounded.url, http).tool("echo", {"text": "x"}).headers["mcp-gateway-session"]
    body = modern_body("tools/call", {"name": "hang", "arguments": {"x": "y" * LARGE}})
    headers = {**modern_headers(body), "MCP-Gateway-Session": token}
    for _ in range(4):
        with posting(bounded, headers, json.dumps(body).encode()):
            assert eventually(lambda: in_flight(bounded) == 1)
        assert eventually(lambda: in_flight(bounded) == 0)
