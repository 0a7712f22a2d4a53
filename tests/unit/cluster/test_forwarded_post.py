"""A forwarded POST whose answer does not come to its end: the other side learns it at once."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.cluster import forwarded_post
from gateway.cluster.channels import Channels, Peer
from gateway.cluster.forwarded_post import ForwardedPost, Tickets, writer
from tests.requirements import requirement
from transports.inbound import event_stream
from transports.inbound.event_stream import Stream
from transports.peer_channel import MAX_CALLS, PeerChannel
from transports.replica_wire import PeerConnection, PeerConnectionLost, PeerConnectionPool
from transports.replica_wire_server import Incoming, PeerServer
from transports.reply_queue import Frame, ReplyQueue
from transports.tasks import Tasks

pytestmark = [pytest.mark.anyio, requirement("rep.honest")]

START = {"type": "http.response.start", "status": 200, "headers": []}
PIECE = {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}


class Channel:
    """Notes the last frame of each call."""

    def __init__(self) -> None:
        self.ends: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()

    def attend(self, number: int, left: Callable[[], None]) -> None: ...

    def forget(self, number: int) -> None: ...

    def end(self, kind: bytes, number: int, payload: bytes = b"") -> None:
        self.ends.put_nowait((kind, payload))


def begun(endpoint: Any, tickets: Tickets, *, head: Any = None) -> tuple[Channel, ForwardedPost]:
    """A call that has begun, which that endpoint serves."""
    channel = Channel()
    known = SimpleNamespace(
        endpoint=endpoint, head_of=lambda *_: head, forwarded=lambda *_: None, scope=lambda *_: {"type": "http"}
    )
    call: Any = SimpleNamespace(channel=channel, number=1, body=b"{}", definition=known)
    facts: Any = None
    post = ForwardedPost(call, facts, Tasks("test"), tickets)
    post.start()
    return channel, post


@contextlib.asynccontextmanager
async def asked(handler: Callable[[Incoming], Awaitable[None]]) -> AsyncIterator[PeerConnection]:
    """A connection whose request that handler serves."""
    pool = PeerConnectionPool([b"k" * 32])
    async with PeerServer(handler, lambda: None, opening=bytes, own=([b"k" * 32], "peer")).listening(
        "127.0.0.1", 0
    ) as port:
        connection = await pool.open(f"127.0.0.1:{port}", "peer")
        connection.ask(b"head", b"")
        try:
            async with asyncio.timeout(5):
                yield connection
        finally:
            pool.close()


async def frames_until_lost(connection: PeerConnection) -> list[bytes]:
    kinds = []
    with contextlib.suppress(PeerConnectionLost):
        while True:
            kinds.append((await connection.next())[0])
    return kinds


async def test_a_fault_after_the_beginning_of_a_fetched_answer_ends_its_connection() -> None:
    fail = asyncio.Event()

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(PIECE)
        await fail.wait()
        raise RuntimeError("a fault")

    tickets = Tickets()
    channel, _ = begun(endpoint, tickets)
    kind, ticket = await channel.ends.get()
    assert kind == b"x"
    post = tickets.take(ticket.decode())
    assert post is not None
    async with asked(post.fetch) as connection:
        assert [(await connection.next())[0] for _ in range(2)] == [b"h", b"b"]
        fail.set()
        assert await frames_until_lost(connection) == []
    assert channel.ends.empty(), "the call on the channel has ended already"


async def test_who_comes_too_late_for_an_answer_is_told_while_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarded_post, "_TICKET_S", 0.01)
    go_on, written = asyncio.Event(), asyncio.Event()

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(PIECE)
        written.set()
        await go_on.wait()

    channel, post = begun(endpoint, Tickets())
    await written.wait()
    async with asked(post.fetch) as connection:
        assert await frames_until_lost(connection) == []
    go_on.set()
    assert (await channel.ends.get())[0] == b"x"


async def test_a_reader_that_counts_as_gone_is_told_while_the_call_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_WRITE_TIMEOUT_S", 0.2)
    gone, go_on = asyncio.Event(), asyncio.Event()

    async def serve(incoming: Incoming) -> None:
        stream = Stream(writer(incoming))
        await stream.start([])
        while not stream.gone:
            await stream.write(b"x" * 100_000)
        gone.set()
        await go_on.wait()

    async with asked(serve) as connection:
        await gone.wait()
        assert (await frames_until_lost(connection))[-1] == b"b"
        go_on.set()


async def test_a_fault_in_writing_an_answer_at_once_has_it_written_in_the_usual_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Begun:
        has_failed = is_no_request = False
        quiet_at = math.inf
        answer = SimpleNamespace(replies=ReplyQueue(), is_doubtful=False, headers=[])

        def status(self, frame: Frame) -> int:
            raise RuntimeError("a fault")

        async def finish(self, scope: Any, receive: Any, send: Any) -> None:
            await send(START)
            await send({"type": "http.response.body", "body": b"answered"})

    found = Begun()
    monkeypatch.setattr(forwarded_post, "BegunPost", lambda *_: found)
    channel, _ = begun(SimpleNamespace(posts=None), Tickets(), head="head")
    found.answer.replies.push(Frame(b"{}", final=True))
    async with asyncio.timeout(5):
        kind, payload = await channel.ends.get()
    assert kind == b"a" and payload.endswith(b"answered")


@requirement("wall.memory")
async def test_calls_that_have_waited_for_a_channel_keep_to_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = asyncio.Event()
    transport: Any = SimpleNamespace(set_protocol=lambda _: None, write=lambda _: None, abort=lambda: None)

    async def opening(self: Channels, peer: Peer) -> PeerChannel:
        await opened.wait()
        return channel

    channel = PeerChannel(transport, "name", lambda *_: b"")
    monkeypatch.setattr(Channels, "_open", opening)
    nothing: Any = None
    channels = Channels(nothing, nothing)

    async def ask() -> bool:
        found = await channels.open(Peer("b", "b:1"))
        if found is not None:
            found.ask(b"c", b"", b"")
        return found is not None

    asking = [asyncio.ensure_future(ask()) for _ in range(MAX_CALLS + 5)]
    await asyncio.sleep(0)
    opened.set()
    assert sum(await asyncio.gather(*asking)) == MAX_CALLS
    channel.connection_lost(None)
