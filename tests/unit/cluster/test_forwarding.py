"""A call that was sent to the owner on a channel, when the owner is not found any more: nobody asks it."""

import asyncio
import math
import time
from collections.abc import Callable
from contextvars import Context
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest

from gateway.cluster.forwarded_answer import RelayedReply
from gateway.cluster.forwarding import ForwardedCall, Forwarder, ForwardingPath
from gateway.cluster.ownership import Route, RouteMemory
from gateway.cluster.requests_to_peers import ForwardedRequest, Peer
from gateway.cluster.takeover_decision import PeerOutcome
from gateway.errors import unreachable
from gateway.observability.logs import CLIENT, CORRELATION
from session_store import StoreUnavailable
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from transports.inbound_port import OwnedByPeer, Refused

pytestmark = requirement("rep.no-retry")


class Call:
    """On a channel that was lost."""

    def __init__(self, *, may_have_run: bool) -> None:
        self.may_have_run = may_have_run
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


NOBODY: Any = SimpleNamespace()


def a_scope() -> dict[str, Any]:
    return {"method": "POST", "path": "/mcp", "headers": []}


def forwarder_of(address_of: Any, peers: Any) -> Forwarder:
    cluster: Any = AsyncMock(replica="me", address_of=address_of, owner_answered=lambda _: None)
    cluster.claim_from_owner.return_value = None
    guard: Any = SimpleNamespace(is_secure=lambda *_: False, headers=lambda _: {})
    return Forwarder(
        *(cluster, peers, guard, NOBODY),
        take_over=lambda _: None,
        is_here=lambda _: False,
        stripped=lambda headers: headers,
    )


async def forwarded(call: Call, address: Any) -> dict[str, Any]:
    """The scope of a request after its call was begun, and its owner was looked for by a replica that claims the
    session. `address` is what the store says of the owner, or raises."""
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    scope = a_scope()
    route = Route(a_session(FakeClock(), owner="another"), ALICE, None, begun=SimpleNamespace(call=call))
    forwarder = forwarder_of(AsyncMock(side_effect=[address] * 9), SimpleNamespace())
    assert await forwarder.forward(route, scope, b"{}", NOBODY, send) is not None and not sent
    return scope


@requirement("rep.honest")
async def test_what_an_owner_that_is_not_found_has_got_may_have_taken_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    for patience in ("_PATIENCE_S", "_AGAIN_S"):
        monkeypatch.setattr(f"gateway.cluster.forwarding.{patience}", 0.0)
    for address in (("", True), StoreUnavailable("out")):
        began = Call(may_have_run=True)
        assert (await forwarded(began, address))["mcp.again"] and began.is_closed
    waited = Call(may_have_run=False)
    assert "mcp.again" not in await forwarded(waited, ("", True)) and waited.is_closed
    with pytest.raises(Refused):
        await forwarded(Call(may_have_run=False), StoreUnavailable("out"))


@requirement("rep.no-retry")
async def test_what_an_owner_has_got_may_have_taken_effect_though_it_takes_no_other_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for pause in ("_AGAIN_S", "_HANDOVER_S"):
        monkeypatch.setattr(f"gateway.cluster.forwarding.{pause}", 0.0)
    asked: list[bool] = []

    async def ask(_: Peer, request: ForwardedRequest, reply: RelayedReply) -> PeerOutcome:
        asked.append(request.common.again)
        if len(asked) == 1:
            reply.start()
            raise StoreUnavailable("out")  # which had to say whether the owner is dead
        return PeerOutcome.MOVED

    scope, send = a_scope(), AsyncMock()
    route = Route(a_session(FakeClock(), owner="another"), ALICE, None)
    forwarder = forwarder_of(AsyncMock(return_value=("a:1", True)), SimpleNamespace(ask=ask))
    assert await forwarder.forward(route, scope, b"{}", NOBODY, send) is send
    assert asked == [False, True] and scope["mcp.again"]


@requirement("wall.memory")
@pytest.mark.parametrize(("status", "is_forgotten"), [(200, False), (400, False), (404, True)])
async def test_the_route_to_a_session_that_its_owner_has_ended_is_forgotten(status: int, is_forgotten: bool) -> None:
    async def ask(_: Peer, __: ForwardedRequest, reply: RelayedReply) -> PeerOutcome:
        assert await reply.pass_on(b"h", msgspec.msgpack.encode((status, [])))
        return PeerOutcome.ANSWERED

    memory = RouteMemory()
    route = Route(a_session(FakeClock(), owner="another"), ALICE, None, memory)
    forwarder = forwarder_of(AsyncMock(return_value=("a:1", True)), SimpleNamespace(ask=ask))
    assert await forwarder.forward(route, a_scope(), b"", NOBODY, AsyncMock()) is None
    assert memory.is_stale is is_forgotten


JSON = (b"content-type", b"application/json")
STREAM = (b"content-type", b"text/event-stream")


@requirement("rep.honest")
@pytest.mark.parametrize(
    ("method", "tries", "rest"), [("POST", 2, [b"event: message\ndata: {}\n\n"]), ("GET", 1, [b""])]
)
async def test_the_answer_to_another_try_follows_in_the_stream_that_has_begun(
    method: str, tries: int, rest: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cluster.forwarding._AGAIN_S", 0.0)
    asked: list[ForwardedRequest] = []

    async def ask(_: Peer, request: ForwardedRequest, reply: RelayedReply) -> PeerOutcome:
        asked.append(request)
        assert await reply.pass_on(b"h", msgspec.msgpack.encode((200, [STREAM if len(asked) == 1 else JSON])))
        if len(asked) == 1:
            reply.start()
            raise unreachable()
        await reply.end(b"{}")
        return PeerOutcome.ANSWERED

    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    route = Route(a_session(FakeClock(), owner="another"), ALICE, None)
    forwarder = forwarder_of(AsyncMock(return_value=("a:1", True)), SimpleNamespace(ask=ask))
    assert await forwarder.forward(route, a_scope() | {"method": method}, b"{}", NOBODY, send) is None
    assert len(asked) == tries and [event["type"] for event in sent].count("http.response.start") == 1
    assert [event["body"] for event in sent[1:]] == rest and not sent[-1]["more_body"]


HOLES = (b"7", b"", b'{"n":1}')


def answer_of(status: int = 200, *headers: tuple[bytes, bytes]) -> bytes:
    head = msgspec.msgpack.encode((status, [JSON, (b"content-length", b"2"), *headers]))
    return len(head).to_bytes(2, "big") + head + b"{}"


class Peers:
    """The channel to the owner, with one call at a time. `is_ready`: it takes one."""

    is_ready = True

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.ended: list[str] = []
        self.answer: bytes | None = None
        self.wake: Callable[[], None] = lambda: None

    def channel_to(self, route: Route) -> Any:
        return self if self.is_ready else None

    def send(self, channel: Any, route: Route, traceparent: str, body: bytes, correlation: str) -> Any:
        self.sent.append((route.is_read, traceparent, body, correlation))
        return self

    def when_answered(self, callback: Callable[[], None]) -> None:
        self.wake = callback

    def done(self) -> None:
        self.ended.append("done")

    def answered(self, route: Route) -> None:
        self.ended.append("answered")

    def answer_to(self, call: Any, route: Route) -> Any:
        self.wake = lambda: self.ended.append("told")
        return "the answer"


class Client:
    """A client's connection. `takes`: it takes an answer."""

    takes = True
    fault: Exception | None = None
    told = ("", "")

    def __init__(self) -> None:
        self.answers: list[tuple[bytes, Any]] = []
        self.left: list[Any] = []

    def stream_fast(self, *_: Any) -> bool:
        raise AssertionError("such an answer leaves the path")

    def answer_fast(self, frame: bytes, headers: Any) -> bool:
        if self.fault is not None:
            raise self.fault
        if self.takes:
            self.answers.append((frame, headers))
        return self.takes

    def fall_back(self, began: float, become: Callable[[Any], Any]) -> None:
        context = Context()
        with pytest.raises(OwnedByPeer) as elsewhere:
            context.run(become, SimpleNamespace(client="10.0.0.0/24"))
        self.told = context[CLIENT], context[CORRELATION]
        self.left.append(elsewhere.value.route.begun)


class Way:
    """A path, what it leads to, and who takes it."""

    is_here = False
    has_rate = True

    def __init__(self, until: float = math.inf) -> None:
        self.peers, self.client, self.memory, self.spent = Peers(), Client(), RouteMemory(), list[Any]()
        route = Route(a_session(FakeClock(), owner="another"), ALICE, None, memory=self.memory, until=until)
        peers: Any = self.peers
        self.path = ForwardingPath(peers, self, lambda _: self.is_here, route, "10.0.0.0/24")  # type: ignore[arg-type]  # a fake

    def spend_at_hand(self, *spent: Any) -> bool:
        self.spent.append(spent)
        return self.has_rate

    def begin(self, arguments: bytes = HOLES[2], trace: bytes = b"") -> ForwardedCall | None:
        return self.path.begin(self.client, b"the body", (*HOLES[:2], arguments), trace)


@requirement("fast.same", "fast.falls-back", "hot.forwarded")
def test_a_call_is_sent_as_it_is_and_answered() -> None:
    way, trace = Way(), b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert way.begin() is not None and way.begin(b"", trace) is not None
    (first, second), told = way.peers.sent, trace.decode()
    assert first[:3] == (False, "", b"the body") and len(first[3]) == 32, "the owner decides with its own record"
    assert second == (False, told, b"the body", told.split("-")[1])
    assert way.spent == [(ALICE, "10.0.0.0/24", "")] * 2, "the owner counts it as a call of its session"
    way.peers.answer = answer_of(200, (b"a", b"b"))
    way.peers.wake()
    way.peers.wake()
    assert way.client.answers == [(b"{}", [(b"a", b"b")])] and way.peers.ended == ["done", "answered"]


@requirement("fast.same", "fast.falls-back", "hot.forwarded")
@pytest.mark.parametrize("arguments", [b" ", b'{"n":1,}', b'{"n":1}}', b'{"n":"\xff"}', b"[" * 5_000 + b"]" * 5_000])
def test_what_is_no_json_is_for_the_general_way(arguments: bytes) -> None:
    way = Way()
    assert way.begin(arguments) is None and not way.peers.sent and not way.spent


@requirement("fast.same", "fast.falls-back", "hot.forwarded")
@pytest.mark.parametrize("why", ["stale", "here", "expired", "channel", "rate", "trace"])
def test_nothing_is_sent_once_something_has_changed(why: str) -> None:
    way = Way(time.time() + (0.0 if why == "expired" else 60.0))
    match why:
        case "stale":
            way.memory.end()
        case "here":
            way.is_here = True
        case "channel":
            way.peers.is_ready = False
        case "rate":
            way.has_rate = False
    assert way.begin(trace=b"nonsense" if why == "trace" else b"") is None and not way.peers.sent
    assert way.path.is_over == (why in ("stale", "here", "expired")) and len(way.spent) == (why == "rate")


@requirement("fast.same", "fast.falls-back", "hot.forwarded")
@pytest.mark.parametrize("answer", [None, answer_of(404), b"\x00\x01\xff", b"refused", b"fault"])
def test_any_other_answer_and_one_that_the_client_does_not_take_is_for_the_forwarder(answer: bytes | None) -> None:
    way = Way()
    assert way.begin() is not None
    way.client.takes = answer != b"refused"
    way.client.fault = RuntimeError("a fault") if answer == b"fault" else None
    way.peers.answer = answer_of() if answer in (b"refused", b"fault") else answer
    way.peers.wake()
    assert way.client.left == ["the answer"] and way.peers.ended == ["told"] and not way.client.answers


@requirement("fast.same", "fast.falls-back", "hot.forwarded")
def test_a_call_that_falls_back_does_so_once_and_its_lines_have_its_ids() -> None:
    way = Way()
    call = way.begin()
    assert call is not None
    call.fall_back()
    call.fall_back()
    assert way.client.left == ["the answer"] and not way.peers.ended
    assert way.client.told == ("10.0.0.0/24", way.peers.sent[0][3])


class Store:
    """What a replica does of a session that another one asks it to claim: `looked` at its owner, `taken` with what
    `claim_from_owner` was told of that owner."""

    def __init__(
        self, look: PeerOutcome | Exception = PeerOutcome.GONE, *, may_claim: bool = True, **more: Any
    ) -> None:
        self.look, self.is_allowed = look, may_claim
        self.session = a_session(FakeClock(), owner="dead")
        self.looked: list[str] = []
        self.taken: list[bool] = []
        self.loaded: list[Any] = []
        self.is_leaving, self.owner, self.replica = False, "dead", "me"
        self.leaves_meanwhile = False
        self.answered: list[str] = []
        self.owner_answered = self.answered.append
        vars(self).update(more)

    async def may_claim(self) -> bool:
        return self.is_allowed

    async def owned_elsewhere(self, _: str) -> Any:
        return self.session if self.owner == "dead" else None

    async def address_of(self, _: str) -> tuple[str, bool]:
        return "a:1", False

    async def greet_owner(self, _: Any, address: str) -> PeerOutcome:
        self.looked.append(address)
        self.is_leaving = self.leaves_meanwhile
        if isinstance(self.look, Exception):
            raise self.look
        return self.look

    async def claim_from_owner(self, session: Any, *, may_run: bool) -> Any:
        self.taken.append(may_run)
        return msgspec.structs.replace(session, owner=self.replica)

    def asked(self, guard: Any = NOBODY) -> Forwarder:
        here: Any = self
        return Forwarder(
            *(here, here, guard, NOBODY),
            take_over=self.loaded.append,
            is_here=lambda _: False,
            stripped=lambda headers: headers,
        )


@requirement("rep.takeover", "rep.fence")
@pytest.mark.parametrize(
    ("found", "taken"),
    [
        (PeerOutcome.GONE, [False]),
        (PeerOutcome.CUT_OFF, [True]),
        (PeerOutcome.SILENT, [True]),
        (PeerOutcome.ANSWERED, []),
    ],
)
async def test_a_replica_that_is_asked_to_claim_looks_for_the_owner_itself(
    found: PeerOutcome, taken: list[bool]
) -> None:
    store = Store(found)
    assert await store.asked().claim_for_peer("s") is bool(taken) and store.looked == ["a:1"]
    assert store.taken == taken and [one.owner for one in store.loaded] == ["me"] * len(taken)
    assert len(store.answered) == (not taken), "an owner that answers may be claimed from again, later"


@requirement("rep.takeover", "live.reload")
async def test_a_replica_that_may_not_claim_does_not_do_it_for_a_peer() -> None:
    for store in (Store(may_claim=False), Store(is_leaving=True)):
        assert await store.asked().claim_for_peer("s") is None and not store.looked, "it knows nothing of the owner"
    drains = Store(leaves_meanwhile=True)
    assert await drains.asked().claim_for_peer("s") is None and drains.looked and not drains.taken
    store = Store(Refused(503, 0, "it may run"))
    with pytest.raises(Refused):
        await store.asked().claim_for_peer("s")
    moved = Store(owner="me")
    assert await moved.asked().claim_for_peer("s") and not (moved.looked + moved.taken), "the record is read again"


OTHERS = [("dead", "a:1"), ("one", "b:1"), ("two", "c:1")]


class Asking(Store):
    """A replica that may claim no session, and has its request forwarded. Replicas answer `answers` in turn, to its
    request as to its question whether they claim the session; `asked` has their names. A future is waited for."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(may_claim=False)
        self.answers = list(answers)
        self.asked_of: list[str] = []
        self.send, self.scope = AsyncMock(), a_scope()

    async def ask(self, peer: Peer, _: ForwardedRequest, reply: RelayedReply) -> Any:
        if peer.replica == self.session.owner:
            return PeerOutcome.GONE
        answer = await self.ask_to_claim(peer, "")
        if answer is PeerOutcome.LOST:
            reply.start()
        return answer

    async def ask_to_claim(self, peer: Peer, session_id: str) -> Any:
        self.asked_of.append(peer.replica)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return await answer if isinstance(answer, asyncio.Future) else answer

    async def random_peer(self, *but: str) -> tuple[str, str] | None:
        return next((each for each in OTHERS if each[0] not in but), None)

    async def beat(self) -> None: ...

    async def forwarded(self, receive: Any = NOBODY) -> Any:
        guard: Any = SimpleNamespace(is_secure=lambda *_: False, headers=lambda _: {})
        return await self.asked(guard).forward(Route(self.session, ALICE, None), self.scope, b"{}", receive, self.send)


async def never() -> Any:
    await asyncio.Event().wait()


@requirement("rep.takeover", "live.reload")
@pytest.mark.parametrize(
    ("answers", "asked", "is_claimed"),
    [
        ([True], ["one"], True),
        ([None, True], ["one", "two"], True),
        ([False], ["one"], False),
        ([None, None], ["one", "two"], False),
    ],
    ids=["claimed", "the first is not reached or claims nothing", "the owner runs", "none claims it"],
)
async def test_a_replica_that_may_not_claim_has_another_one_do_it_before_it_sends_anything(
    answers: list[bool | None], asked: list[str], is_claimed: bool
) -> None:
    asking = Asking(*answers)
    if is_claimed:
        assert await asking.forwarded(never) is asking.send, "it is handled again"
        assert "mcp.again" not in asking.scope
    else:
        with pytest.raises(Refused):
            await asking.forwarded(never)
    assert asking.asked_of == asked and not asking.taken


@requirement("rep.takeover")
async def test_nobody_waits_for_a_claim_whose_client_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transports.inbound.http_requests_and_responses._WATCH_AFTER_S", 0.0)
    claiming = asyncio.get_running_loop().create_future()
    asking = Asking(claiming)

    async def leaves() -> Any:
        return {"type": "http.disconnect"}

    async with asyncio.timeout(60):
        assert await asking.forwarded(leaves) is None, "there is nobody to answer"
    assert asking.asked_of == ["one"] and claiming.cancelled()


@requirement("rep.drain", "rep.no-retry")
@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ([PeerOutcome.ANSWERED], PeerOutcome.ANSWERED),
        ([PeerOutcome.GONE, PeerOutcome.ANSWERED], PeerOutcome.ANSWERED),
        ([Refused(503, 0, "other keys"), PeerOutcome.ANSWERED], PeerOutcome.ANSWERED),
        ([PeerOutcome.MOVED, PeerOutcome.ANSWERED], PeerOutcome.ANSWERED),
        ([PeerOutcome.MOVED, PeerOutcome.SILENT, PeerOutcome.GONE], PeerOutcome.MOVED),
        ([PeerOutcome.LOST], PeerOutcome.LOST),
        ([PeerOutcome.GONE, PeerOutcome.CUT_OFF, Refused(503, 0, "other keys")], None),
    ],
)
async def test_an_unowned_session_is_handed_to_each_replica_until_one_serves_it(
    answers: list[Any], outcome: PeerOutcome | None
) -> None:
    asking = Asking(*answers)
    asking.session = a_session(FakeClock(), owner="")
    if outcome is None:
        with pytest.raises(Refused):
            await asking.forwarded()
    else:
        again = await asking.forwarded()
        assert again is (None if outcome is PeerOutcome.ANSWERED else asking.send)
        assert asking.scope.get("mcp.again", False) is (outcome is PeerOutcome.LOST), "it may have taken effect"
    assert asking.asked_of == ["dead", "one", "two"][: len(answers)]
