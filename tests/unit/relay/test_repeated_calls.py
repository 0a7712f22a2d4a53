"""A call whose process has died is made again: what the store keeps for that, and who makes it."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from gateway.calls.call import Call
from gateway.calls.event_writer import EventWriter
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.calls.lost_calls import KEPT_BYTES, KeptCall
from gateway.config.context import ContextSettings
from gateway.config.limits import LimitSettings
from gateway.context.announced import Announcements
from gateway.errors import unknown_tool
from gateway.identity.request_context import RequestContext
from gateway.protocol.listing import Called
from gateway.relay.intake import Intake
from gateway.relay.repeated_calls import RepeatedCalls
from gateway.relay.replies import CallReply
from gateway.sessions.attach import Resolved
from session_store import Context, MemoryEventLog, Session, StoreUnavailable
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from tests.support.context import FACTS
from transports.era import Era
from transports.inbound_port import Request
from transports.jsonrpc import Message, Object
from transports.reply_queue import Frame, ReplyQueue
from transports.soon import arrived

pytestmark = [pytest.mark.anyio, requirement("rep.honest")]

WHO = RequestContext(ALICE, None, "c")
PARAMS: Object = {"name": msgspec.Raw(b'"nap"'), "arguments": msgspec.Raw(b'{"n":1}')}
BEGINNING, LAST = Frame(b""), Frame(b'{"result":{}}', final=True)


class Server:
    """An endpoint whose server answers every call, if it `may_answer`, and rates and a request log that do nothing."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.is_repeatable_now = self.was_repeatable = True
        self.is_hidden = False
        self.may_answer = True
        self.was_called = asyncio.Event()

    def called(self, live: LiveSession, context: Context, params: Object) -> Called:
        return Called(is_repeatable=self.was_repeatable)

    async def is_repeatable(self, call: Call) -> bool:
        return self.is_repeatable_now

    def relay_now(self, call: Call) -> bool:
        if self.is_hidden:
            raise unknown_tool("nap")
        self.calls.append(call)
        self.was_called.set()
        call.exchange.emit(b'{"method":"notifications/progress"}')
        if self.may_answer:
            self.answer()
        return True

    def answer(self) -> None:
        """Answer the last call."""
        exchange = self.calls[-1].exchange
        exchange.finish(Message(jsonrpc="2.0", id=1, result=msgspec.Raw(b'{"done":true}')), "takeover")

    def call(self, session: Session, size: int = 0) -> None:
        return None

    def begin(self, exchange: Exchange, request: Request, meta: Object, correlation: str) -> Object:
        return meta

    def forget(self, exchange: Exchange) -> None: ...


class Log(MemoryEventLog):
    """`fails`: it does not answer. `loses`: the reply to whoever takes a request is lost."""

    fails = loses = False

    async def take_request(self, session_id: str, stream: str) -> bytes:
        if self.fails:
            raise StoreUnavailable
        taken = await super().take_request(session_id, stream)
        if self.loses:
            raise StoreUnavailable
        return taken


class Replica:
    """One that takes the session over, with what it needs of a gateway. `log` is the store that all of them share."""

    def __init__(self, server: Server, log: MemoryEventLog, session: Session) -> None:
        self.live = LiveSession(session, log)
        self.events = EventWriter(log, lambda _: self.live.session.epoch)
        parts = cast("Any", server)
        self.intake = Intake(
            endpoints={"/mcp": parts},
            events=self.events,
            limits=LimitSettings(),
            rates=parts,
            watching=parts,
            facts=FACTS,
            announcements=Announcements("orbit.workspace", ContextSettings(), lambda _: None),
        )
        self._repeated = RepeatedCalls(self.intake, self.events, self._exchange)

    def _exchange(self, resolved: Resolved, request: Request, who: RequestContext) -> Exchange:
        assert request.message is not None
        return self.exchange(request.message.id)

    def exchange(self, client_id: Any = 7) -> Exchange:
        return Exchange(method="tools/call", client_id=client_id, live=self.live, replies=ReplyQueue())

    async def begun(
        self, frames: Sequence[Frame], *, params: Object = PARAMS, again: bool = False, size: int = 9
    ) -> str:
        """The stream of a call of this replica's, of which so much was sent."""
        exchange = self.exchange()
        request = Request(era=Era.LEGACY, endpoint="/mcp", headers={}, params=params, again=again, body_bytes=size)
        reply, _ = self.intake.begin(exchange, request, WHO, params, [], may_repeat=not again)
        assert isinstance(reply, CallReply)
        ids = await arrived(reply.record(frames))
        assert ids[0] is not None
        return await self.events.stream_of(self.live.session.id, ids[0].partition(".")[0])

    async def resume(self, stream: str) -> bool:
        """Whether it goes on with the stream."""
        await self.live.recover()
        if (lost := self.live.lost) is None or not lost.go_on(stream):
            return False
        resolved = Resolved(live=self.live, context=self.live.session.context)
        asking = Request(era=Era.LEGACY, endpoint="/other", headers={})
        await self._repeated.go_on(stream, lost, resolved, asking, WHO)
        return True

    async def messages(self, stream: str) -> list[Any]:
        """All of the stream, once it has ended."""
        async with asyncio.timeout(5):
            frames = [event.frame async for event in self.events.follow(self.live.session.id, stream, None)]
        return [msgspec.json.decode(frame) for frame in frames if frame]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def dead(server: Server, log: Log) -> Replica:
    """The owner that dies."""
    return Replica(server, log, a_session(FakeClock()))


@pytest.fixture
def next_ones(server: Server, log: Log, dead: Replica) -> list[Replica]:
    """Those that own the session after it, one after the other."""
    return [Replica(server, log, msgspec.structs.replace(dead.live.session, epoch=epoch)) for epoch in (1, 2)]


async def test_the_request_is_kept_with_the_first_event_of_a_stream_that_goes_on(dead: Replica, log: Log) -> None:
    stream = await dead.begun([BEGINNING])
    session_id = dead.live.session.id
    assert await dead.events.unfinished(session_id) == {stream: True}
    kept = KeptCall.read(await log.take_request(session_id, stream))
    assert kept.endpoint == "/mcp" and {name: bytes(raw) for name, raw in kept.params.items()} == {
        name: bytes(raw) for name, raw in PARAMS.items()
    }


@pytest.mark.parametrize("why", ["complete", "not repeatable", "a repetition", "a large body", "large params"])
async def test_no_other_request_is_kept(why: str, dead: Replica, server: Server, log: Log) -> None:
    large: Object = PARAMS | {"arguments": msgspec.Raw(b'"' + b"x" * KEPT_BYTES + b'"')}
    server.was_repeatable = why != "not repeatable"
    stream = await dead.begun(
        [BEGINNING, LAST] if why == "complete" else [BEGINNING],
        params=large if why == "large params" else PARAMS,
        again=why == "a repetition",
        size=KEPT_BYTES + 1 if why == "a large body" else 0,
    )
    assert await dead.events.unfinished(dead.live.session.id) in ({}, {stream: False})
    assert await log.take_request(dead.live.session.id, stream) == b""


async def test_a_call_is_made_again_for_the_first_who_asks_and_all_have_its_answer(
    dead: Replica, server: Server, next_ones: list[Replica]
) -> None:
    stream, (replica, later) = await dead.begun([BEGINNING]), next_ones
    assert await asyncio.gather(*(replica.resume(stream) for _ in range(3))) == [True, False, False]
    for reader in next_ones:
        progress, answer = await reader.messages(stream)
        assert progress["method"] == "notifications/progress" and answer["id"] == 7 and answer["result"]["done"]
        assert list(answer["result"]["_meta"].values()) == [{"reason": "takeover"}]
    assert not await later.resume(stream)
    (call,) = server.calls
    assert bytes(call.params["arguments"]) == b'{"n":1}' and call.principal == ALICE


@requirement("rep.no-retry", "rep.fence")
async def test_an_owner_that_has_lost_the_session_does_not_make_a_call_that_the_next_one_makes(
    dead: Replica, server: Server, next_ones: list[Replica]
) -> None:
    stream = await dead.begun([BEGINNING])
    for replica in next_ones:
        await replica.live.recover()
    assert await asyncio.gather(*(replica.resume(stream) for replica in next_ones)) == [True, True]
    answers = [(await replica.messages(stream))[-1] for replica in next_ones]
    assert answers[0] == answers[1] and answers[0]["id"] == 7 and len(server.calls) == 1


@requirement("rep.no-retry")
async def test_a_repetition_whose_process_dies_as_well_has_an_unknown_outcome(
    dead: Replica, server: Server, next_ones: list[Replica]
) -> None:
    stream, (replica, later) = await dead.begun([BEGINNING]), next_ones
    server.may_answer = False
    assert await replica.resume(stream)
    await replica.events.settle(replica.live.session.id)
    assert not await later.resume(stream)
    assert (await later.messages(stream))[-1]["error"]["code"] == -32014


@requirement("rep.no-retry")
@pytest.mark.parametrize("why", ["the tool", "policy", "the endpoint"])
async def test_a_call_that_may_not_be_made_any_more_has_an_unknown_outcome(
    why: str, dead: Replica, server: Server, next_ones: list[Replica]
) -> None:
    stream = await dead.begun([BEGINNING])
    server.is_repeatable_now, server.is_hidden = why != "the tool", why == "policy"
    replica = next_ones[0]
    if why == "the endpoint":
        replica.intake.endpoints = {}
    assert await replica.resume(stream)
    (answer,) = await replica.messages(stream)
    assert answer["id"] == 7 and answer["error"]["code"] == -32014 and server.calls == []


async def test_a_stream_waits_again_if_the_store_does_not_answer(
    dead: Replica, log: Log, server: Server, next_ones: list[Replica]
) -> None:
    stream = await dead.begun([BEGINNING])
    log.fails, replica = True, next_ones[0]
    with pytest.raises(StoreUnavailable):
        await replica.resume(stream)
    assert server.calls == []
    log.fails = False
    assert await replica.resume(stream)
    assert (await replica.messages(stream))[-1]["result"]["done"]


@requirement("rep.no-retry")
async def test_a_request_that_may_have_been_taken_is_not_sent(
    dead: Replica, log: Log, server: Server, next_ones: list[Replica]
) -> None:
    stream = await dead.begun([BEGINNING])
    log.loses, replica = True, next_ones[0]
    with pytest.raises(StoreUnavailable):
        await replica.resume(stream)
    log.loses = False
    assert await replica.resume(stream)
    (answer,) = await replica.messages(stream)
    assert answer["error"]["code"] == -32014 and server.calls == []


@requirement("rep.no-retry")
async def test_an_answer_that_came_before_the_repetition_stands(
    dead: Replica, server: Server, next_ones: list[Replica]
) -> None:
    stream, session_id, replica = await dead.begun([BEGINNING]), dead.live.session.id, next_ones[0]
    await replica.live.recover()
    await dead.events.append(session_id, stream, b'{"result":"early"}')
    await dead.events.finish(session_id, stream)
    assert await replica.resume(stream)
    assert await replica.messages(stream) == [{"result": "early"}] and server.calls == []


@requirement("rep.fence")
async def test_what_a_former_owner_writes_after_the_repetition_has_begun_is_left_out(
    dead: Replica, server: Server, next_ones: list[Replica]
) -> None:
    stream, session_id, replica = await dead.begun([BEGINNING]), dead.live.session.id, next_ones[0]
    server.may_answer = False
    assert await replica.resume(stream)
    await dead.events.append(session_id, stream, b'{"result":"late"}')
    await dead.events.finish(session_id, stream)
    async with asyncio.timeout(5):
        await server.was_called.wait()
    server.answer()
    assert [message.get("result", {}).get("done") for message in await replica.messages(stream)] == [None, True]


async def test_a_call_that_another_request_makes_again_is_not_made_for_its_stream(
    dead: Replica, server: Server, next_ones: list[Replica]
) -> None:
    stream, replica = await dead.begun([BEGINNING]), next_ones[0]
    await replica.live.recover()
    again = Request(era=Era.LEGACY, endpoint="/mcp", headers={}, again=True)
    await arrived(replica.intake.accept(replica.exchange(), again, WHO, PARAMS, []))
    assert len(server.calls) == 1 and not await replica.resume(stream)
    (answer,) = await replica.messages(stream)
    assert answer["error"]["code"] == -32014
