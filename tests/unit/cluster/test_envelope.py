"""The sealed envelope of a forwarded request."""

from collections.abc import Callable
from typing import Any

from gateway.cluster.envelope import (
    COPIES_S,
    RECORD_MAC_BYTES,
    VALID_S,
    Envelope,
    Envelopes,
    ForwardedRequest,
    Opened,
    Refusal,
)
from gateway.cluster.ownership import Route
from session_store import KeyRing
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from transports.replica_wire_server import BODY_WITHIN_S

RING = KeyRing.ephemeral()
HEADERS = [(b"accept", b"application/json"), (b"traceparent", b"00-1-2-01")]


class Door:
    """One replica's envelopes."""

    def __init__(self, ring: KeyRing = RING, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.envelopes = Envelopes(ring, self.clock)

    def sealing(self, target: str = "me", body: bytes = b"{}") -> Callable[[], bytes]:
        request = ForwardedRequest(
            route=Route(a_session(self.clock), ALICE, None),
            method="POST",
            path="/mcp",
            secure=True,
            again=False,
            headers=HEADERS[:1],
            body=body,
        )
        return self.envelopes.sealing(target, request, HEADERS[1:])

    def open(self, head: bytes, body: bytes = b"{}") -> tuple[Envelope, Any] | Refusal:
        opened = self.envelopes.open("me", head)
        if isinstance(opened, Refusal):
            return opened
        headers = self.envelopes.take(opened, body)
        return headers if isinstance(headers, Refusal) else (opened.envelope, headers)


@requirement("id.purpose", "rep.any")
def test_a_good_envelope_is_good_once_and_for_its_content_only() -> None:
    door = Door()
    seal = door.sealing()
    assert door.open(seal(), b"{ }") is Refusal.INVALID, "another body"
    assert door.open(seal().replace(b"application", b"applicatiom")) is Refusal.INVALID, "another header"
    opened = door.open(seal())
    assert not isinstance(opened, Refusal)
    envelope, headers = opened
    assert (envelope.subject, envelope.path, envelope.secure) == (ALICE.subject, "/mcp", True) and headers == HEADERS
    assert door.open(seal()) is Refusal.SEEN, "a second copy, sealed later"


@requirement("id.purpose")
def test_late_foreign_misdirected_and_damaged_envelopes_stay_outside() -> None:
    door = Door()
    late = door.sealing()()
    door.clock.pass_time(11)
    assert door.open(late) is Refusal.INVALID
    assert door.open(Door(KeyRing.ephemeral(), door.clock).sealing()()) is Refusal.INVALID
    assert door.open(door.sealing("another")()) is Refusal.SOMEBODY_ELSE
    good = door.sealing()()
    for damaged in (b"", b"\x00" * 40, good[:-1], good[:20], good[:40] + b"\xff" + good[41:]):
        assert door.open(damaged) is Refusal.INVALID


@requirement("id.rotate")
def test_replicas_with_keys_in_rotation_understand_each_other() -> None:
    clock = FakeClock()
    old, new = "o" * 40, "n" * 40
    first, second = Door(KeyRing([old, new]), clock), Door(KeyRing([new, old]), clock)
    assert not isinstance(first.open(second.sealing()()), Refusal)
    assert not isinstance(second.open(first.sealing()()), Refusal)


@requirement("id.purpose", "hot.forwarded")
def test_a_record_is_good_on_its_channel_in_its_place_and_for_seconds() -> None:
    door = Door()
    seal = door.envelopes.seal_record("channel", 7, b"content")
    assert len(seal) == RECORD_MAC_BYTES
    assert door.envelopes.verify_record("channel", 7, b"content", seal)
    for name, number, content in (("Channel", 7, b"content"), ("channel", 8, b"content"), ("channel", 7, b"contents")):
        assert not door.envelopes.verify_record(name, number, content, seal)
    later = bytes([seal[0] ^ 1]) + seal[1:]
    assert not door.envelopes.verify_record("channel", 7, b"content", later), "another time"
    assert not Door(KeyRing.ephemeral(), door.clock).envelopes.verify_record("channel", 7, b"content", seal)
    assert not door.envelopes.verify_record("channel", 7, b"content", b"")
    door.clock.pass_time(11)
    assert not door.envelopes.verify_record("channel", 7, b"content", seal)


@requirement("id.purpose", "rep.honest", "hot.forwarded")
def test_of_a_call_on_a_channel_and_its_copies_elsewhere_one_is_accepted() -> None:
    door = Door()
    envelopes = door.envelopes
    assert envelopes.use_number("channel", 1) and envelopes.use_number("channel", 2)
    assert not envelopes.use("channel.2") and not envelopes.use("channel.1"), "the call was first"
    assert envelopes.use("channel.3") and not envelopes.use_number("channel", 3), "the copy was first"
    assert envelopes.use_number("channel", 4) and envelopes.use("another.1") and envelopes.use("a-nonce")
    door.clock.pass_time(59)
    assert not envelopes.use("channel.4")
    door.clock.pass_time(10)
    assert not envelopes.use("channel.4"), "of the generation before"
    door.clock.pass_time(90)
    door.clock.pass_time(90)
    assert envelopes.use_number("channel", 5)


@requirement("rep.honest", "rep.no-retry")
def test_a_copy_that_is_held_up_on_its_way_is_no_new_request() -> None:
    door = Door()
    ahead = Door(clock=FakeClock())
    ahead.clock.pass_time(VALID_S - 0.1)
    seal = ahead.sealing()
    assert not isinstance(door.open(seal()), Refusal)
    for clock in (ahead.clock, door.clock):
        clock.pass_time(COPIES_S)
    last = seal()
    for moment in (0.0, 2 * VALID_S - 0.2):
        door.clock.pass_time(moment)
        door.envelopes.use(f"another {moment}")
    held = door.envelopes.open("me", last)
    assert isinstance(held, Opened), "its head has come in time"
    for _ in range(3):
        door.clock.pass_time(BODY_WITHIN_S / 3)
        door.envelopes.use(f"another {door.clock()}")
    assert door.envelopes.take(held, b"{}") is Refusal.SEEN


@requirement("rep.honest", "id.purpose")
def test_a_seal_that_is_valid_for_too_long_is_none() -> None:
    door = Door()
    ahead = Door(clock=FakeClock())
    ahead.clock.pass_time(VALID_S + 1)
    assert door.open(ahead.sealing()()) is Refusal.INVALID
    seal = ahead.envelopes.seal_record("channel", 7, b"content")
    assert not door.envelopes.verify_record("channel", 7, b"content", seal)
