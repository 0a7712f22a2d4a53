"""A connection that remembers heads is, for its client and for the handler, like one that does not."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.attack.fuzz.repeats import Conversation, conversation, differences
from tests.requirements import requirement
from transports.inbound.head_cache import RememberedHeads
from transports.inbound.started_post import StartedPost

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
    assert counts["direct"] > 20, counts


def test_the_third_request_with_a_head_is_served_from_memory() -> None:
    assert counts_of(request("soon"), request("soon", 20)) == {"new_head": 2}
    assert counts_of(*(request("now", 10**number, "p" * number) for number in range(6))) == {"new_head": 2, "direct": 4}


@pytest.mark.parametrize("kind", ["now", "soon", "later", "error", "whole stream", "failed stream"])
def test_a_call_is_served_from_memory_in_any_segments(kind: str) -> None:
    whole = request(kind)
    place = whole.index(END) + 4
    warm = (request("soon"), request("soon"))
    assert counts_of(*warm, whole)["direct"] == 1
    assert counts_of(*warm, whole[:place], whole[place:])["direct"] == 1
    assert counts_of(*warm, whole[: place + 5], whole[place + 5 :])["direct"] == 1
    assert counts_of(*warm, whole[:place], *(whole[at : at + 1] for at in range(place, len(whole))))["direct"] == 1


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        *[(kind, "refused") for kind in ("refused", "late refusal", "broken", "elsewhere")],
        *[(kind, "streamed") for kind in ("stream", "big stream", "quiet", "doubtful", "closed", "odd header")],
    ],
)
def test_what_is_unusual_goes_on_in_the_usual_way(kind: str, outcome: str) -> None:
    assert counts_of(request("soon"), request("soon"), request(kind), request("soon"))[outcome] == 1


def test_a_refusal_ends_the_memory_of_its_head() -> None:
    warm = (request("soon"), request("soon"))
    counts = counts_of(*warm, request("refused"), request("soon"), request("soon"))
    assert counts == {"new_head": 3, "refused": 1, "direct": 1}


@requirement("wall.framing")
def test_further_bytes_are_the_next_request() -> None:
    warm, one, outcome = (request("soon"), request("soon")), request("soon", 3), "pipelined"
    assert counts_of(*warm, one + one)[outcome] == 1
    assert counts_of(*warm, one + b"\r\n")[outcome] == 1
    assert counts_of(*warm, one[:-3], one[-3:] + one)[outcome] == 1
    assert counts_of(*warm, request("never"), one)[outcome] == 1
    assert counts_of(*warm, *[one * 20])[outcome] == 1


def test_a_client_that_leaves_is_treated_as_ever() -> None:
    warm, one = (request("soon"), request("soon")), request("soon", 3)
    assert counts_of(*warm, request("never"), None)["interrupted"] == 1
    for cut in (len(one) - 3, one.index(END) + 4, one.index(END) + 2, 5):
        assert counts_of(*warm, one[:cut], None)["direct"] == 0


def test_each_request_from_memory_has_its_own_trace() -> None:
    def traced(number: int) -> bytes:
        trace = f"00-{number:032x}-{number:016x}-01"
        return request("now").replace(b"Host: localhost\r\n", f"Host: localhost\r\ntraceparent: {trace}\r\n".encode())

    assert counts_of(*(traced(number) for number in range(1, 7))) == {"new_head": 2, "direct": 4}


@requirement("wall.memory")
def test_small_and_large_bodies_are_for_the_parser() -> None:
    warm = (request("soon"), request("soon"))
    assert counts_of(*warm, request("soon", 1, "p" * 66_000))["size"] == 1
    assert counts_of(*warm, HEAD + b"0" + END, request("soon"))["size"] == 1
    assert counts_of(*warm, HEAD + b"9999999" + END + b"x")["size"] == 1
    assert counts_of(*warm, HEAD + b"99999999" + END + b"x")["new_head"] == 3


def test_the_comparison_finds_a_body_that_is_read_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = StartedPost.__init__

    def wrong(self: StartedPost, endpoint: Any, head: Any, body: bytes, shared: Any) -> None:
        begin(self, endpoint, head, body.replace(b"echo", b"ecxo"), shared)

    monkeypatch.setattr(StartedPost, "__init__", wrong)
    assert differences(Conversation(pieces=(request("now"),) * 3, requests=3))[0] != []


def test_the_comparison_finds_a_head_that_is_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    match = RememberedHeads.match

    def wrong(self: RememberedHeads[object], data: bytes) -> object:
        return match(self, data.replace(b"2025-11-25", b"2025-06-18"))

    monkeypatch.setattr(RememberedHeads, "match", wrong)
    other = request("now").replace(b"2025-06-18", b"2025-11-25")
    assert differences(Conversation(pieces=(*(request("now"),) * 2, other), requests=3))[0] != []
