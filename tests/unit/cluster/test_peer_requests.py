"""One request to one peer, with the peer and the store played by the test."""

import asyncio
from time import monotonic
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gateway.cluster.channels import Peer
from gateway.cluster.envelope import COPIES_S, Envelopes, ForwardedRequest, Refusal
from gateway.cluster.lease import DOUBT_S, LEASE_S
from gateway.cluster.liveness import Outcome
from gateway.cluster.ownership import Route
from gateway.cluster.peer_requests import PeerRequests
from gateway.cluster.relayed_reply import RelayedReply
from gateway.observability.metrics import Metrics
from gateway.observability.request_log import RequestLog
from session_store import KeyRing, StoreUnavailable
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from transports.inbound_port import Refused
from transports.replica_wire import PeerConnectionLost, PeerRefused, PeerTimedOut

pytestmark = pytest.mark.anyio

LOST, TIMED_OUT = PeerConnectionLost(), PeerTimedOut()
HEAD = (b"h", msgspec.msgpack.encode((200, [(b"content-type", b"application/json")])))


class Cluster:
    """What the store says of the peer's lease: how old it is, False if it has expired, None without the store."""

    def __init__(self, leased: float | None, *, trusts: bool = True, doubts: bool = True) -> None:
        self.replica = "me"
        self.leased = leased
        self.looks = 0
        self.lease = SimpleNamespace(trusts_expired=trusts, doubt=lambda _: doubts)

    async def have_beat(self, _: str) -> None: ...

    async def lease_age(self, _: str) -> float | None:
        self.looks += 1
        leased = self.leased
        await asyncio.sleep(0)
        if leased is None:
            raise StoreUnavailable("out")
        return None if leased is False else 0.5 if leased is True else leased


class Connection:
    """Gives one frame after the other, or raises."""

    def __init__(self, frames: list[Any], quiet_for_s: float = 0.0) -> None:
        self.frames = frames
        self.quiet_for_s = quiet_for_s
        self.asked: list[bytes] = []
        self.ends: list[str] = []
        self.may_have_run = True
        self.asked_at, self.nonce = 0.0, "channel.1"

    def ask(self, head: bytes, body: bytes) -> None:
        self.asked.append(head)

    async def next(self) -> tuple[bytes, bytes]:
        frame = self.frames.pop(0)
        if isinstance(frame, Exception):
            raise frame
        return frame  # type: ignore[no-any-return]

    def done(self) -> None:
        self.ends.append("done")

    def close(self) -> None:
        self.ends.append("close")


class Hanging:
    """A try that is neither accepted nor refused: until the lease was looked at so often, for a while, or until it is
    given up."""

    def __init__(self, cluster: Cluster, looks: int = 100, then: Any = TIMED_OUT, *, seconds: float = 30.0) -> None:
        self.cluster = cluster
        self.looks = looks
        self.seconds = seconds
        self.then = then
        self.is_given_up = False

    async def opened(self) -> Any:
        try:
            until = asyncio.get_running_loop().time() + self.seconds
            while self.cluster.looks < self.looks and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.is_given_up = True
            raise
        return self.then


class Pool:
    """Opens what it is given, one after the other."""

    def __init__(self, opened: list[Any]) -> None:
        self.opened = opened

    async def open(self, *_: str) -> Connection:
        found = self.opened.pop(0)
        if isinstance(found, Hanging):
            found = await found.opened()
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]


class NoChannels:
    """Of a peer that has no channels."""

    async def open(self, _: Peer) -> None:
        return None


class Asked:
    """One request, what the client got, and what was counted."""

    def __init__(self, cluster: Cluster, *opened: Any) -> None:
        self.sent: list[Any] = []
        self.log = RequestLog(Metrics(), lines_per_s=0)
        self.requests = PeerRequests(cluster, Envelopes(KeyRing.ephemeral(), FakeClock()), self.log)  # type: ignore[arg-type]
        self.requests._pool = Pool([*opened])  # type: ignore[assignment]
        self.requests._channels = NoChannels()  # type: ignore[assignment]
        self.reply = RelayedReply(self._receive, self._send)

    async def _receive(self) -> Any:
        await asyncio.Event().wait()

    async def _send(self, event: Any) -> None:
        self.sent.append(event)

    async def outcome(self, begun: Any = None) -> Outcome:
        request = ForwardedRequest(
            route=Route(a_session(FakeClock()), ALICE, None, begun=begun),
            method="POST",
            path="/mcp",
            secure=False,
            again=False,
            headers=[],
            body=b"{}",
        )
        return await self.requests.ask(Peer("peer", "a:1"), request, self.reply)


@requirement("rep.quick", "rep.behind-address")
async def test_an_address_that_closes_connections_proves_no_beat_after_a_silence() -> None:
    tries = [Connection([LOST]), Connection([]), Connection([LOST]), Connection([]), Connection([HEAD, (b"e", b"")])]
    assert await Asked(Cluster(0.0), *tries).outcome() is Outcome.ANSWERED, "its sidecar may be starting again"


@requirement("rep.quick", "rep.fence")
async def test_others_hold_if_all_of_them_agree_in_time() -> None:
    agreed, refused = [Connection([(kind, b"")]) for kind in (b"e", b"m")]
    assert await Asked(Cluster(True), agreed).requests.hold({"peer": "a:1"}) and agreed.ends == ["done"]
    assert not await Asked(Cluster(True), refused).requests.hold({"peer": "a:1"})
    assert not await Asked(Cluster(True), PeerRefused()).requests.hold({"peer": "a:1"})
    assert await Asked(Cluster(True)).requests.hold({}), "there is nobody else"
    lost = Connection([LOST])
    assert not await Asked(Cluster(True), lost).requests.hold({"peer": "a:1"}) and lost.ends == ["close"]


async def test_an_answer_is_passed_on_as_it_comes() -> None:
    connection = Connection([HEAD, (b"b", b"one"), (b"e", b"two")])
    asked = Asked(Cluster(True), connection)
    assert await asked.outcome() is Outcome.ANSWERED
    assert [event.get("body") for event in asked.sent] == [None, b"one", b"two"] and connection.ends == ["done"]
    assert asked.reply.has_started and asked.reply.has_begun and not asked.reply.is_stream
    assert asked.log.metrics.forwarded["answered"] == 1


async def test_a_session_that_moved_is_no_answer() -> None:
    asked = Asked(Cluster(True), Connection([(b"m", b"")]))
    assert await asked.outcome() is Outcome.MOVED and not asked.reply.has_started


@pytest.mark.parametrize(
    ("refusal", "outcome", "started"),
    [(Refusal.SOMEBODY_ELSE, Outcome.GONE, False), (Refusal.SEEN, Outcome.UNKNOWN, True)],
)
async def test_a_refusal_says_what_became_of_the_request(refusal: Refusal, outcome: Outcome, started: bool) -> None:
    asked = Asked(Cluster(True), Connection([(b"r", refusal.value.encode())]))
    assert await asked.outcome() is outcome and asked.reply.has_started is started


async def test_replicas_that_disagree_about_keys_give_503() -> None:
    asked = Asked(Cluster(True), Connection([(b"r", b"invalid")]))
    with pytest.raises(Refused):
        await asked.outcome()
    assert asked.log.metrics.forwarded["unreachable"] == 1


async def test_an_address_that_refuses_is_a_peer_that_is_gone() -> None:
    assert await Asked(Cluster(True), PeerRefused()).outcome() is Outcome.GONE


@pytest.mark.parametrize(
    ("cluster", "quiet_for_s", "outcome"),
    [
        (Cluster(False), 1.5, Outcome.GONE),
        (Cluster(True), LEASE_S, Outcome.CUT_OFF),
        (Cluster(True), 1.0, Outcome.ANSWERED),
        (Cluster(0.3), 1.0, Outcome.CUT_OFF),
        (Cluster(DOUBT_S), DOUBT_S, Outcome.SILENT),
        (Cluster(DOUBT_S, doubts=False), DOUBT_S, Outcome.ANSWERED),
        (Cluster(None), 1.5, Outcome.ANSWERED),
        (Cluster(False, trusts=False), 1.5, Outcome.ANSWERED),
    ],
)
async def test_a_peer_that_timed_out_is_judged_by_its_lease(
    cluster: Cluster, quiet_for_s: float, outcome: Outcome
) -> None:
    asked = Asked(cluster, Connection([TIMED_OUT, HEAD, (b"e", b"")], quiet_for_s))
    assert await asked.outcome() is outcome


@requirement("rep.quick")
@pytest.mark.parametrize(
    ("cluster", "outcome"),
    [
        (Cluster(0.0), Outcome.CUT_OFF),
        (Cluster(DOUBT_S), Outcome.SILENT),
        (Cluster(False), Outcome.GONE),
    ],
)
async def test_the_lease_of_a_silent_peer_decides_while_another_try_hangs(cluster: Cluster, outcome: Outcome) -> None:
    first = Cluster(True)  # as it was after the first time-out
    hanging = Hanging(first)
    asked = Asked(first, TIMED_OUT, hanging)
    asking = asyncio.ensure_future(asked.outcome())
    async with asyncio.timeout(5):
        while not first.looks:  # noqa: ASYNC110 - each turn is looked at
            await asyncio.sleep(0)
        first.leased = cluster.leased
        assert await asking is outcome
        await asyncio.sleep(0)
    assert hanging.is_given_up and not asked.reply.has_started, "nothing was sent"


async def test_a_peer_that_is_reached_after_all_answers() -> None:
    cluster, good = Cluster(True), Connection([HEAD, (b"e", b"")])
    async with asyncio.timeout(5):
        assert await Asked(cluster, TIMED_OUT, Hanging(cluster, 2, good)).outcome() is Outcome.ANSWERED


@requirement("rep.behind-address")
async def test_an_address_that_closed_a_connection_proves_no_beat_while_the_next_try_hangs() -> None:
    cluster, good = Cluster(0.0), Connection([HEAD, (b"e", b"")])
    async with asyncio.timeout(5):
        tries = [
            Connection([LOST]),
            Connection([]),
            Connection([LOST]),
            Connection([]),
            Hanging(cluster, then=good, seconds=0.9),
        ]
        assert await Asked(cluster, *tries).outcome() is Outcome.ANSWERED, "its sidecar may be starting again"


async def test_requests_that_time_out_together_look_at_the_lease_once() -> None:
    cluster = Cluster(False)
    asked = Asked(cluster, *(TIMED_OUT for _ in range(50)))
    assert {*await asyncio.gather(*(asked.outcome() for _ in range(50)))} == {Outcome.GONE}
    assert cluster.looks == 1


@pytest.mark.parametrize("cluster", [Cluster(None), Cluster(False, trusts=False)])
async def test_nothing_is_decided_about_a_peer_while_the_store_is_away(cluster: Cluster) -> None:
    with pytest.raises(Refused):
        await Asked(cluster, Connection([TIMED_OUT], LEASE_S)).outcome()


async def test_a_connection_that_broke_before_anything_was_done_is_tried_again_with_one_nonce() -> None:
    lost, probe, good = Connection([LOST]), Connection([]), Connection([HEAD, (b"e", b"")])
    asked = Asked(Cluster(True), lost, probe, good)
    assert await asked.outcome() is Outcome.ANSWERED
    assert lost.asked == good.asked, "of the two the peer works on one at most"
    assert probe.ends == ["done"]


@requirement("rep.behind-address")
async def test_an_address_that_closes_connections_asks_the_lease() -> None:
    tries = [Connection([LOST]), Connection([]), Connection([LOST]), Connection([])]
    assert await Asked(Cluster(False), *tries).outcome() is Outcome.GONE


async def test_what_a_living_peer_has_got_is_known_from_a_second_copy() -> None:
    copy = Connection([(b"r", Refusal.SEEN.value.encode())])
    asked = Asked(Cluster(True), Connection([LOST]), Connection([]), copy)
    assert await asked.outcome() is Outcome.UNKNOWN and asked.reply.has_started


@requirement("rep.no-retry")
async def test_what_went_out_to_a_peer_that_is_gone_may_have_taken_effect() -> None:
    lost, silent = Connection([LOST]), Connection([TIMED_OUT], LEASE_S)
    for opened, started in (((lost, PeerRefused()), True), ((silent,), True), ((PeerRefused(),), False)):
        asked = Asked(Cluster(True), *opened)
        assert await asked.outcome() is not Outcome.ANSWERED and asked.reply.has_started is started
    asked = Asked(Cluster(None), Connection([TIMED_OUT], LEASE_S))
    with pytest.raises(Refused):
        await asked.outcome()
    assert asked.reply.has_started


@requirement("rep.honest")
async def test_what_its_owner_had_not_begun_has_no_effect() -> None:
    waiting = Connection([LOST])
    waiting.may_have_run = False
    asked = Asked(Cluster(True), waiting, PeerRefused())
    assert await asked.outcome() is Outcome.GONE and not asked.reply.has_started


@requirement("rep.honest", "rep.no-retry")
async def test_no_copy_is_sent_when_the_peer_may_have_forgotten_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr("gateway.cluster.copies.monotonic", clock)
    events = (b"h", msgspec.msgpack.encode((200, [(b"content-type", b"text/event-stream")])))

    class Long(Connection):
        async def next(self) -> tuple[bytes, bytes]:
            if len(self.frames) == 1:
                clock.pass_time(COPIES_S)
            return await super().next()

    again = Connection([events, (b"e", b"")])
    asked = Asked(Cluster(True), Long([events, LOST]), Connection([]), again)
    assert await asked.outcome() is Outcome.UNKNOWN and asked.reply.has_started
    assert not again.asked and [event["type"] for event in asked.sent] == ["http.response.start"]


@requirement("rep.honest", "hot.forwarded")
async def test_a_call_that_was_begun_long_ago_is_followed_and_not_copied() -> None:
    begun, again = Connection([LOST]), Connection([(b"e", b"")])
    begun.asked_at = monotonic() - COPIES_S
    asked = Asked(Cluster(True), Connection([]), again)
    assert await asked.outcome(SimpleNamespace(call=begun)) is Outcome.UNKNOWN and asked.reply.has_started
    assert not begun.frames and not again.asked


@requirement("rep.no-retry")
async def test_a_copy_that_comes_too_late_says_nothing_of_the_first() -> None:
    late = Connection([(b"r", Refusal.INVALID.value.encode())])
    asked = Asked(Cluster(True), Connection([LOST]), Connection([]), late)
    with pytest.raises(Refused):
        await asked.outcome()
    assert asked.reply.has_started, "the first may have been executed"


class LateChannel:
    """A channel to the peer that can be opened at the second try."""

    def __init__(self) -> None:
        self.tries = 0
        self.asked: list[bytes] = []

    async def open(self, _: Peer) -> "LateChannel | None":
        self.tries += 1
        return self if self.tries > 1 else None

    def ask(self, definition: bytes, facts: bytes, body: bytes) -> Connection:
        self.asked.append(body)
        return Connection([HEAD, (b"e", b"")])


@requirement("rep.honest", "rep.no-retry")
async def test_a_copy_of_what_went_out_on_a_connection_has_the_same_nonce_though_there_is_a_channel_now() -> None:
    lost, copy = Connection([LOST]), Connection([(b"r", Refusal.SEEN.value.encode())])
    asked, channel = Asked(Cluster(True), lost, Connection([]), copy), LateChannel()
    asked.requests._channels = channel  # type: ignore[assignment]
    assert await asked.outcome() is Outcome.UNKNOWN and asked.reply.has_started
    assert lost.asked == copy.asked and not channel.asked
