"""Headers of a request as a map."""

import pytest

from tests.requirements import requirement
from transports.inbound.http_requests_and_responses import header_map
from transports.inbound_port import Refused


@requirement("wall.authority")
def test_headers_are_the_same_in_any_case_and_with_any_space() -> None:
    for raw in ([(b"X-User", b"a"), (b"x-user", b"b")], [(b"x-USER", b"a"), (b"X-User", b" a")]):
        with pytest.raises(Refused):
            header_map(raw, frozenset({"x-user"}))
    assert header_map([(b"X-User", b" a\t")]) == {"x-user": "a"}
