"""The fuzzers: a moment of each, what they have found, and that they would find what once was there."""

from random import Random

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.attack.fuzz.envelope import CHECKS, check_batch, check_message, run
from tests.attack.fuzz.framing import BEHAVIOURS, MEMORY, differences, gateway_reads, referee_reads, remembering
from tests.attack.fuzz.requests import pieces, repeated, smaller, stream
from tests.requirements import requirement
from transports.jsonrpc import InvalidMessage, decode_object

UPGRADE = (
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: x\r\nContent-Length: 45\r\n\r\n",
    b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n",
)


@requirement("wall.framing")
@pytest.mark.parametrize("first", range(0, 1_200, 300))
def test_streams_of_requests_are_read_as_h11_reads_them(first: int) -> None:
    for number in range(first, first + 300):
        random = Random(number)
        segments, behaviour = pieces(random, stream(random)), random.choice(BEHAVIOURS)
        assert differences(segments, behaviour)[0] == [], (number, segments, behaviour)


@requirement("wall.framing", "hot.memory")
@pytest.mark.parametrize("first", range(0, 900, 300))
def test_streams_are_read_as_h11_reads_them_by_a_connection_that_remembers_heads(first: int) -> None:
    before = MEMORY["direct"]
    for number in range(first, first + 300):
        random = Random(number)
        segments, behaviour = repeated(random), random.choice(BEHAVIOURS)
        assert differences(segments, behaviour, remembering)[0] == [], (number, segments, behaviour)
        odd = pieces(random, stream(random))
        assert differences(odd, behaviour, remembering)[0] == [], (number, odd, behaviour)
    assert MEMORY["direct"] - before > 60, MEMORY


@requirement("wall.framing")
@pytest.mark.parametrize(
    "sent",
    [
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 25\r\n\r\n\r\n00000000000000000000\r\n1",  # zeros of a body
        b"PRI / HTTP/0.9\r\n\r\n",
        b"POST /? HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_what_only_looks_different_is_no_finding(sent: bytes) -> None:
    assert differences([sent], "reads")[0] == []


@requirement("wall.framing")
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_nothing_is_written_behind_the_last_answer(behaviour: str, caplog: pytest.LogCaptureFixture) -> None:
    """A client that is refused in the middle of a body whose `100 Continue` was not asked for yet."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
    read = gateway_reads([head + b"zz\r\n"], behaviour)
    assert read.statuses == [400] and read.failed == ""
    assert not caplog.records, "the app is not told of a fault by an exception"


def test_the_fuzzer_finds_the_request_that_was_smuggled_once() -> None:
    """The connection that was there before read it as two requests."""
    findings, _ = differences(UPGRADE, "reads", HttpToolsProtocol)
    assert any("/smuggled" in finding for finding in findings), findings
    found = 0
    for number in range(400):
        random = Random(number)
        found += bool(differences(pieces(random, stream(random)), "reads", HttpToolsProtocol)[0])
    assert found > 3


def test_what_is_found_is_made_small() -> None:
    stream_of_many = [b"GET / HTTP/1.1\r\nHost: a\r\nX-Pad: " + b"p" * 300 + b"\r\n\r\n", *UPGRADE]

    def is_found(segments: object) -> bool:
        return any(b"smuggled" in segment for segment in segments)  # type: ignore[attr-defined]  # a list

    assert smaller(stream_of_many, is_found) == [b"smuggled"]


def test_the_referee_reads_what_is_plain() -> None:
    body = b"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
    read = referee_reads([body * 3])
    assert [(r.method, r.target, r.body) for r in read.requests] == [("POST", "/mcp", b"{}")] * 3


@requirement("wall.framing")
@pytest.mark.parametrize("name", CHECKS)
def test_messages_are_read_as_json_reads_them(name: str) -> None:
    run(name, 1, 150)


def test_an_object_that_is_no_text_is_invalid() -> None:
    for data in (b'{"\x80": 1}', b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"):
        with pytest.raises(InvalidMessage):
            decode_object(data, "params")


def test_the_oracle_tells_the_difference() -> None:
    check_message(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    check_batch(b'[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"ping"},1]')
