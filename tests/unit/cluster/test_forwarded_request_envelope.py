"""The envelope of a forwarded request."""

import msgspec
import pytest

from gateway.cluster.forwarded_request_envelope import (
    COPIES_S,
    VALID_S,
    Envelopes,
    Nonce,
    Refusal,
    SharedFacts,
    decode_facts,
    decode_shared_facts,
)
from gateway.cluster.ownership import Route
from session_store import KeyRing
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from transports.peer_frames import PeerFault

ONE, OTHER, THIRD = ("1" * 32, "2" * 32, "3" * 32)


class Door:
    """One replica's envelopes."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.envelopes = Envelopes(KeyRing.ephemeral(), self.clock)

    def accept(self, channel: str, number: int, copy_of: Nonce | None = None) -> Refusal | None:
        """What becomes of a call that is written and arrives now."""
        return self.envelopes.accept((channel, number), decode_facts(self.envelopes.facts(None, "", copy_of)))


@requirement("rep.any")
def test_what_is_said_of_a_request_arrives() -> None:
    route = Route(a_session(FakeClock()), ALICE, None)
    headers = [(b"accept", b"application/json")]
    common = decode_shared_facts(SharedFacts.of(route, "/mcp", headers, secure=True, method="GET", again=True).packed())
    assert (common.session, common.subject, common.path) == (route.session.id, ALICE.subject, "/mcp")
    assert (common.method, common.headers, common.secure, common.again) == ("GET", headers, True, True)
    facts = decode_facts(Door().envelopes.facts(route, "00-1-2-01", (ONE, 7)))
    assert (facts.epoch, facts.version) == (route.session.epoch, route.session.version)
    assert (facts.traceparent, facts.copy_of) == ("00-1-2-01", (ONE, 7))
    remembered = msgspec.structs.replace(route, is_read=False)
    assert decode_facts(Door().envelopes.facts(remembered)).epoch == -1


@requirement("id.purpose", "rep.any")
@pytest.mark.parametrize(
    "packed",
    [
        *(b"", b"\xff", b"{}", msgspec.msgpack.encode([1, 2])),
        *(Door().envelopes.facts(None, copy_of=(of_no_channel, 1)) for of_no_channel in ("", "x" * 1000)),
    ],
)
def test_what_cannot_be_read_is_a_fault(packed: bytes) -> None:
    for decode in (decode_shared_facts, decode_facts):
        with pytest.raises(PeerFault):
            decode(packed)


@requirement("id.purpose", "rep.honest", "rep.no-retry", "hot.forwarded")
def test_of_a_call_and_its_copies_elsewhere_one_is_accepted() -> None:
    door = Door()
    assert door.accept(ONE, 1) is None and door.accept(ONE, 2) is None
    assert door.accept(OTHER, 1, (ONE, 2)) is Refusal.SEEN and door.accept(OTHER, 2, (ONE, 1)) is Refusal.SEEN
    assert door.accept(OTHER, 3, (ONE, 3)) is None and door.accept(ONE, 3) is Refusal.SEEN, "the copy was first"
    assert door.accept(THIRD, 1, (ONE, 3)) is Refusal.SEEN, "another copy"
    assert door.accept(ONE, 4) is None
    door.clock.pass_time(COPIES_S)
    assert door.accept(OTHER, 4, (ONE, 4)) is Refusal.SEEN
    door.clock.pass_time(2 * VALID_S)
    assert door.accept(OTHER, 5) is None
    assert door.accept(OTHER, 6, (ONE, 4)) is Refusal.SEEN, "of the generation before"


@requirement("rep.honest", "id.purpose")
def test_a_call_that_is_held_up_on_its_way_or_valid_for_too_long_is_refused() -> None:
    door, ahead = Door(), Door()
    ahead.clock.pass_time(VALID_S - 0.1)
    last = ahead.envelopes.facts(None)
    assert door.envelopes.accept((ONE, 1), decode_facts(last)) is None
    door.clock.pass_time(2 * VALID_S)
    assert door.envelopes.accept((ONE, 2), decode_facts(last)) is Refusal.INVALID
    ahead.clock.pass_time(2 * VALID_S + 1.2)
    assert door.envelopes.accept((ONE, 2), decode_facts(ahead.envelopes.facts(None))) is Refusal.INVALID
