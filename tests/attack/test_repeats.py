"""A connection that remembers heads is, for its client and for the handler, like one that does not."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.attack.fuzz.repeats import Conversation, conversation, differences
from tests.requirements import requirement
from transports.inbound.asgi_bypass_post import StartedPost
from transports.inbound.head_cache import OUTCOMES, ConnectionHeads

pytestmark = requirement("hot.memory")

HEAD = (
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-06-18\r\nContent-Length: "
)
END = b"\r\n\r\n"


def request(kind: str, number: int = 1, pad: str = "") -> bytes:
    body = (
        b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{"kind":"%b","pad":"%b"}}}'
        % (number, kind.encode(), pad.encode())
    )
    return HEAD + b"%d" % len(body) + END + body


def counts_of(*pieces: bytes | None) -> Counter[str]:
    """What the memory was good for, where it made no difference."""
    found, counts = differences(Conversation(pieces=pieces, requests=len(pieces)))
    assert found == []
    return counts


@requirement("wall.framing")
@pytest.mark.parametrize("first", range(0, 160, 40))
def test_it_makes_no_difference_but_speed(first: int) -> None:
    counts = Counter[str]()
    for number in range(first, first + 40):
        found, became = differences(conversation(Random(number)))
        assert found == [], number
        counts += became
    assert counts["direct"] > 50, counts
    assert counts.keys() >= {*OUTCOMES} - {"fast", "interrupted"}, "every other way was met"


def test_the_third_request_with_a_head_is_served_from_memory() -> None:
    assert counts_of(request("soon"), request("soon", 20)) == {"new_head": 2}
    assert counts_of(*(request("now", 10**number, "p" * number) for number in range(6))) == {"new_head": 2, "direct": 4}


def test_a_refusal_ends_the_memory_of_its_head() -> None:
    warm = (request("soon"), request("soon"))
    counts = counts_of(*warm, request("refused"), request("soon"), request("soon"))
    assert counts == {"new_head": 3, "refused": 1, "direct": 1}


def test_a_client_that_leaves_is_treated_as_ever() -> None:
    warm, one = (request("soon"), request("soon")), request("soon", 3)
    assert counts_of(*warm, request("never"), None)["interrupted"] == 1
    for cut in (len(one) - 3, one.index(END) + 4, one.index(END) + 2, 5):
        assert counts_of(*warm, one[:cut], None)["direct"] == 0


def test_the_comparison_finds_a_body_that_is_read_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = StartedPost.__init__

    def wrong(self: StartedPost, endpoint: Any, head: Any, body: bytes, shared: Any) -> None:
        begin(self, endpoint, head, body.replace(b"echo", b"ecxo"), shared)

    monkeypatch.setattr(StartedPost, "__init__", wrong)
    assert differences(Conversation(pieces=(request("now"),) * 3, requests=3))[0] != []


def test_the_comparison_finds_a_head_that_is_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    match = ConnectionHeads.match

    def wrong(self: ConnectionHeads[object], data: bytes) -> object:
        return match(self, data.replace(b"2025-11-25", b"2025-06-18"))

    monkeypatch.setattr(ConnectionHeads, "match", wrong)
    other = request("now").replace(b"2025-06-18", b"2025-11-25")
    assert differences(Conversation(pieces=(*(request("now"),) * 2, other), requests=3))[0] != []
