"""Forwarded requests at the owner: where they go, and what is told of an answer that does not come to its end."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gateway.cluster import forwarded
from gateway.cluster.envelope import Common, Envelopes
from gateway.cluster.forwarded import PeerListener
from session_store import KeyRing
from tests.requirements import requirement
from transports.inbound import event_stream
from transports.inbound.event_stream import Stream
from transports.inbound_port import OwnedByPeer, Refused
from transports.peer_channel import PeerCall, PeerChannel, PeerConnectionLost, open_channel
from transports.peer_frames import SMALL_BYTES
from transports.reply_queue import Frame, ReplyQueue

pytestmark = [pytest.mark.anyio, requirement("rep.honest")]

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

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        await self.serve(scope, receive, send)


class Sender:
    """The other replica, and what it says of its calls."""

    def __init__(self, channel: PeerChannel, envelopes: Envelopes) -> None:
        self._channel = channel
        self._envelopes = envelopes

    def ask(self, path: str = "/mcp", *, body: bytes = b"{}", expires: bool = False, **common: Any) -> PeerCall:
        facts = self._envelopes.facts(None)
        if expires:
            facts = Envelopes(KeyRing.ephemeral(), lambda: 0.0).facts(None)
        return self._channel.ask(Common(path=path, **{"session": "s", **common}).packed(), facts, body)


@contextlib.asynccontextmanager
async def sender(serve: Any = None, posts: Any = None) -> AsyncIterator[tuple[Sender, App]]:
    """Another replica, of a listener with one endpoint."""
    app, envelopes = App(serve, posts), Envelopes(KeyRing.ephemeral())
    endpoints: Any = {"/mcp": app}
    listener = PeerListener("me", envelopes, endpoints, refused=lambda: None, hold=lambda replica: replica == "held")
    async with asyncio.timeout(10), listener.listening("127.0.0.1", 0) as port:
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
    body, more = b"", True
    while more:
        event = await receive()
        body, more = body + event["body"], event["more_body"]
    await send(START)
    await send({"type": "http.response.body", "body": body})


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
            await send(START)
            await send({"type": "http.response.body", "body": b"answered"})

    class Head(msgspec.Struct):
        headers: dict[str, str] = {}
        forwarded: Any = None

    found = Begun()
    monkeypatch.setattr(forwarded, "BegunPost", lambda *_: found)
    found.answer.replies.push(Frame(b"{}", final=True))
    async with sender(posts=SimpleNamespace(checked_head=lambda _: Head())) as (other, _):
        call = other.ask()
        assert (await call.next())[0] == b"h" and await call.next() == (b"e", b"answered")
