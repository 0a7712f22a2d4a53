"""A modern client comes back to a suspended call: a round is answered once, whatever arrives at the same time."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gateway.bridge.request_state import Binding, RequestDigest, RequestStateSeal
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.calls.suspended_call import InputRequest
from gateway.errors import is_bad_request_state
from gateway.identity.request_context import RequestContext
from gateway.relay.modern import ModernClients
from gateway.relay.replies import CallReply
from gateway.sessions.attach import Resolved
from session_store import KeyRing
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock, a_session
from transports.era import Era
from transports.inbound_port import Answer, Refused, Request
from transports.jsonrpc import Message, encode
from transports.reply_queue import ReplyQueue
from transports.soon import arrived

pytestmark = pytest.mark.anyio

METHOD = "tools/call"
PARAMS = {"name": msgspec.Raw(b'"ask"'), "arguments": msgspec.Raw(b"{}")}


class Server:
    """A conversation whose server has asked something."""

    name = "s"
    deadlines = SimpleNamespace(suspended_s=60.0)

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def answer(self, request_id: bytes, message: Message) -> None:
        assert isinstance(message.result, msgspec.Raw)
        self.answers.append(msgspec.json.decode(message.result))


class Parts:
    """A suspended call of one session, and the state that its client was given."""

    def __init__(self) -> None:
        clock, self.server = FakeClock(), Server()
        self.live = LiveSession(a_session(clock, era="modern"), MemoryBackend().events)
        self.who = RequestContext(self.live.session.principal, None, "c")
        seal = RequestStateSeal(KeyRing.ephemeral(), clock)
        self.clients = ModernClients(
            intake=cast("Any", self),
            resolver=cast("Any", self),
            carriers=cast("Any", self),
            endpoints=cast("Any", {"/mcp": None}),
            seal=seal,
            tasks=cast("Any", None),
            task_calls=cast("Any", None),
            result_meta=False,
        )
        self.exchange = Exchange(method=METHOD, client_id=1, live=self.live, replies=ReplyQueue())
        self.exchange.sent_as(cast("Any", self.server), 1, None, 1.0)
        question = InputRequest(cast("Any", self.server), b"1", "elicitation/create", {})
        assert self.live.questions.suspend(self.exchange, question)
        suspended = self.exchange.suspendable()
        suspended.ask_until(60.0)
        self.exchange.suspend({})
        binding = Binding(self.who.principal, "/mcp", RequestDigest(METHOD, PARAMS))
        self.state = seal.seal({}, session_id="s", binding=binding, suspended=suspended)["requestState"]
        self.asked = list(suspended.questions)

    def retry(self, request_id: int, forwarded: object) -> Request:
        answers = {key: {"action": "accept", "content": {"n": request_id}} for key in self.asked}
        params = PARAMS | {"requestState": self.state, "inputResponses": msgspec.Raw(encode(answers))}
        return Request(
            era=Era.MODERN,
            endpoint="/mcp",
            headers={},
            message=Message(jsonrpc="2.0", id=request_id, method=METHOD),
            params=params,
            forwarded=forwarded,
        )

    # as resolver

    async def resume_by_id(self, session_id: str, who: RequestContext, era: Era) -> Resolved:
        return Resolved(live=self.live, context=self.live.session.context)

    # as carriers

    def headers(self, *_: object, **__: object) -> list[tuple[bytes, bytes]]:
        return []

    def is_in_result(self, *_: object, opened: bool) -> bool:
        return opened

    def token(self, *_: object) -> str:
        return "t"

    # as intake

    def attach(self, exchange: Exchange, headers: Any, request: Request, correlation: str) -> Answer:
        return CallReply(exchange, self.live, headers, events=None)


class Forwarded:
    """Another replica, which takes a while to be told that the request has started."""

    def __init__(self) -> None:
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()

    async def started(self) -> None:
        self.begun.set()
        await self.goes_on.wait()


async def test_of_two_forwarded_answers_to_one_round_the_first_counts() -> None:
    parts, peers = Parts(), [Forwarded(), Forwarded()]
    retries = [
        asyncio.create_task(arrived(parts.clients.call(parts.retry(number, peer), parts.who)))
        for number, peer in enumerate(peers, start=10)
    ]
    await asyncio.gather(*(peer.begun.wait() for peer in peers))
    for peer in peers:
        peer.goes_on.set()
    first, second = await asyncio.gather(*retries, return_exceptions=True)
    assert isinstance(first, CallReply)
    assert isinstance(second, Refused) and is_bad_request_state(second)
    assert [answer["content"]["n"] for answer in parts.server.answers] == [10]
    assert parts.exchange.client_id == 10

    parts.exchange.finish(Message(jsonrpc="2.0", id=1, result=msgspec.Raw(b"{}")))
    frame = await first.replies.next()
    assert frame is not None and msgspec.json.decode(frame.data)["id"] == 10
    await arrived(first.done())
    assert not parts.live.is_busy


async def test_a_reply_that_is_cancelled_after_its_question_ends_without_the_call() -> None:
    parts = Parts()
    reply = await arrived(parts.clients.call(parts.retry(10, None), parts.who))
    parts.exchange.suspend({})
    assert await reply.replies.next() is not None
    reply.cancel("the client disconnected")
    assert await reply.replies.next() is None
    assert not parts.exchange.is_over
