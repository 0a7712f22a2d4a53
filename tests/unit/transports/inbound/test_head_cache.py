"""A head is found again if all its bytes are the same but the digits of its length."""

import pytest

from tests.requirements import requirement
from transports.inbound.head_cache import (
    LEAST_MEMORY_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADS,
    MAX_MEMORY_BYTES,
    MAX_SEEN,
    MAX_TOTAL_BYTES,
    ConnectionHeads,
    SharedHeads,
    Template,
    template_of,
)

pytestmark = requirement("hot.memory")

LINES = ("POST /mcp HTTP/1.1", "Host: a", "Content-Length: 12", "X: y")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def head(*lines: str) -> bytes:
    return "\r\n".join((*(lines or LINES), "", "")).encode("latin-1")


def headers(raw: bytes) -> list[tuple[bytes, bytes]]:
    pairs = (line.partition(b":") for line in raw.split(b"\r\n")[1:] if line)
    return [(name.lower(), value.strip()) for name, _, value in pairs]


def template(*lines: str) -> Template:
    raw = head(*lines)
    found = template_of(raw, headers(raw))
    assert found is not None
    return found


def remembering(*templates: Template) -> ConnectionHeads[str]:
    heads = ConnectionHeads[str](SharedHeads())
    for number, each in enumerate(templates):
        heads.add(each, str(number))
    return heads


@pytest.mark.parametrize("length", [0, 1, 7, 64, 9_999_999])
def test_only_the_digits_of_the_length_may_differ(length: int) -> None:
    heads, other = remembering(template()), head().replace(b"12", b"%d" % length)
    for behind in (b"", b"{", b"x" * 100):
        found = heads.match(other + behind)
        assert found is not None
        assert (found.known.value, found.head_bytes, found.body_bytes) == ("0", len(other), length)


@requirement("wall.framing")
@pytest.mark.parametrize(
    "digits",
    [b"", b"00", b"012", b"+12", b"-1", b" 12", b"12 ", b"1 2", b"1_2", b"0x1", b"12345678", b"\xb2", b"1,1", b"12\r"],
)
def test_digits_of_another_form_are_not_found(digits: bytes) -> None:
    assert remembering(template()).match(head().replace(b"12", digits) + b"{}") is None


@requirement("wall.framing")
def test_no_other_byte_may_differ_and_none_may_be_missing() -> None:
    raw, heads = head(), remembering(template())
    digits = range(raw.index(b"12"), raw.index(b"12") + 2)
    for place in range(len(raw)):
        assert heads.match(raw[:place]) is None
        if place not in digits:
            assert heads.match(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]) is None
            assert heads.match(raw[:place] + raw[place + 1 :] + b"x") is None
    assert heads.match(b"\r\n" + raw) is None


@pytest.mark.parametrize("place", range(1, 5))
def test_each_request_may_have_a_trace_of_its_own(place: int) -> None:
    lines = [*LINES]
    lines.insert(place, f"TraceParent: {TRACE}")
    other = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-00"
    heads, raw = remembering(template(*lines)), head(*lines).replace(TRACE.encode(), other.encode())
    found = heads.match(raw.replace(b"12", b"345") + b"{}")
    assert found is not None and (found.trace, found.body_bytes) == (other.encode(), 345)
    wrong = ("", other[:-1], other + "0", other.upper(), "01" + other[2:], other.replace("-", "_"))
    for each in (*wrong, "0" * 55, "\u00b2" * 55):
        assert heads.match(head(*lines).replace(TRACE.encode(), each.encode("latin-1")) + b"{}") is None
    for end in range(len(raw)):
        assert heads.match(raw[:end]) is None
    assert heads.match(head() + b"{}") is None
    odd = remembering(template(*LINES, "traceparent: 01-x"))
    assert odd.match(head(*LINES, "traceparent: 01-x")) is not None, "one of another form is a byte like others"
    assert odd.match(head(*LINES, f"traceparent: {TRACE}")) is None


def test_a_head_that_begins_like_another_is_another() -> None:
    longer = template(*LINES, "Z: 1")
    heads = remembering(template(), longer)
    for number, lines in enumerate((LINES, (*LINES, "Z: 1"))):
        found = heads.match(head(*lines) + b"{}")
        assert found is not None and found.known.value == str(number)
    assert heads.match(head(*LINES, "Z: 2") + b"{}") is None


UNUSUAL = (
    *((first, *LINES[1:]) for first in ("GET /mcp HTTP/1.1", "POST http://a/mcp HTTP/1.1", "POST  /mcp HTTP/1.1")),
    *((first, *LINES[1:]) for first in ("POST /mcp HTTP/1.0", "POST /mcp")),
    LINES[:2],
    *((*LINES[:2], f"Content-Length: {digits}") for digits in ("12, 12", "012", "12345678", " 12")),
    *((*LINES, more) for more in ("Content-Length: 12", "Transfer-Encoding: chunked", "Expect: 100-continue")),
    *((*LINES, more) for more in ("Upgrade: h2c", "Connection: close", "Connection: keep-alive, upgrade")),
    *((*LINES, more) for more in ("Trailer: X", "x: z", "X: a\r\n b", "X: a\nY: b", "X: a\rb", "X: \x00", "X : a")),
    (*LINES, "X: " + "x" * MAX_HEAD_BYTES),
    (*LINES, f"traceparent: {TRACE}", f"traceparent: {TRACE}"),
)


@requirement("wall.framing")
@pytest.mark.parametrize("lines", UNUSUAL)
def test_a_head_that_says_more_of_its_body_or_is_unusual_is_not_remembered(lines: tuple[str, ...]) -> None:
    raw = head(*lines)
    assert template_of(raw, headers(raw)) is None


@requirement("wall.framing")
def test_a_head_of_which_the_parser_has_read_something_else_is_not_remembered() -> None:
    read = headers(head())
    assert template_of(head(), read) is not None
    assert template_of(head(), read[1:]) is None
    assert template_of(head(), [*read, (b"z", b"")]) is None
    assert template_of(head(), [(name, value.replace(b"12", b"13")) for name, value in read]) is None
    assert template_of(head() + b"{}", read) is None


@requirement("wall.memory")
def test_a_connection_holds_few_bytes_and_fewer_if_all_hold_many() -> None:
    shared = SharedHeads[str]()
    heads, other = ConnectionHeads[str](shared), ConnectionHeads[str](shared)
    large = [template(*LINES, f"Z: {number:02}" + "z" * 8_000) for number in range(40)]
    size = large[0].memory_bytes
    for each in large:
        heads.add(each, "")
    assert len(heads) == MAX_MEMORY_BYTES // size and shared.total == len(heads) * size
    shared.total += MAX_TOTAL_BYTES
    for each in large:
        other.add(each, "")
    assert len(other) == LEAST_MEMORY_BYTES // size
    shared.total -= MAX_TOTAL_BYTES
    heads.forget(large[-2])
    assert shared.total == (len(heads) + len(other)) * size
    held = other.add(template(), "with more")
    assert held is not None
    heads.close()
    heads = ConnectionHeads[str](shared)
    assert heads.match(head()) is not None, "it has the head too"
    held.grow(MAX_MEMORY_BYTES)  # for a call of another connection
    assert len(heads) == 0, "both make room"
    del held
    assert len(other) == 0 == shared.total


@requirement("wall.memory", "hot.memory")
def test_connections_from_one_place_share_a_head_for_as_long_as_one_of_them_has_it() -> None:
    shared = SharedHeads[str]()
    here = ("192.0.2.1", "http")
    one, other = ConnectionHeads[str](shared, here), ConnectionHeads[str](shared, here)
    strangers = [ConnectionHeads[str](shared, where) for where in (("192.0.2.2", "http"), ("192.0.2.1", "https"))]
    one.add(template(), "of one")
    assert all(stranger.match(head()) is None for stranger in strangers)
    assert other.is_repeated(head()) is False, "it is known, and was never seen to come again"
    found = other.match(head() + b"{}")
    assert found is not None and found.known.value == "of one"
    size, found = template().memory_bytes, None
    assert shared.total == size and len(one) == len(other) == 1, "it is counted once"
    one.close()
    assert other.match(head()) is not None and shared.total == size
    other.close()
    other.add(template(), "a request that ends after its connection")
    assert ConnectionHeads[str](shared, here).match(head()) is None and shared.total == 0 == len(other)


@requirement("wall.memory")
def test_of_few_heads_the_one_that_was_not_repeated_for_longest_makes_room() -> None:
    heads = remembering(*(template(*LINES, f"Z: {number}") for number in range(MAX_HEADS)))
    assert heads.match(head(*LINES, "Z: 0")) is not None
    heads.add(template(*LINES, "Z: new"), "new")
    assert len(heads) == MAX_HEADS
    assert [heads.match(head(*LINES, f"Z: {name}")) is not None for name in (0, 1, "new")] == [True, False, True]


@requirement("wall.memory")
def test_what_comes_once_is_not_kept() -> None:
    shared = SharedHeads[str]()
    heads = ConnectionHeads[str](shared)
    assert not heads.is_repeated(head()) and len(heads) == 0
    assert heads.is_repeated(head()) and heads.is_repeated(head().replace(b"12", b"345"))
    assert not heads.is_repeated(head(*LINES[:2])) and not heads.is_repeated(head(*LINES[:2])), "it has no length"
    for flooding, is_known in ((ConnectionHeads[str](shared), True), (heads, False)):
        for number in range(MAX_SEEN):
            assert not flooding.is_repeated(head(*LINES, f"Z: {is_known} {number}"))
        assert heads.is_repeated(head()) == is_known, "a connection knows what it has had itself"
