"""Requests that are refused for where they come from or have been."""

import contextlib
from contextvars import copy_context

import pytest

from tests.requirements import requirement
from transports.inbound.host_and_origin import Guard
from transports.inbound_port import Refused
from transports.via_header import MOST, gateway_name, via_of

ONE, OTHER, THIRD = (gateway_name(digit * 16) for digit in "abc")


@requirement("ops.loop")
@pytest.mark.parametrize(
    ("via", "is_refused"),
    [
        (f"1.1 {ONE}", True),
        (f"1.1 proxy, 1.1 {OTHER} (with a comment)", True),
        (f"HTTP/1.1 {ONE},1.1 proxy", True),
        (f"1.1 {ONE}0, 1.1 x{OTHER}, 1.1 {ONE}.example, 1.1 {THIRD}", False),
        (", ".join([f"1.1 {THIRD}"] * (MOST + 1)), True),
        ("", False),
    ],
)
def test_a_request_that_has_passed_this_gateway_is_refused(via: str, is_refused: bool) -> None:
    guard = Guard(hops=frozenset({ONE, OTHER}))
    with pytest.raises(Refused) if is_refused else contextlib.nullcontext() as caught:
        copy_context().run(guard.check, {"host": "localhost", "via": via})
    assert caught is None or caught.value.status == 508


@requirement("ops.loop")
def test_servers_are_told_of_the_gateways_that_a_request_has_passed_and_of_no_other_proxy() -> None:
    def told(via: str) -> str:
        Guard().check({"host": "localhost", "via": via})
        return via_of(OTHER)

    assert copy_context().run(told, f"1.1 inner.example, 1.1 {ONE}") == f"1.1 {ONE}, 1.1 {OTHER}"
    assert copy_context().run(told, "") == f"1.1 {OTHER}"
