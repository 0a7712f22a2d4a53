"""Forwarded requests at the owner: where they go, and what is told of an answer that does not come to its end."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gateway.cluster import peer_listener
from gateway.cluster.forwarded_request_envelope import CallFacts, Envelopes, SharedFacts
from gateway.cluster.ownership import RouteMemory
from gateway.cluster.peer_listener import PeerListener
from gateway.observability.request_log import CORRELATION_HEADER
from session_store import KeyRing, StoreUnavailable
from tests.requirements import requirement
from tests.support.asgi import body_of, respond
from tests.unit.calls.parts import until
from transports.inbound import event_stream
from transports.inbound.event_stream import Stream
from transports.inbound.host_and_origin import Guard
from transports.inbound.post_parsing import LengthChecks
from transports.inbound.post_parsing import Posts as RealPosts
from transports.inbound.unauthenticated_limits import Limits, Refusals
from transports.inbound_port import Answer, AnsweringConnection, CallInFlight, CallValues, OwnedByPeer, Refused, Request
from transports.peer_channel import PeerCall, PeerChannel, PeerConnectionLost, open_channel
from transports.peer_frames import SMALL_BYTES
from transports.reply_queue import Frame, ReplyQueue

pytestmark = requirement("rep.honest")

START = {"type": "http.response.start", "status": 200, "headers": []}
PIECE = {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}
SEEN = (b"r", b"seen")


class Posts:
    """Refuses each head, so that the app says so."""

    def checked_head(self, scope: Any) -> Any:
        raise Refused(400, 0, "no")


class App:
    """The endpoint of a path, which serves requests as `serve` does."""

    def __init__(self, serve: Any, posts: Any = None) -> None:
        self.serve = serve
        self.posts: Any = posts or Posts()
        self.scope: dict[str, Any] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any, begun: Any = None) -> None:
        self.scope = scope
        await self.serve(scope, receive, send)


class Sender:
    """The other replica, and what it says of its calls."""

    def __init__(self, channel: PeerChannel, envelopes: Envelopes) -> None:
        self._channel = channel
        self._envelopes = envelopes

    def repeat(self, definition: Any, body: bytes, **more: Any) -> PeerCall:
        """Send a call whose head the listener keeps."""
        unread: dict[str, Any] = {"epoch": -1, "version": -1, "correlation": "c1", "traceparent": ""}
        facts = CallFacts(**(unread | {"expires": time.time() + 9} | more))
        return self._channel.ask(definition, msgspec.msgpack.encode(facts), body)

    def ask(self, path: str = "/mcp", *, body: bytes = b"{}", expires: bool = False, **common: Any) -> PeerCall:
        facts = (Envelopes(KeyRing.ephemeral(), lambda: 0.0) if expires else self._envelopes).facts(None)
        return self._channel.ask(SharedFacts(path=path, **{"session": "s", **common}).packed(), facts, body)


@contextlib.asynccontextmanager
async def sender(serve: Any = None, posts: Any = None, app: App | None = None) -> AsyncIterator[tuple[Sender, App]]:
    """Another replica, of a listener with one endpoint."""
    app, envelopes = app or App(serve, posts), Envelopes(KeyRing.ephemeral())
    endpoints: Any = {"/mcp": app}

    async def claim(session: str) -> bool | None:
        if session == "unknown":
            raise StoreUnavailable("out")
        return {"gone": True, "there": False}.get(session)

    listener = PeerListener(
        *("me", envelopes, endpoints), refused=lambda: None, hold=lambda replica: replica == "held", claim=claim
    )
    async with asyncio.timeout(60), listener.listening("127.0.0.1", 0) as port:
        channel = await open_channel(f"127.0.0.1:{port}", "me", envelopes.peer_keys)
        try:
            yield Sender(channel, envelopes), app
        finally:
            channel.close()


async def frames(call: PeerCall) -> list[bytes]:
    """The kinds of an answer's frames until its end, or until it has none."""
    kinds: list[bytes] = []
    with contextlib.suppress(PeerConnectionLost):
        while kinds[-1:] not in ([b"e"], [b"m"], [b"r"]):
            kinds.append((await call.next())[0])
    return kinds


async def echo(scope: Any, receive: Any, send: Any) -> None:
    await respond(send, 200, await body_of(receive))


@requirement("rep.any")
@pytest.mark.parametrize(("size", "pieces"), [(0, 0), (SMALL_BYTES, 0), (SMALL_BYTES + 1, 3), (1_000_000, 31)])
async def test_a_request_of_any_size_is_served_by_its_app(size: int, pieces: int) -> None:
    async with sender(echo) as (other, app):
        call = other.ask(method="DELETE", again=True, body=b"x" * size, headers=[(b"a", b"b")])
        assert await frames(call) == [b"h", *[b"b"] * pieces, b"e"]
        assert app.scope["method"] == "DELETE" and app.scope["mcp.again"] and (b"a", b"b") in app.scope["headers"]


@requirement("rep.any", "id.purpose")
async def test_a_call_that_cannot_be_served_is_refused_and_the_channel_goes_on() -> None:
    async def moved(*_: Any) -> None:
        raise OwnedByPeer(None)

    async with sender(moved) as (other, _):
        for call in (other.ask("/another"), other.ask(expires=True)):
            assert await call.next() == (b"r", b"invalid")
        assert await frames(other.ask()) == [b"m"]
        assert await other.ask("greeting").next() == (b"h", b"")
        assert await frames(other.ask("hold", session="held")) == [b"h", b"e"]
        assert await frames(other.ask("hold")) == [b"m"]
        assert await frames(other.ask("claim", session="gone")) == [b"h", b"e"]
        assert await other.ask("claim", session="there").next() == (b"r", b"owned")
        for session in ("not mine to claim", "unknown"):
            assert await frames(other.ask("claim", session=session)) == [b"m"]


async def test_a_fault_before_the_answer_and_one_in_it_are_told() -> None:
    fail = asyncio.Event()

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            raise RuntimeError("a fault")
        await send(START)
        await send(PIECE)
        await fail.wait()
        raise RuntimeError("a fault")

    async with sender(serve) as (other, _):
        assert await other.ask(method="GET").next() == SEEN
        call = other.ask()
        assert [(await call.next())[0] for _ in range(2)] == [b"h", b"b"]
        fail.set()
        assert await frames(call) == []


@requirement("rep.any")
async def test_the_head_of_an_event_stream_does_not_wait_for_an_event_and_who_leaves_ends_it() -> None:
    left = asyncio.Event()

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await Stream(send).start([])
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    async with sender(serve) as (other, _):
        call = other.ask(method="GET", body=b"")
        kind, head = await call.next()
        assert kind == b"h" and msgspec.msgpack.decode(head)[0] == 200
        call.close()
        await left.wait()


async def test_a_reader_that_counts_as_gone_is_told_while_the_call_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_WRITE_TIMEOUT_S", 0.2)
    gone, go_on = asyncio.Event(), asyncio.Event()

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        stream = Stream(send)
        await stream.start([])
        while not stream.gone:
            await stream.write(b"x" * 100_000)
        gone.set()
        await go_on.wait()

    async with sender(serve) as (other, _):
        call = other.ask()
        await gone.wait()
        assert (await frames(call))[-1] == b"b"
        go_on.set()


async def test_a_fault_in_writing_an_answer_at_once_has_it_written_in_the_usual_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Begun:
        has_failed = is_no_request = False
        quiet_at = math.inf
        answer = SimpleNamespace(replies=ReplyQueue(), is_doubtful=False, headers=[])

        def wait(self, task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> asyncio.Task[None]:
            return task(asyncio.sleep(0))

        def status(self, frame: Frame) -> int:
            raise RuntimeError("a fault")

        async def finish(self, scope: Any, receive: Any, send: Any) -> None:
            await respond(send, 200, b"answered")

    class Head(msgspec.Struct):
        headers: dict[str, str] = {}
        forwarded: Any = None

    found = Begun()
    monkeypatch.setattr(peer_listener, "StartedPost", lambda *_: found)
    found.answer.replies.push(Frame(b"{}", final=True))
    async with sender(posts=SimpleNamespace(checked_head=lambda _: Head())) as (other, _):
        call = other.ask()
        assert (await call.next())[0] == b"h" and await call.next() == (b"e", b"answered")


# -- the fast path


class FastApp(App):
    """An endpoint whose handler answers each call, and offers a path for those that are like it (`CallPath`), which
    sends them nowhere."""

    is_over = False

    def __init__(self) -> None:
        super().__init__(None, RealPosts("/mcp", Guard(), LengthChecks(Limits(), Refusals())))
        self.general: list[Request] = []
        self.begun: list[tuple[CallValues, bytes, str]] = []
        self.falls_back = 0
        self.connection: AnsweringConnection | None = None
        self.replies = ReplyQueue()
        done = {"done": lambda: None, "cancel": lambda why: None}
        self.answer: Any = SimpleNamespace(is_doubtful=False, headers=[(b"a", b"b")], **done)

    async def call(self, request: Request) -> Answer:
        self.general.append(request)
        if request.offer is not None:
            request.offer.make(lambda *_: self)
        self.answer.replies = ReplyQueue()
        self.answer.replies.push(Frame(b'{"general":1}', final=True))
        return cast("Answer", self.answer)

    def begin(
        self,
        connection: AnsweringConnection,
        body: bytes,
        values: CallValues,
        trace: bytes = b"",
        correlation: str = "",
    ) -> CallInFlight:
        self.connection = connection
        self.begun.append((values, trace, correlation))
        return self

    def fall_back(self) -> None:
        self.falls_back += 1
        assert self.connection is not None
        self.connection.fall_back(time.monotonic(), self.usual)

    def usual(self, request: Request) -> Answer:
        self.general.append(request)
        self.answer.replies = self.replies
        return cast("Answer", self.answer)

    def quiet_after_s(self, _: Request) -> float:
        return 10.0

    def status_of(self, *_: Any) -> int:
        return 200

    def can_resume(self, _: Request) -> bool:
        return False

    async def __call__(self, scope: Any, receive: Any, send: Any, begun: Any = None) -> None:
        await begun.called()
        self.scope = scope
        assert (await receive())["type"] == "http.request" and (await receive())["type"] == "http.disconnect"


def a_call(client_id: int, key: str = "k") -> bytes:
    call = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"a","arguments":{"key":"%b"}}}'
    return call % (client_id, key.encode())


def kept(session: str = "s") -> RouteMemory:
    """What calls with one head have in common, for the channel to keep."""
    memory = RouteMemory()
    headers = [(b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream")]
    memory.keep_common(SharedFacts(session=session, path="/mcp", headers=[(b"host", b"localhost"), *headers]).packed())
    return memory


@contextlib.asynccontextmanager
async def fast_sender() -> AsyncIterator[tuple[Sender, Any, RouteMemory]]:
    """Another replica, a listener, and a head whose calls take the fast path now."""
    app = FastApp()
    async with sender(app=app) as (other, _):
        memory = kept()
        for number in range(2):
            assert await frames(other.repeat(memory, a_call(number))) == [b"h", b"e"]
        assert len(app.general) == 2 and not app.begun
        yield other, app, memory


async def begun(other: Sender, app: Any, memory: RouteMemory, **more: Any) -> PeerCall:
    """A call that has taken the fast path."""
    call = other.repeat(memory, a_call(7, "x"), **more)
    await until(lambda: app.connection is not None)
    return call


@requirement("fast.same", "hot.forwarded")
async def test_a_call_like_one_before_it_takes_the_fast_path() -> None:
    async with fast_sender() as (other, app, memory):
        call = await begun(other, app, memory, traceparent="t")
        assert app.begun == [((b"7", b"", b'{"key":"x"}'), b"t", "c1")] and len(app.general) == 2
        assert not app.connection.answer_fast(b"x" * (SMALL_BYTES + 1), []), "nothing was done"
        assert app.connection.answer_fast(b'{"fast":1}', [(b"a", b"b")])
        kind, head = await call.next()
        assert kind == b"h" and await call.next() == (b"e", b'{"fast":1}')
        assert msgspec.msgpack.decode(head) == [
            200,
            [[b"content-type", b"application/json"], [b"content-length", b"10"], [b"a", b"b"]],
        ]


@requirement("fast.falls-back", "rep.honest")
@pytest.mark.parametrize("other_one", ["record", "head", "tool"])
async def test_a_call_whose_sender_has_read_the_record_or_that_is_another_takes_the_general_way(other_one: str) -> None:
    async with fast_sender() as (other, app, memory):
        head = kept("another") if other_one == "head" else memory
        body = a_call(7).replace(b'"a"', b'"b"') if other_one == "tool" else a_call(7)
        more = {"epoch": 1, "version": 1} if other_one == "record" else {}
        assert await frames(other.repeat(head, body, **more)) == [b"h", b"e"]
        assert len(app.general) == 3 and not app.begun
        assert app.general[-1].forwarded.session_id == ("another" if other_one == "head" else "s")


@requirement("fast.falls-back", "rep.honest")
async def test_a_call_that_falls_back_is_answered_once_and_was_begun_from_its_first_moment() -> None:
    async with fast_sender() as (other, app, memory):
        call = await begun(other, app, memory)
        app.fall_back()
        assert app.general[-1].message.id == 7 and app.general[-1].headers[CORRELATION_HEADER] == "c1"
        await app.general[-1].forwarded.before_sending()  # asks its sender for nothing
        assert call.may_have_run
        app.replies.push(Frame(b'{"late":1}', final=True))
        assert [await call.next() for _ in range(2)][1] == (b"e", b'{"late":1}')


@requirement("fast.falls-back", "rep.honest")
async def test_who_leaves_has_its_call_fall_back_and_end_as_any_other() -> None:
    async with fast_sender() as (other, app, memory):
        call = await begun(other, app, memory)
        call.close()
        await until(lambda: app.falls_back == 1 and "mcp.forwarded" in app.scope)


@requirement("fast.falls-back", "rep.honest")
async def test_a_call_that_cannot_fall_back_is_not_to_be_repeated() -> None:
    async with fast_sender() as (other, app, memory):
        app.usual = lambda request: 1 / 0
        call = await begun(other, app, memory)
        app.fall_back()
        assert await call.next() == SEEN


@requirement("fast.same")
async def test_the_head_that_has_had_paths_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_listener, "_MOST_WITH_PATHS", 1)
    async with fast_sender() as (other, app, memory):
        another = kept("another")
        for number in range(2):
            assert await frames(other.repeat(another, a_call(number))) == [b"h", b"e"]
        assert await frames(other.repeat(memory, a_call(7))) == [b"h", b"e"] and not app.begun
        call = await begun(other, app, memory)
        app.connection.answer_fast(b"{}", [])
        assert await frames(call) == [b"h", b"e"]
