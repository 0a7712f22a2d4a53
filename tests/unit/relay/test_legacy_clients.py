"""A call whose process has died is made again: what the store keeps for that, and who makes it."""

import asyncio
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import msgspec
import pytest

from gateway.calls.client_request import Call, IncomingCall
from gateway.calls.event_log import EventWriter
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.calls.questions_to_client import Questions
from gateway.calls.session_event_streams import KEPT_BYTES, KeptCall
from gateway.errors import OUTCOME_UNKNOWN, unknown_tool
from gateway.identity.request_context import RequestContext
from gateway.protocol.merged_lists import Called
from gateway.protocol.reserved_meta import RESERVED
from gateway.relay.legacy_clients import CallRecovery, LegacyClients
from gateway.relay.reply_delivery import CallReply
from gateway.sessions.session_attaching import Resolved
from session_store import MemoryEventLog, Session, StoreUnavailable
from session_store.testing import ALICE, FakeClock, a_session
from tests.requirements import requirement
from tests.unit.calls.parts import turns, until
from tests.unit.relay.parts import TakingEndpoint, a_request, a_tool_call, an_intake
from transports.era import Era
from transports.inbound_port import Request
from transports.jsonrpc import Message, Object, encode, parse
from transports.reply_queue import Frame

pytestmark = requirement("rep.honest")

WHO = RequestContext(ALICE, None, "c")
PARAMS: Object = {"name": msgspec.Raw(b'"nap"'), "arguments": msgspec.Raw(b'{"n":1}')}
BEGINNING, LAST = Frame(b""), Frame(b'{"result":{}}', final=True)


class Server(TakingEndpoint):
    """An endpoint whose server answers every call, if it `may_answer`."""

    was_repeatable = may_answer = True

    def called(self, exchange: Exchange, client: Era, params: Object) -> Called:
        return Called(is_repeatable=self.was_repeatable)

    async def relay(self, call: Call) -> None:
        await super().relay(call)
        call.exchange.emit(b'{"method":"notifications/progress"}')
        if self.may_answer:
            self.answer()

    def answer(self) -> None:
        """Answer the last call."""
        exchange = self.calls[-1].exchange
        exchange.finish(Message(jsonrpc="2.0", id=1, result=msgspec.Raw(b'{"done":true}')), "takeover")


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
        self.intake = an_intake(server, self.events)
        self._recovery = CallRecovery(self.intake, self._exchange)

    def _exchange(self, resolved: Resolved, request: Request, who: RequestContext) -> Exchange:
        assert request.message is not None
        return a_tool_call(self.live, request.message.id)

    async def begun(
        self, frames: Sequence[Frame], *, params: Object = PARAMS, again: bool = False, size: int = 9
    ) -> str:
        """The stream of a call of this replica's, of which so much was sent."""
        request = a_request(params=params, again=again, body_bytes=size)
        reply, _ = self.intake.begin(IncomingCall(a_tool_call(self.live, 7), request, WHO, params))
        assert isinstance(reply, CallReply)
        ids = await reply.record(frames)
        assert ids[0] is not None
        return await self.events.stream_of(self.live.session.id, ids[0].partition(".")[0])

    async def resume(self, stream: str) -> bool:
        """Whether it goes on with the stream."""
        await self.live.recover()
        if (lost := self.live.lost) is None or not lost.mark_continued(stream):
            return False
        resolved = Resolved(live=self.live, context=self.live.session.context)
        await self._recovery.go_on(stream, lost, resolved, a_request(endpoint="/other"), WHO)
        return True

    async def messages(self, stream: str) -> list[Any]:
        """All of the stream, once it has ended."""
        async with asyncio.timeout(60):
            frames = [event.frame async for event in self.events.follow(self.live.session.id, stream, None)]
        return [msgspec.json.decode(frame) for frame in frames if frame]


class Parts:
    """A session whose owner is about to die, and the two replicas that own it next, one after the other."""

    def __init__(self) -> None:
        self.log, self.server = Log(), Server()
        self.dead = Replica(self.server, self.log, a_session(FakeClock()))
        record = self.dead.live.session
        self.replica, self.later = self.next_ones = [
            Replica(self.server, self.log, msgspec.structs.replace(record, epoch=epoch)) for epoch in (1, 2)
        ]
        self.session_id = record.id

    async def outcome_is_unknown(self, stream: str) -> bool:
        """Whether the last answer to the call of that stream says so."""
        answer = (await self.later.messages(stream))[-1]
        return (answer["id"], answer.get("error", {}).get("code")) == (7, OUTCOME_UNKNOWN)

    async def former_owner_answers(self, stream: str) -> None:
        await self.dead.events.append(self.session_id, stream, b'{"result":"of the former owner"}')
        await self.dead.events.finish(self.session_id, stream)


@pytest.fixture
def parts() -> Parts:
    return Parts()


async def test_the_request_is_kept_with_the_first_event_of_a_stream_that_goes_on(parts: Parts) -> None:
    stream = await parts.dead.begun([BEGINNING])
    assert await parts.dead.events.unfinished(parts.session_id) == {stream: True}
    kept = KeptCall.read(await parts.log.take_request(parts.session_id, stream))
    assert kept.endpoint == "/mcp" and encode(kept.params) == encode(PARAMS)


@pytest.mark.parametrize("why", ["complete", "not repeatable", "a repetition", "a large body", "large params"])
async def test_no_other_request_is_kept(why: str, parts: Parts) -> None:
    large: Object = PARAMS | {"arguments": msgspec.Raw(b'"' + b"x" * KEPT_BYTES + b'"')}
    parts.server.was_repeatable = why != "not repeatable"
    stream = await parts.dead.begun(
        [BEGINNING, LAST] if why == "complete" else [BEGINNING],
        params=large if why == "large params" else PARAMS,
        again=why == "a repetition",
        size=KEPT_BYTES + 1 if why == "a large body" else 0,
    )
    assert await parts.dead.events.unfinished(parts.session_id) in ({}, {stream: False})
    assert await parts.log.take_request(parts.session_id, stream) == b""


async def test_a_call_is_made_again_for_the_first_who_asks_and_all_have_its_answer(parts: Parts) -> None:
    stream = await parts.dead.begun([BEGINNING])
    assert await asyncio.gather(*(parts.replica.resume(stream) for _ in range(3))) == [True, False, False]
    for reader in parts.next_ones:
        progress, answer = await reader.messages(stream)
        assert progress["method"] == "notifications/progress" and answer["id"] == 7 and answer["result"]["done"]
        assert list(answer["result"]["_meta"].values()) == [{"reason": "takeover"}]
    assert not await parts.later.resume(stream)
    (call,) = parts.server.calls
    assert bytes(call.params["arguments"]) == b'{"n":1}' and call.principal == ALICE


@requirement("rep.no-retry", "rep.fence")
async def test_an_owner_that_has_lost_the_session_does_not_make_a_call_that_the_next_one_makes(parts: Parts) -> None:
    stream = await parts.dead.begun([BEGINNING])
    for replica in parts.next_ones:
        await replica.live.recover()
    assert await asyncio.gather(*(replica.resume(stream) for replica in parts.next_ones)) == [True, True]
    answers = [(await replica.messages(stream))[-1] for replica in parts.next_ones]
    assert answers[0] == answers[1] and answers[0]["id"] == 7 and len(parts.server.calls) == 1


@requirement("rep.no-retry")
async def test_a_repetition_whose_process_dies_as_well_has_an_unknown_outcome(parts: Parts) -> None:
    stream = await parts.dead.begun([BEGINNING])
    parts.server.may_answer = False
    assert await parts.replica.resume(stream)
    await parts.replica.events.settle(parts.session_id)
    assert not await parts.later.resume(stream) and await parts.outcome_is_unknown(stream)


@requirement("rep.no-retry")
@pytest.mark.parametrize("why", ["the tool", "policy", "the endpoint"])
async def test_a_call_that_may_not_be_made_any_more_has_an_unknown_outcome(why: str, parts: Parts) -> None:
    stream = await parts.dead.begun([BEGINNING])
    parts.server.is_repeatable_now = why != "the tool"
    parts.server.error = unknown_tool("nap") if why == "policy" else None
    if why == "the endpoint":
        parts.replica.intake.endpoints = {}
    assert await parts.replica.resume(stream)
    assert await parts.outcome_is_unknown(stream) and parts.server.calls == []


@requirement("rep.no-retry")
@pytest.mark.parametrize("may_be_taken", [False, True])
async def test_a_stream_waits_again_if_the_store_does_not_answer_and_a_request_that_may_be_taken_is_not_sent(
    may_be_taken: bool, parts: Parts
) -> None:
    stream = await parts.dead.begun([BEGINNING])
    parts.log.fails, parts.log.loses = not may_be_taken, may_be_taken
    with pytest.raises(StoreUnavailable):
        await parts.replica.resume(stream)
    assert parts.server.calls == []
    parts.log.fails = parts.log.loses = False
    assert await parts.replica.resume(stream)
    (*_, answer) = await parts.replica.messages(stream)
    assert await parts.outcome_is_unknown(stream) is may_be_taken is not bool(parts.server.calls)
    assert may_be_taken or answer["result"]["done"]


@requirement("rep.no-retry")
async def test_an_answer_that_came_before_the_repetition_stands(parts: Parts) -> None:
    stream = await parts.dead.begun([BEGINNING])
    await parts.replica.live.recover()
    await parts.former_owner_answers(stream)
    assert await parts.replica.resume(stream)
    assert await parts.replica.messages(stream) == [{"result": "of the former owner"}] and parts.server.calls == []


@requirement("rep.fence")
async def test_what_a_former_owner_writes_after_the_repetition_has_begun_is_left_out(parts: Parts) -> None:
    stream = await parts.dead.begun([BEGINNING])
    parts.server.may_answer = False
    assert await parts.replica.resume(stream)
    await parts.former_owner_answers(stream)
    await until(lambda: parts.server.calls)
    await turns()
    parts.server.answer()
    progress, answer = await parts.replica.messages(stream)
    assert "result" not in progress and answer["result"]["done"]


async def test_a_call_that_another_request_makes_again_is_not_made_for_its_stream(parts: Parts) -> None:
    stream, replica = await parts.dead.begun([BEGINNING]), parts.replica
    await replica.live.recover()
    await replica.intake.accept(IncomingCall(a_tool_call(replica.live, 7), a_request(again=True), WHO, PARAMS))
    assert len(parts.server.calls) == 1 and not await replica.resume(stream)
    assert await parts.outcome_is_unknown(stream)


@requirement("wall.provenance")
async def test_an_answer_of_the_client_brings_its_server_no_key_of_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    live, given = LiveSession(a_session(FakeClock()), MemoryEventLog()), list[Message]()
    monkeypatch.setattr(Questions, "answered", lambda _, message: given.append(message))
    resolver: Any = SimpleNamespace(require=AsyncMock(return_value=Resolved(live=live, context=live.session.context)))
    parts: Any = dict.fromkeys("records lifecycle announcements tasks".split())
    intake: Any = SimpleNamespace(events=None)
    clients = LegacyClients(**parts, intake=intake, resolver=resolver, result_meta=False)
    meta = {f"{RESERVED}/context": {"user": "eve"}, "k": 1}
    body = {"jsonrpc": "2.0", "id": 1, "result": {"roots": [], "_meta": meta}}
    await clients.respond(a_request(message=parse(encode(body))), WHO)
    assert [json.loads(bytes(cast("msgspec.Raw", message.result))) for message in given] == [
        {"roots": [], "_meta": {"k": 1}}
    ]
