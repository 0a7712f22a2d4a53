"""One request is one request, on every listener: what RFC 9112 leaves no room for, as bytes. h11 is the referee."""

import json
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest

from tests.requirements import requirement
from tests.support.gateway_process import PROBE, operators_of, server
from tests.support.http_bytes import ANSWERED, Listener, Received, answers, listener_of, post
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import Legacy, modern_body, modern_headers, tool_text

pytestmark = requirement("wall.framing")

HOST: Final = "Host: 127.0.0.1"
H2C: Final = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
WEBSOCKET: Final = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eA==")


class Place:
    """A listener, and a request it answers with 200 there."""

    def __init__(self, listener: Listener, path: str, *headers: str) -> None:
        self.listener = listener
        self.path = path
        self.headers = headers

    def get(self, *headers: str, target: str = "", version: str = "HTTP/1.1", host: str = HOST) -> bytes:
        """A request without a body."""
        line = f"GET {target or self.path} {version}".rstrip()
        parts = [line, *([host] if host else []), *self.headers, *headers, "", ""]
        return "\r\n".join(parts).encode("latin-1")

    def send(self, *chunks: bytes | float | None, expected: int = 1) -> Received:
        return answers(self.listener, chunks, expected=expected, quiet_s=0.15)


@pytest.fixture(scope="module")
def gateway() -> Iterator[InProcessGateway]:
    # The socket to the state of a sandboxed server serves that server alone, and here we ask it ourselves.
    servers = {"probe": server(PROBE, sandbox="off")}
    with in_process_gateway(servers, options={"admin": {"listen": "127.0.0.1:0"}}) as running:
        yield running


@pytest.fixture(scope="module")
def places(gateway: InProcessGateway) -> Iterator[dict[str, Place]]:
    with httpx.Client() as http:
        env = json.loads(tool_text(Legacy(gateway.url, http).open().tool("env", {"prefix": "MCP_SESSION_"})))
        access = f"Authorization: Bearer {env['MCP_SESSION_ACCESS']}"
        yield {
            "main": Place(listener_of(gateway.url), "/healthz"),
            "admin": Place(listener_of(operators_of(gateway)), "/healthz"),
            "state": Place(env["MCP_SESSION_SOCKET"], "/v1/session", access),
        }


@pytest.fixture(params=["main", "admin", "state"])
def place(request: pytest.FixtureRequest, places: dict[str, Place]) -> Place:
    return places[request.param]


def call(*headers: str, size: int = 0, target: str = "/mcp", host: str = HOST, version: str = "1.1") -> bytes:
    """A tool call as a modern client sends it, which gives 200."""
    message = modern_body("tools/call", {"name": "pid", "arguments": {"pad": "x" * size}})
    named = [f"{name}: {value}" for name, value in modern_headers(message).items()]
    body = json.dumps(message).encode()
    return post(
        target, body, *([host] if host else []), "Content-Type: application/json", *named, *headers, version=version
    )


def head_and_body(request: bytes) -> tuple[bytes, bytes]:
    head, _, body = request.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", body


# -- Upgrade


@pytest.mark.parametrize("offer", [H2C, WEBSOCKET, ("Connection: upgrade", "Upgrade: foo/2, bar")])
@pytest.mark.parametrize("pause", [0.0, 0.3])
def test_a_body_behind_an_upgrade_is_never_a_second_request(place: Place, offer: tuple[str, ...], pause: float) -> None:
    hidden = place.get()
    head, body = head_and_body(post(place.path, hidden, HOST, *place.headers, *offer))
    heard = place.send(head, pause, body)
    assert len(heard.statuses) == 1 and not heard.rest, heard
    assert place.send(head, 0.1, body, 0.2, place.get(), expected=2).statuses in (
        [heard.statuses[0], 200],
        heard.statuses,
    )


@pytest.mark.parametrize("offer", [H2C, WEBSOCKET])
def test_an_honest_offer_to_upgrade_is_served_as_http_1_1_with_its_body(
    places: dict[str, Place], offer: tuple[str, ...]
) -> None:
    main = places["main"]
    offered = call(*offer, size=100_000)
    head, body = head_and_body(offered)
    for chunks in ([offered], [head, 0.1, body], [head[:40], 0.1, head[40:], 0.1, body[:50_000], 0.1, body[50_000:]]):
        heard = main.send(*chunks)
        assert heard.all_statuses == [200] and b"result" in heard.answers[0].body and not heard.closed, heard
    heard = main.send(offered, ANSWERED, offered, ANSWERED, call(), expected=3)
    assert heard.statuses == [200, 200, 200], "the connection goes on"
    assert main.send(call(), ANSWERED, offered, expected=2).statuses == [200, 200]


def test_an_offer_in_the_middle_of_other_requests_ends_the_connection(places: dict[str, Place]) -> None:
    main = places["main"]
    for first in (call(), main.get()):
        heard = main.send(first + call(*H2C), expected=2)
        assert heard.statuses == [200, 400] and heard.closed and not heard.rest
    head, body = head_and_body(call(size=1_000))
    heard = main.send(head, 0.1, body + call(*H2C), expected=2)
    assert heard.statuses == [200, 400] and heard.closed


# -- the corpus

GET_200: Final = [
    ("plain", lambda p: p.get()),
    ("absolute-form", lambda p: p.get(target=f"http://127.0.0.1{p.path}")),
    ("a host in any case", lambda p: p.get(host="hOsT: 127.0.0.1")),
    ("an empty line before it", lambda p: b"\r\n\r\n" + p.get()),
    ("Upgrade that Connection does not name", lambda p: p.get("Upgrade: h2c")),
    ("Connection that names no Upgrade", lambda p: p.get("Connection: upgrade")),
    ("HTTP/1.0 without Host", lambda p: p.get(version="HTTP/1.0", host="")),
    ("HTTP/1.0 with an expectation", lambda p: p.get("Expect: tea", version="HTTP/1.0")),
    ("a body that is not read", lambda p: p.get("Content-Length: 3") + b"abc"),
    ("chunks, with trailers", lambda p: p.get("Transfer-Encoding: chunked") + b"1;x=y\r\na\r\n0\r\nX: y\r\n\r\n"),
    ("Transfer-Encoding in capitals", lambda p: p.get("Transfer-Encoding: CHUNKED") + b"0\r\n\r\n"),
]
REFUSED: Final = [
    ("no Host", 400, lambda p: p.get(host="")),
    ("two Hosts", 400, lambda p: p.get(HOST)),
    ("a Host that is none", 400, lambda p: p.get(host="Host: a/b")),
    ("a Host with a user", 400, lambda p: p.get(host="Host: a@127.0.0.1")),
    ("two Hosts in one", 400, lambda p: p.get(host="Host: 127.0.0.1, b")),
    ("an authority with a user", 400, lambda p: p.get(target=f"http://a@127.0.0.1{p.path}")),
    ("another scheme", 400, lambda p: p.get(target=f"ftp://127.0.0.1{p.path}")),
    ("authority-form", 400, lambda p: p.get(target="127.0.0.1:80")),
    ("asterisk-form of a GET", 400, lambda p: p.get(target="*")),
    ("a fragment", 400, lambda p: p.get(target=f"{p.path}#x")),
    ("CONNECT", 501, lambda p: b"CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n"),
    ("HTTP/0.9", 505, lambda p: f"GET {p.path}\r\n\r\n".encode()),
    ("HTTP/0.9 by name", 505, lambda p: p.get(version="HTTP/0.9")),
    ("HTTP/2.0 by name", 505, lambda p: p.get(version="HTTP/2.0")),
    ("HTTP/3.7", 400, lambda p: p.get(version="HTTP/3.7")),
    ("the preface of HTTP/2", 400, lambda p: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)),
    ("TLS", 400, lambda p: bytes.fromhex("16030100a5010000a1030300")),
    ("an expectation", 417, lambda p: p.get("Expect: tea")),
    ("both lengths", 400, lambda p: p.get("Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\n"),
    ("both lengths turned", 400, lambda p: p.get("Transfer-Encoding: chunked", "Content-Length: 5") + b"0\r\n\r\n"),
    ("a coding", 501, lambda p: p.get("Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n"),
    ("a coding alone", 501, lambda p: p.get("Transfer-Encoding: identity") + b"0\r\n\r\n"),
    ("chunked twice", 400, lambda p: p.get("Transfer-Encoding: chunked, chunked") + b"0\r\n\r\n"),
    ("two codings", 400, lambda p: p.get("Transfer-Encoding: chunked", "Transfer-Encoding: x") + b"0\r\n\r\n"),
    ("xchunked", 501, lambda p: p.get("Transfer-Encoding: xchunked") + b"0\r\n\r\n"),
    ("chunks in HTTP/1.0", 400, lambda p: p.get("Transfer-Encoding: chunked", version="HTTP/1.0") + b"0\r\n\r\n"),
    ("two lengths", 400, lambda p: p.get("Content-Length: 3", "Content-Length: 4") + b"abcd"),
    ("one length twice", 400, lambda p: p.get("Content-Length: 3", "Content-Length: 3") + b"abc"),
    ("two lengths in one", 400, lambda p: p.get("Content-Length: 3, 3") + b"abc"),
    ("a signed length", 400, lambda p: p.get("Content-Length: +3") + b"abc"),
    ("a negative length", 400, lambda p: p.get("Content-Length: -3") + b"abc"),
    ("a length in hex", 400, lambda p: p.get("Content-Length: 0x3") + b"abc"),
    ("no length", 400, lambda p: p.get("Content-Length:") + b"abc"),
    ("a length beyond numbers", 400, lambda p: p.get("Content-Length: " + "9" * 30) + b"abc"),
    ("a chunk of negative size", 400, lambda p: p.get("Transfer-Encoding: chunked") + b"-1\r\na\r\n0\r\n\r\n"),
    ("a chunk of size 0x1", 400, lambda p: p.get("Transfer-Encoding: chunked") + b"0x1\r\na\r\n0\r\n\r\n"),
    ("a chunk longer than it says", 400, lambda p: p.get("Transfer-Encoding: chunked") + b"1\r\nab\r\n0\r\n\r\n"),
    ("lines of chunks that end in LF", 400, lambda p: p.get("Transfer-Encoding: chunked") + b"1\na\n0\n\n"),
    ("lines that end in LF", 400, lambda p: p.get().replace(b"\r\n", b"\n")),
    ("one line that ends in LF", 400, lambda p: p.get().replace(b"\r\n", b"\n", 1)),
    ("a CR alone", 400, lambda p: p.get("X: a\rY: b")),
    ("a folded line", 400, lambda p: p.get("X: a\r\n b")),
    ("white space before the colon", 400, lambda p: p.get("X : a")),
    ("white space before the first name", 400, lambda p: p.get().replace(b"Host", b" Host")),
    ("a header without a colon", 400, lambda p: p.get("X")),
    ("a header without a name", 400, lambda p: p.get(": a")),
    ("NUL in a value", 400, lambda p: p.get("X: a\0b")),
    ("NUL in a name", 400, lambda p: p.get("X\0: a")),
    ("a blank in the target", 400, lambda p: p.get(target=f"{p.path} x")),
    ("a method of lower case", 400, lambda p: p.get().replace(b"GET", b"get")),
    ("RTSP", 400, lambda p: p.get(version="RTSP/1.0")),
]


@pytest.mark.parametrize(("name", "made"), GET_200, ids=[name for name, _ in GET_200])
def test_what_is_unusual_and_right_is_served(places: dict[str, Place], name: str, made: Any) -> None:
    for place in places.values():
        heard = place.send(made(place))
        assert heard.statuses == [200] and not heard.rest, heard


@pytest.mark.parametrize(("name", "status", "made"), REFUSED, ids=[name for name, *_ in REFUSED])
def test_what_is_ambiguous_is_refused_once_and_ends_the_connection(
    places: dict[str, Place], name: str, status: int, made: Any
) -> None:
    """Also behind another request, whose answer it leaves alone."""
    for place in places.values():
        heard = place.send(made(place) + place.get())
        assert heard.statuses == [status] and heard.closed and not heard.rest, heard
    main = places["main"]
    heard = main.send(call() + made(main), expected=2)
    assert heard.statuses == [200, status] and heard.closed and b"result" in heard.answers[0].body, heard
    # h11 is laxer here and there (it takes a line that ends in LF, and the same length twice): never two answers.
    heard = main.send(main.get(*H2C), ANSWERED, made(main), expected=2)
    assert heard.statuses[0] == 200 and len(heard.statuses) == 2 and not heard.rest, heard
    assert heard.statuses[1] >= 400 or name in _H11_TAKES, heard


_H11_TAKES: Final = {
    "one length twice",
    "two lengths in one",
    "lines of chunks that end in LF",
    "lines that end in LF",
    "one line that ends in LF",
    "a folded line",
}


# -- single rules


def test_the_authority_of_a_target_is_the_host_that_was_asked_for(places: dict[str, Place]) -> None:
    main = places["main"]
    for offer in ((), H2C):
        assert main.send(call(*offer, target="http://127.0.0.1:9/mcp", host="Host: evil.example")).statuses == [200]
        heard = main.send(call(*offer, target="http://evil.example/mcp"))
        assert heard.statuses == [421], "the guard sees the authority, whatever Host says"


def test_an_expectation_is_met_once_and_only_where_it_is_understood(places: dict[str, Place]) -> None:
    main = places["main"]
    for offer in ((), H2C):
        head, body = head_and_body(call("Expect: 100-continue", *offer))
        assert main.send(head, 0.2, body).all_statuses == [100, 200]
        refused, _ = head_and_body(call("Expect: 100-continue", *offer, host="Host: evil.example"))
        assert main.send(refused).all_statuses == [421], "no body is asked for that nobody wants"
        head, body = head_and_body(call("Expect: 100-continue", *offer, version="1.0"))
        assert main.send(head, 0.2, body).all_statuses == [200]


@requirement("wall.authority")
def test_a_trailer_is_no_header() -> None:
    """Proxies take identity headers away from heads; trailers they pass on as they are."""
    proxies = {"networks": ["127.0.0.1/32"], "subject_header": "X-User"}
    with in_process_gateway(
        {"probe": server(PROBE)}, options={"auth": {"proxies": proxies}, "anonymous": False}
    ) as gateway:
        head, body = head_and_body(call())
        head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length"))
        chunked = head[:-2] + b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n%b\r\n0\r\n" % (len(body), body)
        listener = listener_of(gateway.url)
        vouched = chunked.replace(b"\r\nHost", b"\r\nX-User: root\r\nHost", 1)
        assert answers(listener, vouched + b"\r\n").statuses == [200]
        for trailers in (b"X-User: root\r\n\r\n", b"x-user: root\r\nAuthorization: Bearer x\r\n\r\n"):
            assert answers(listener, chunked + trailers).statuses == [401]
            offered = chunked.replace(b"\r\nHost", "\r\n{}\r\nHost".format("\r\n".join(H2C)).encode(), 1)
            assert answers(listener, offered + trailers).statuses == [401]


def test_nothing_is_read_behind_the_last_request(places: dict[str, Place]) -> None:
    main = places["main"]
    for last in (call("Connection: close"), call(version="1.0"), call("Connection: close", *H2C)):
        heard = main.send(last + main.get(), expected=2)
        assert heard.statuses == [200] and heard.closed and not heard.rest


# -- the referee


def test_pipelined_requests_are_answered_in_their_order(places: dict[str, Place]) -> None:
    heard = places["main"].send(places["main"].get() + call() + places["main"].get(target="/nowhere"), expected=3)
    assert heard.statuses == [200, 200, 404] and b"result" in heard.answers[1].body and not heard.closed
