"""Headers of a request as a map."""

import contextlib

import pytest

from tests.requirements import requirement
from transports.inbound.http import Guard, header_map
from transports.inbound_port import Refused


@requirement("wall.authority")
def test_headers_are_the_same_in_any_case_and_with_any_space() -> None:
    for raw in ([(b"X-User", b"a"), (b"x-user", b"b")], [(b"x-USER", b"a"), (b"X-User", b" a")]):
        with pytest.raises(Refused):
            header_map(raw, frozenset({"x-user"}))
    assert header_map([(b"X-User", b" a\t")]) == {"x-user": "a"}


@requirement("ops.loop")
@pytest.mark.parametrize(
    ("via", "is_refused"),
    [
        ("1.1 gateway-a", True),
        ("1.1 proxy, 1.1 gateway-b (with a comment)", True),
        ("HTTP/1.1 gateway-a", True),
        ("1.1 gateway-c, 1.1 gateway-aa", False),
        ("", False),
    ],
)
def test_a_request_that_this_gateway_has_sent_is_refused(via: str, is_refused: bool) -> None:
    guard = Guard(hops=frozenset({"gateway-a", "gateway-b"}))
    with pytest.raises(Refused) if is_refused else contextlib.nullcontext() as caught:
        guard.check({"host": "localhost", "via": via})
    assert caught is None or caught.value.status == 508
