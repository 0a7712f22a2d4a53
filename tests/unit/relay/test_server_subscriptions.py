"""When the gateway acknowledges a `subscriptions/listen` to several servers, and what it adds once a server has it."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gateway.calls.call import Call
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.protocol.extensions import Declared
from gateway.relay import server_subscriptions
from gateway.relay.late_servers import LateServers
from gateway.relay.subscriptions import listen
from session_store import EventLog
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from transports.era import Era
from transports.jsonrpc import Message, Object, encode, encode_notification
from transports.reply_queue import ReplyQueue

pytestmark = [pytest.mark.anyio, requirement("spec.cold-listen")]

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
CHANGED = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"
CAPABILITIES = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}


class Server:
    """A server that is up, and its conversation. It confirms nothing by itself."""

    name = "s"
    discovery = b"{}"
    extensions = Declared()
    settings = SimpleNamespace(command="x")
    hangs_for_s = 0.0
    is_failing = False

    def __init__(self, era: Era) -> None:
        self.era = era
        self.initialize_result = encode({"capabilities": CAPABILITIES})
        self.parts: asyncio.Queue[Exchange] = asyncio.Queue()
        self.answers: asyncio.Queue[asyncio.Future[Message]] = asyncio.Queue()
        self.requested: list[str] = []

    async def conversation_for(self, call: Call) -> "Server":
        return self

    async def capabilities(self) -> Any:
        return CAPABILITIES

    def is_open_to(self, live: Any) -> bool:
        return True

    def permits(self, context: Any, uris: frozenset[str]) -> frozenset[str]:
        return uris

    async def join(self, live: Any) -> None:
        """Nothing has to be recorded."""

    async def ready(self) -> None:
        """It is up."""

    async def start(self, exchange: Exchange, params: Any, meta: Any) -> None:
        self.parts.put_nowait(exchange)

    def answer_to(self, method: str, params: bytes) -> asyncio.Future[Message]:
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.answers.put_nowait(answer)
        return answer

    def request(self, method: str, params: bytes) -> None:
        self.requested.append(method)


class Client:
    """A client that listens at a server."""

    def __init__(self) -> None:
        self.live = LiveSession(a_session(FakeClock(), era="modern"), cast("EventLog", None))
        self.replies = ReplyQueue()
        self.exchange = Exchange(method="subscriptions/listen", client_id=7, live=self.live, replies=self.replies)

    def listen(self, server: Server) -> asyncio.Task[None]:
        wanted = {"toolsListChanged": True, "resourceSubscriptions": ["a"]}
        params: Object = {"notifications": msgspec.Raw(encode(wanted))}
        call = SimpleNamespace(
            exchange=self.exchange,
            live=self.live,
            params=params,
            era=Era.MODERN,
            correlation="c",
        )
        late = LateServers(wait_s=5, read_s=5)
        return asyncio.create_task(listen(cast("Any", [server]), cast("Call", call), late))

    async def got(self, count: int) -> list[Any]:
        async with asyncio.timeout(5):
            frames = [await self.replies.next() for _ in range(count)]
        return [msgspec.json.decode(frame.data)["method"] for frame in frames if frame is not None]

    @property
    def has_nothing(self) -> bool:
        return not self.replies._frames


async def test_an_acknowledgement_waits_for_a_server_that_is_up_and_comes_first() -> None:
    server, client = Server(Era.MODERN), Client()
    listening = client.listen(server)
    part = await server.parts.get()
    part.emit(encode_notification(CHANGED, b"{}"))
    assert client.has_nothing
    assert part.takes_acknowledgement()
    await listening
    assert await client.got(2) == [ACKNOWLEDGED, CHANGED] and client.has_nothing, "nothing extra"


async def test_a_legacy_server_is_waited_for_until_it_has_answered_each_subscription() -> None:
    server, client = Server(Era.LEGACY), Client()
    listening = client.listen(server)
    answer = await server.answers.get()
    assert client.has_nothing
    answer.set_result(Message(jsonrpc="2.0", id=1, result=msgspec.Raw(b"{}")))
    await listening
    assert await client.got(1) == [ACKNOWLEDGED] and client.has_nothing


@pytest.mark.parametrize("era", [Era.LEGACY, Era.MODERN])
async def test_what_a_server_may_have_changed_before_it_had_the_subscription_is_notified_of(
    era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_subscriptions, "CONFIRM_S", 0.01)
    server, client = Server(era), Client()
    await client.listen(server)
    assert await client.got(1) == [ACKNOWLEDGED] and client.has_nothing
    if era is Era.MODERN:
        (await server.parts.get()).takes_acknowledgement()
    else:
        (await server.answers.get()).set_result(Message(jsonrpc="2.0", id=1, result=msgspec.Raw(b"{}")))
    assert await client.got(2) == [CHANGED, UPDATED] and client.has_nothing


async def test_a_stream_that_has_ended_waits_for_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_subscriptions, "CONFIRM_S", 0.01)
    server, client = Server(Era.LEGACY), Client()
    await client.listen(server)
    client.exchange.done()
    assert (await server.answers.get()).cancelled() and server.requested == ["resources/unsubscribe"]
    assert await client.got(1) == [ACKNOWLEDGED] and client.has_nothing
