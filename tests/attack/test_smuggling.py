"""Requests that two readers could read differently, through the load balancers that we ship: nobody gets what is hidden
in the request of another.

`tests/e2e/test_framing.py` sends the same to the gateway's own listeners.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.requirements import requirement
from tests.support.compose_topology import BALANCERS
from tests.support.credentials import API_KEYS, KEYS, bearer
from tests.support.gateway_process import PROBE, RunningGateway, running_gateway, server
from tests.support.http_bytes import listener_of
from tests.support.wire import ACCEPT, Wire, ask, call_body, head, rpc

PATH: Final = "/servers/probe/mcp"
SMUGGLED: Final = "smuggled"
# Large, so that a proxy which has buffered it sends it after the head.
HIDDEN: Final = rpc(
    call_body("echo", {"text": SMUGGLED, "padding": "p" * 40_000}, request_id=SMUGGLED), bearer(KEYS["alice"]), PATH
)
CHUNKED: Final = ("Transfer-Encoding", "chunked")
CODINGS: Final[dict[str, list[tuple[str, str]]]] = {
    "TE and CL": [CHUNKED],
    "TE after CL": [("Content-Length", "6"), CHUNKED],
    "TE twice": [CHUNKED, CHUNKED],
    "TE: xchunked": [("Transfer-Encoding", "xchunked")],
    "TE: chunked, identity": [("Transfer-Encoding", "chunked, identity")],
    "TE: identity": [("Transfer-Encoding", "identity")],
    "TE with a space before the colon": [("Transfer-Encoding ", "chunked")],
    "TE with a tab": [("Transfer-Encoding", "\tchunked")],
    "TE with a vertical tab": [("Transfer-Encoding", "\x0bchunked")],
    "folded TE": [("Transfer-Encoding", "\r\n chunked")],
    "TE in quotes": [("Transfer-Encoding", '"chunked"')],
    "two CL": [("Content-Length", "0")],
    "CL list": [("Content-Length", "0, 0")],
    "a second header after a bare line feed": [("X-A", "b\nTransfer-Encoding: chunked")],
    "a second header after a bare return": [("X-A", "b\rTransfer-Encoding: chunked")],
    "NUL in a header": [("X-A", "b\x00c")],
}
LENGTHS: Final = ("+5", "-5", "0x5", "5,6", "5;5", "5 5", "5.0", "5e0", "", "99999999999999999999", "\xb2")
SIZES: Final = (b"5;x=y", b"+5", b"0x5", b"5 ", b" 5", b"05", b"5\n", b"5\r", b"FFFFFFFFFFFFFFFFF", b"-1", b"5;\nx")


def around(body: bytes, *headers: tuple[str, str]) -> bytes:
    """A request of Alice's with these headers, in front of the bytes."""
    given = {"Host": "localhost", "Content-Type": "application/json", "Accept": ACCEPT, **bearer(KEYS["alice"])}
    return head(path=PATH, headers=[*given.items(), *headers]) + body


def corpus() -> dict[str, bytes]:
    length = ("Content-Length", str(len(HIDDEN)))
    found = {
        f"Upgrade: {name}": around(HIDDEN, length, ("Connection", "Upgrade"), ("Upgrade", name))
        for name in ("x", "h2c")
    }
    for name, odd in CODINGS.items():
        for what, inner in (("chunks", b"0\r\n\r\n" + HIDDEN), ("body", HIDDEN)):
            found[f"{name}, {what}"] = around(inner, ("Content-Length", str(len(inner))), *odd)
    for form in LENGTHS:
        found[f"CL {form}"] = around(b"12345" + HIDDEN, ("Content-Length", form))
    for size in SIZES:
        found[f"chunk {size!r}"] = around(size + b"\r\n12345\r\n0\r\nX: " + HIDDEN, CHUNKED)
    return found


CORPUS: Final = corpus()


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with running_gateway({"probe": server(PROBE, shared=True)}, options={"api_keys": API_KEYS}) as running:
        yield running


@pytest.fixture(scope="module", params=BALANCERS)
def door(request: pytest.FixtureRequest, gateway: RunningGateway) -> Iterator[int]:
    """The port of a load balancer before the gateway."""
    with BALANCERS[request.param]([gateway.base.removeprefix("http://")] * 3) as url:
        yield int(listener_of(url)[1])


@requirement("wall.framing")
@pytest.mark.parametrize("name", CORPUS)
def test_a_request_in_a_request_is_answered_to_nobody(door: int, name: str) -> None:
    with Wire(door) as alice, Wire(door) as bob:
        alice.send(CORPUS[name])
        answers = alice.answers(within_s=0.1, first_s=1.0, most=3)
        bob.send(rpc(call_body("echo", {"text": "own"}, request_id="bob"), bearer(KEYS["bob"]), PATH))
        of_bob = bob.answer()
        answers += alice.answers(within_s=0.1, first_s=0.1)
    assert sum(answer.status < 400 for answer in answers) <= 1, answers
    assert not any(SMUGGLED.encode() in answer.body for answer in answers)
    assert of_bob is not None and of_bob.message()["id"] == "bob" and '"own"' in of_bob.text()


def test_what_is_hidden_would_be_answered(door: int) -> None:
    assert SMUGGLED in ask(door, HIDDEN).text()
