"""One request to one peer, with the peer and the store played by the test."""

import asyncio
from time import monotonic
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gateway.cluster import requests_to_peers
from gateway.cluster.forwarded_answer import RelayedReply
from gateway.cluster.forwarded_request_envelope import (
    COPIES_S,
    Envelopes,
    Nonce,
    Refusal,
    SharedFacts,
    decode_facts,
    decode_shared_facts,
)
from gateway.cluster.lease_validity import DOUBT_S, LEASE_S
from gateway.cluster.ownership import Route
from gateway.cluster.requests_to_peers import Channels, ForwardedRequest, Peer, PeerRequests
from gateway.cluster.takeover_decision import PeerOutcome
from gateway.observability.metrics import Metrics
from gateway.observability.request_log import RequestLog
from session_store import KeyRing, StoreUnavailable
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from transports.inbound_port import Refused
from transports.peer_channel import (
    PeerChannel,
    PeerConnectionLost,
    PeerOtherKeys,
    PeerRefused,
    PeerTimedOut,
    PeerUnproven,
)
from transports.peer_frames import MAX_CALLS

LOST, TIMED_OUT = PeerConnectionLost(), PeerTimedOut()
HEAD = (b"h", msgspec.msgpack.encode((200, [(b"content-type", b"application/json")])))
END = (b"e", b"")
ANSWER = [HEAD, END]
CLOSING: list[Any] = [[LOST], [], [LOST], []]
"""Connections to an address that closes them: each request is lost, and then it is looked whether somebody is there."""


def refusal(why: Refusal) -> tuple[bytes, bytes]:
    return (b"r", why.value.encode())


class Cluster:
    """What the store says of the peer's lease: how old it is, False if it has expired, None without the store."""

    def __init__(self, leased: float | None = 0.5, *, trusts: bool = True, doubts: bool = True) -> None:
        self.replica = "me"
        self.leased = leased
        self.looks = 0
        self.lease = SimpleNamespace(trusts_expired=trusts, treat_as_dead=lambda _: doubts)

    async def ask_to_beat(self, _: str) -> None: ...

    async def lease_age(self, _: str) -> float | None:
        self.looks += 1
        leased = self.leased
        await asyncio.sleep(0)
        if leased is None:
            raise StoreUnavailable("out")
        return None if leased is False else leased


def clock() -> float:
    """The clock that copies are timed by."""
    return float(vars(requests_to_peers)["monotonic"]())


class Call:
    """Gives one frame after the other, or raises. `facts` are what was sent of it."""

    def __init__(
        self, frames: list[Any], quiet_for_s: float = 0.0, *, may_have_run: bool = True, nonce: str = "channel"
    ) -> None:
        self.frames = [*frames]
        self.quiet_for_s = quiet_for_s
        self.facts: list[bytes] = []
        self.ends: list[str] = []
        self.may_have_run = may_have_run
        self.asked_at, self.nonce = clock(), (nonce.ljust(32, "-"), 1)

    def ask(self, definition: bytes, facts: bytes, body: bytes) -> "Call":
        self.facts.append(facts)
        self.common = decode_shared_facts(definition)
        return self

    @property
    def copy_of(self) -> Nonce | None:
        """Of what the peer was told that this is a copy."""
        [facts] = self.facts
        return decode_facts(facts).copy_of

    async def next(self) -> tuple[bytes, bytes]:
        frame = self.frames.pop(0)
        if isinstance(frame, Exception):
            raise frame
        return frame  # type: ignore[no-any-return]  # as scripted

    def done(self) -> None:
        self.ends.append("done")

    def close(self) -> None:
        self.ends.append("close")

    def fault(self, why: str) -> None:
        self.ends.append("fault")


def silent_for(seconds: float, *frames: Any) -> Call:
    """It has timed out after this time, and has these frames then."""
    return Call([TIMED_OUT, *frames], seconds)


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
            while self.cluster.looks < self.looks and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110  # there is no event to wait for
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.is_given_up = True
            raise
        return self.then


class Opened:
    """Channels that take one call each, in this order. A list of frames is one."""

    def __init__(self, opened: list[Any]) -> None:
        self.opened = opened

    async def open(self, _: Peer) -> Call:
        found = self.opened.pop(0)
        if isinstance(found, Hanging):
            found = await found.opened()
        if isinstance(found, Exception):
            raise found
        return Call(found) if isinstance(found, list) else found


class Asked:
    """One request, what the client got, and what was counted."""

    def __init__(self, cluster: Cluster, *opened: Any) -> None:
        self.sent: list[Any] = []
        self.log = RequestLog(Metrics())
        self.requests = PeerRequests(cluster, Envelopes(KeyRing.ephemeral(), FakeClock()), self.log)  # type: ignore[arg-type]  # a fake
        self.requests._channels = Opened([*opened])  # type: ignore[assignment]  # a fake
        self.reply = RelayedReply(self._receive, self._send)

    async def _receive(self) -> Any:
        await asyncio.Event().wait()

    async def _send(self, event: Any) -> None:
        self.sent.append(event)

    async def outcome(self, begun: Any = None) -> PeerOutcome:
        route = Route(a_session(FakeClock()), ALICE, None, begun=begun)
        request = ForwardedRequest(route, SharedFacts.of(route, "/mcp", [], secure=False), b"{}")
        async with asyncio.timeout(60):
            return await self.requests.ask(Peer("peer", "a:1"), request, self.reply)


@requirement("rep.quick", "rep.fence")
@pytest.mark.parametrize(
    ("answer", "holds"),
    [((b"h", b""), True), ((b"m", b""), False), (LOST, False)],
    ids=["agrees", "refuses", "is lost"],
)
async def test_others_hold_if_all_of_them_agree_in_time(answer: Any, holds: bool) -> None:
    call = Call([answer])
    assert await Asked(Cluster(), call).requests.hold({"peer": "a:1"}) is holds and call.ends == ["close"]
    assert (call.common.path, call.common.session) == ("hold", "me")
    assert not await Asked(Cluster(), PeerRefused()).requests.hold({"peer": "a:1"})
    assert await Asked(Cluster()).requests.hold({}), "there is nobody else"


@requirement("rep.takeover", "live.reload")
async def test_a_peer_says_whether_it_has_claimed_a_session() -> None:
    answers = [
        ((b"h", b""), True),
        (refusal(Refusal.OWNED), False),
        ((b"m", b""), None),
        (refusal(Refusal.INVALID), None),
    ]
    for answer, has_claimed in answers:
        call = Call([answer])
        assert await Asked(Cluster(), call).requests.ask_to_claim(Peer("peer", "a:1"), "s") is has_claimed
        assert (call.common.path, call.common.session) == ("claim", "s") and call.ends == ["close"]
    for lost in (Call([LOST]), Call([TIMED_OUT]), PeerRefused()):
        assert await Asked(Cluster(), lost).requests.ask_to_claim(Peer("peer", "a:1"), "s") is None


@requirement("rep.takeover", "rep.fence")
async def test_an_owner_is_looked_for_as_if_a_request_were_sent_to_it() -> None:
    session = a_session(FakeClock(), owner="peer")
    greeted = Call([(b"h", b""), END])
    assert await Asked(Cluster(), greeted).requests.greet_owner(session, "a:1") is PeerOutcome.ANSWERED
    assert (greeted.common.path, greeted.common.session, greeted.ends) == ("greeting", "", ["done"])
    assert await Asked(Cluster(), PeerRefused()).requests.greet_owner(session, "a:1") is PeerOutcome.GONE
    silent = Asked(Cluster(), silent_for(LEASE_S))
    assert await silent.requests.greet_owner(session, "a:1") is PeerOutcome.CUT_OFF
    assert not silent.log.metrics.forwarded, "it is no client's request"


async def test_an_answer_is_passed_on_as_it_comes() -> None:
    call = Call([HEAD, (b"b", b"one"), (b"e", b"two")])
    asked = Asked(Cluster(), call)
    assert await asked.outcome() is PeerOutcome.ANSWERED
    assert [event.get("body") for event in asked.sent] == [None, b"one", b"two"] and call.ends == ["done"]
    assert asked.reply.has_started and asked.reply.has_begun and not asked.reply.is_stream
    assert asked.log.metrics.forwarded["answered"] == 1


@requirement("wall.return")
@pytest.mark.parametrize("head", [b"", b"\xff", msgspec.msgpack.encode((100, [])), msgspec.msgpack.encode(("200", []))])
async def test_a_head_that_cannot_be_passed_on_ends_the_channel(head: bytes) -> None:
    call = Call([(b"h", head), END])
    asked = Asked(Cluster(False), call, [], PeerRefused())
    assert await asked.outcome() is PeerOutcome.GONE and call.ends == ["fault"] and not asked.sent


OUTCOMES: dict[str, tuple[list[Any], PeerOutcome, bool]] = {
    "the session has moved": ([[(b"m", b"")]], PeerOutcome.MOVED, False),
    "the peer has got it before": ([[refusal(Refusal.SEEN)]], PeerOutcome.LOST, True),
    "the peer has got the first copy": ([[LOST], [], [refusal(Refusal.SEEN)]], PeerOutcome.LOST, True),
    "the address refuses": ([PeerRefused()], PeerOutcome.GONE, False),
    "it went out to a peer that is gone": ([[LOST], PeerRefused()], PeerOutcome.GONE, True),
    "a peer that is gone had not begun it": (
        [Call([LOST], may_have_run=False), PeerRefused()],
        PeerOutcome.GONE,
        False,
    ),
    "its connection broke": ([[HEAD, LOST], []], PeerOutcome.LOST, True),
    "it went out to a peer that is silent": ([silent_for(LEASE_S)], PeerOutcome.CUT_OFF, True),
}


@requirement("rep.honest", "rep.no-retry")
@pytest.mark.parametrize("what", OUTCOMES)
async def test_what_may_have_taken_effect_is_told_from_what_has_not(what: str) -> None:
    opened, outcome, started = OUTCOMES[what]
    asked = Asked(Cluster(), *opened)
    assert await asked.outcome() is outcome and asked.reply.has_started is started


@requirement("rep.no-retry", "rep.takeover")
@pytest.mark.parametrize(
    ("cluster", "opened", "started"),
    [
        pytest.param(Cluster(), [[refusal(Refusal.INVALID)]], False, id="replicas disagree about keys"),
        pytest.param(Cluster(), [[LOST], [], [refusal(Refusal.INVALID)]], True, id="a copy comes too late"),
        pytest.param(Cluster(), [PeerOtherKeys()], False, id="a peer with other keys runs"),
        pytest.param(Cluster(None), [silent_for(LEASE_S)], True, id="the store is away"),
        pytest.param(Cluster(False, trusts=False), [silent_for(LEASE_S)], True, id="it was away a moment ago"),
    ],
)
async def test_what_is_not_known_gives_503(cluster: Cluster, opened: list[Any], started: bool) -> None:
    asked = Asked(cluster, *opened)
    with pytest.raises(Refused) as refused:
        await asked.outcome()
    assert refused.value.status == 503 and asked.reply.has_started is started
    assert asked.log.metrics.forwarded["unreachable"] == 1


@pytest.mark.parametrize(
    ("cluster", "quiet_for_s", "outcome"),
    [
        (Cluster(False), 1.5, PeerOutcome.SILENT),
        (Cluster(), LEASE_S, PeerOutcome.CUT_OFF),
        (Cluster(), 1.0, PeerOutcome.ANSWERED),
        (Cluster(0.3), 1.0, PeerOutcome.CUT_OFF),
        (Cluster(DOUBT_S), DOUBT_S, PeerOutcome.SILENT),
        (Cluster(DOUBT_S, doubts=False), DOUBT_S, PeerOutcome.ANSWERED),
        (Cluster(None), 1.5, PeerOutcome.ANSWERED),
        (Cluster(False, trusts=False), 1.5, PeerOutcome.ANSWERED),
    ],
)
async def test_a_peer_that_timed_out_is_judged_by_its_lease(
    cluster: Cluster, quiet_for_s: float, outcome: PeerOutcome
) -> None:
    assert await Asked(cluster, silent_for(quiet_for_s, *ANSWER)).outcome() is outcome
    other_keys = Asked(Cluster(False), PeerOtherKeys())
    assert await other_keys.outcome() is PeerOutcome.SILENT, "another gateway has its address now"


@requirement("rep.quick")
@pytest.mark.parametrize(
    ("leased", "outcome"),
    [(0.0, PeerOutcome.CUT_OFF), (DOUBT_S, PeerOutcome.SILENT), (False, PeerOutcome.SILENT)],
)
async def test_the_lease_of_a_silent_peer_decides_while_another_try_hangs(leased: float, outcome: PeerOutcome) -> None:
    cluster = Cluster()  # as it was after the first time-out
    hanging = Hanging(cluster)
    asked = Asked(cluster, TIMED_OUT, hanging)
    asking = asyncio.ensure_future(asked.outcome())
    async with asyncio.timeout(60):
        while not cluster.looks:  # noqa: ASYNC110 - each turn is looked at
            await asyncio.sleep(0)
        cluster.leased = leased
        assert await asking is outcome
        await asyncio.sleep(0)
    assert hanging.is_given_up and not asked.reply.has_started, "nothing was sent"


@requirement("rep.quick", "rep.behind-address")
async def test_an_address_that_closes_connections_asks_the_lease_and_proves_no_beat() -> None:
    assert await Asked(Cluster(False), *CLOSING).outcome() is PeerOutcome.SILENT
    cluster = Cluster()
    reached = Asked(cluster, TIMED_OUT, Hanging(cluster, 2, ANSWER))
    assert await reached.outcome() is PeerOutcome.ANSWERED, "after all"
    cluster = Cluster(0.0)
    for next_try in (ANSWER, Hanging(cluster, then=ANSWER, seconds=0.9)):
        assert await Asked(cluster, *CLOSING, next_try).outcome() is PeerOutcome.ANSWERED, "its sidecar may be starting"


async def test_requests_that_time_out_together_look_at_the_lease_once() -> None:
    cluster = Cluster(False)
    asked = Asked(cluster, *(TIMED_OUT for _ in range(50)))
    assert {*await asyncio.gather(*(asked.outcome() for _ in range(50)))} == {PeerOutcome.SILENT}
    assert cluster.looks == 1


@requirement("rep.honest", "rep.no-retry")
async def test_a_call_whose_channel_broke_is_sent_again_as_a_copy_of_the_first_that_may_have_run() -> None:
    unsent, lost, good = Call([LOST], may_have_run=False), Call([LOST], nonce="lost"), Call(ANSWER)
    asked = Asked(Cluster(), unsent, [], lost, [], good)
    assert await asked.outcome() is PeerOutcome.ANSWERED
    assert (unsent.copy_of, lost.copy_of, good.copy_of) == (None, None, lost.nonce)


@requirement("rep.honest", "rep.no-retry")
async def test_no_copy_is_sent_when_the_peer_may_have_forgotten_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr("gateway.cluster.requests_to_peers.monotonic", clock)
    events = (b"h", msgspec.msgpack.encode((200, [(b"content-type", b"text/event-stream")])))

    class Long(Call):
        async def next(self) -> tuple[bytes, bytes]:
            if len(self.frames) == 1:
                clock.pass_time(COPIES_S)
            return await super().next()

    again = Call([events, END])
    asked = Asked(Cluster(), Long([events, LOST]), [], again)
    assert await asked.outcome() is PeerOutcome.LOST and asked.reply.has_started
    assert not again.facts and [event["type"] for event in asked.sent] == ["http.response.start"]


@requirement("rep.honest", "hot.forwarded")
async def test_a_call_that_was_begun_long_ago_is_followed_and_not_copied() -> None:
    begun, again = Call([LOST]), Call([END])
    begun.asked_at = monotonic() - COPIES_S
    asked = Asked(Cluster(), [], again)
    assert await asked.outcome(SimpleNamespace(call=begun)) is PeerOutcome.TIMED_OUT and asked.reply.has_started
    assert not begun.frames and not again.facts


# -- the channels


@requirement("rep.sealed")
async def test_why_a_peer_is_not_reached_is_told_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def opening(*_: Any) -> PeerChannel:
        raise PeerUnproven("not a gateway of this version")

    monkeypatch.setattr(requests_to_peers, "open_channel", opening)
    channels = Channels(Envelopes(KeyRing.ephemeral()))
    for _ in range(2):
        with pytest.raises(PeerUnproven):
            await channels.open(Peer("b", "b:1"))
    assert caplog.messages == ["replica b is not reached at b:1: not a gateway of this version"]


@requirement("wall.memory", "rep.any")
async def test_calls_beyond_what_one_channel_takes_go_on_another(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[PeerChannel] = []
    may_open = asyncio.Event()
    transport: Any = SimpleNamespace(write=lambda _: None, abort=lambda: None, get_extra_info=lambda _, other: other)

    async def opening(*_: Any) -> PeerChannel:
        await may_open.wait()
        channel = PeerChannel()
        channel.connection_made(transport)
        opened.append(channel)
        return channel

    monkeypatch.setattr(requests_to_peers, "open_channel", opening)
    channels = Channels(Envelopes(KeyRing.ephemeral()))

    async def ask() -> None:
        (await channels.open(Peer("b", "b:1"))).ask(b"c", b"", b"")

    asking = [asyncio.ensure_future(ask()) for _ in range(MAX_CALLS + 5)]
    await asyncio.sleep(0)
    may_open.set()
    await asyncio.gather(*asking)
    assert [len(channel._calls) for channel in opened] == [MAX_CALLS, 5]
    assert channels.ready("b") is opened[1]
    for channel in opened:
        channel.connection_lost(None)
    assert channels.ready("b") is None
