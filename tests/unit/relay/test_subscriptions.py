"""The subscriptions at modern servers for a legacy client, when several calls of it come at the same time."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gateway.calls import in_flight
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.config.upstreams import UpstreamSettings
from gateway.protocol.subscription_filter import Filter, SubscriptionFilter
from gateway.relay import subscriptions
from gateway.relay.late_servers import LateServers
from gateway.relay.subscriptions import (
    LostSubscriptions,
    ServerSubscriptions,
    changes_confirmed,
    open_stream,
    relay_changes,
)
from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.link_opener import UpstreamLinks
from session_store.testing import FakeClock
from tests.requirements import requirement
from tests.support.fake_upstream import FakeUpstream, a_call
from tests.support.paged_server import OneServer
from tests.unit.calls.parts import turns
from tests.unit.relay.parts import a_live
from transports.era import Era
from transports.jsonrpc import parse
from transports.upstream_port import LinkFull, UpstreamUnavailable

pytestmark = requirement("spec.legacy")


class Server(OneServer):
    """A modern server that is subscribed to, and its conversation. It says what it supports once `is_known` is set."""

    is_away = False

    def __init__(self) -> None:
        self.is_known = asyncio.Event()
        self.started: list[Exchange] = []
        self.awaited: list[Callable[[], None]] = []
        self.cancelled: list[Exchange] = []

    async def capabilities(self) -> dict[str, Any]:
        await self.is_known.wait()
        return dict(self.known_capabilities)

    async def start(self, exchange: Exchange, params: Any, meta: Any) -> None:
        if self.is_away:
            raise UpstreamUnavailable("it is away")
        self.started.append(exchange)
        exchange.conversation = cast("Any", self)

    def when_started(self, live: LiveSession, callback: Callable[[], None]) -> None:
        self.awaited.append(callback)

    def cancel(self, exchange: Exchange, reason: str) -> None:
        self.cancelled.append(exchange)
        exchange.fail(-32800, reason)


@pytest.fixture(autouse=True)
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = SimpleNamespace(capabilities=b"{}", meta=lambda _: {})
    monkeypatch.setattr("gateway.relay.subscriptions.declaration_of", lambda live: caller)


class Client:
    """A session with an open subscription, and the notifications that its client got."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notified: list[str] = []
        heard = self.notified.append
        monkeypatch.setattr(LiveSession, "send_to_client", lambda _, frame: heard(str(parse(frame).method)))
        self.live, self.server = a_live(), Server()
        self.server.is_known.set()

    async def calls(self, *, anew: bool = False) -> None:
        server = cast("ConfiguredUpstream", self.server)
        await relay_changes(server, self.live, "c", anew=anew)
        await changes_confirmed(server, self.live)

    def begins(self, *, anew: bool = False) -> asyncio.Task[None]:
        return asyncio.create_task(self.calls(anew=anew))

    async def subscribed(self) -> Exchange:
        """A subscription that the server has."""
        calling = self.begins()
        await turns()
        self.server.started[-1].take_acknowledgement()
        await calling
        return self.server.started[-1]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    return Client(monkeypatch)


@requirement("spec.relayed-changes")
@pytest.mark.parametrize("replaces", [False, True])
async def test_of_two_calls_at_the_same_time_one_subscribes_and_both_wait_for_that(
    client: Client, replaces: bool
) -> None:
    client.server.is_known.clear()
    calls = [client.begins(anew=anew) for anew in (False, replaces)]
    await turns()
    client.server.is_known.set()
    await turns()
    assert client.server.started == [client.live.gateway_subscriptions["s"]] and not any(call.done() for call in calls)
    assert client.server.started[0].take_acknowledgement()
    await asyncio.gather(*calls)
    await client.calls()
    assert not client.notified and len(client.server.started) == 1


async def test_one_that_fails_leaves_the_place_to_the_next_call(client: Client) -> None:
    client.server.is_away = True
    with pytest.raises(UpstreamUnavailable):
        await client.calls()
    assert not client.live.gateway_subscriptions


@requirement("spec.relayed-changes")
async def test_what_may_have_changed_before_a_late_acknowledgement_is_notified_of(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "CONFIRM_S", 0.01)
    await client.calls()
    monkeypatch.setattr(subscriptions, "CONFIRM_S", 60)
    async with asyncio.timeout(60):
        await client.calls()  # a server that never acknowledges is waited for once
    for _ in range(2):
        client.server.started[0].take_acknowledgement()
    assert client.notified == ["notifications/tools/list_changed"]


@requirement("spec.relayed-changes")
async def test_a_server_that_was_gone_is_subscribed_to_again_and_may_have_changed(client: Client) -> None:
    first = await client.subscribed()
    first.fail(-32014, "it exited")
    client.server.is_away = True
    with pytest.raises(UpstreamUnavailable):
        await client.calls()
    client.server.is_away = False
    (again,) = client.server.awaited
    again()
    await turns()
    _, second = client.server.started
    again()
    await turns()
    second.take_acknowledgement()
    assert len(client.server.started) == 2, "a call may have been faster"
    assert client.notified == ["notifications/tools/list_changed"]


@requirement("spec.relayed-changes")
async def test_a_server_that_refuses_subscriptions_is_not_waited_for_with_each_call(client: Client) -> None:
    calling = client.begins()
    await turns()
    client.server.started[0].fail(-32601, "unknown method")
    await calling
    async with asyncio.timeout(60):
        await client.calls()
    assert len(client.server.started) == 2 and not client.notified


@requirement("spec.relayed-changes")
async def test_changed_subscriptions_take_the_place_of_the_old_ones_without_a_gap(client: Client) -> None:
    first = await client.subscribed()
    calls = []
    for _ in range(3):
        calls.append(client.begins(anew=True))
        await turns()
    _, second, third, fourth = client.server.started
    assert client.server.cancelled == [second, third], "of those that the server has not acknowledged one is open"
    fourth.take_acknowledgement()
    await asyncio.gather(*calls)
    assert client.server.cancelled == [second, third, first] and not client.notified


class StartedServer(OneServer):
    """A server and its conversation."""

    def __init__(self, *, url: str = "") -> None:
        self.settings = UpstreamSettings(url=url) if url else UpstreamSettings(command="s")
        records: Any = SimpleNamespace(remote_session_changed=None, record_use=None, add_entry=lambda *_: None)
        known: Any = SimpleNamespace(handshake=None)
        nothing: Any = None
        self.links = UpstreamLinks(
            "s", nothing, nothing, settings=self.settings, records=records, permits=nothing, known=known
        )
        self.has_ended = False

    def when_started(self, live: LiveSession, callback: Callable[[], None]) -> Callable[[], None]:
        return self.links.when_started(live, callback)

    def conversation(self, live: LiveSession, *_: Any) -> "StartedServer":
        if self.has_ended:
            raise UpstreamUnavailable("the session has ended")
        return self


class Stream:
    """The stream of a client, and the servers at which its parts were opened again."""

    def __init__(self) -> None:
        self.clock, self.live = FakeClock(), a_live(era="modern")
        self.listened: list[str] = []
        self.lost_ones = LostSubscriptions(self.live, "c", self._listen, clock=self.clock)

    async def _listen(self, upstream: Any, conversation: Any) -> None:
        self.listened.append(upstream.name)

    async def lost(self, server: StartedServer) -> None:
        self.lost_ones.lost(cast("ConfiguredUpstream", server))
        await turns()


@requirement("spec.lost-listen")
async def test_a_process_is_listened_to_once_with_the_next_start_for_this_session() -> None:
    server, stream, other = StartedServer(), Stream(), Stream()
    await stream.lost(server)
    await stream.lost(server)
    server.links.started(1, 0.1, "c", other.live)
    server.links.started(1, 0.1, "c", None)
    await turns()
    assert not stream.listened
    for _ in range(2):
        server.links.started(1, 0.1, "c", stream.live)
    await turns()
    assert stream.listened == ["s"]


@pytest.mark.parametrize("url", ["", "http://s"])
async def test_nothing_is_opened_again_for_a_stream_or_a_session_that_has_ended(url: str) -> None:
    server, stream = StartedServer(url=url), Stream()
    await stream.lost(server)
    stream.lost_ones.end()
    server.links.started(1, 0.1, "c", stream.live)
    await stream.lost(server)
    server.has_ended = True
    server.links.started(1, 0.1, "c", stream.live)
    await turns()
    assert not stream.listened and not server.links._awaited


@requirement("spec.lost-listen")
async def test_a_server_behind_a_url_is_asked_again_after_longer_and_longer_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, stream = StartedServer(url="http://s"), Stream()
    pauses: list[float] = []
    loop = asyncio.get_running_loop()

    def call_later(delay_s: float, callback: Callable[[], None]) -> asyncio.Handle:
        pauses.append(delay_s)
        return loop.call_soon(callback)

    monkeypatch.setattr(loop, "call_later", call_later)
    for _ in range(3):
        await stream.lost(server)
        stream.clock.pass_time(pauses[-1])
    assert pauses == [1, 2, 4] and stream.listened == ["s"] * 3
    stream.clock.pass_time(60)
    await stream.lost(server)
    assert pauses[-1] == 1, "it has lasted a while"


@requirement("spec.ended-listen")
@pytest.mark.parametrize("wanted", [b"{}", b'{"toolsListChanged":true}'])
async def test_a_stream_that_no_conversation_has_gets_keepalives_until_its_client_is_gone(
    wanted: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "TICK_S", 0.001)
    live, late = a_live(era="modern"), LateServers(wait_s=5, read_s=5)
    exchange = Exchange(method="subscriptions/listen", client_id=1, live=live)
    call = SimpleNamespace(exchange=exchange, live=live, era=Era.MODERN, correlation="c")
    call.params = {"notifications": msgspec.Raw(wanted)}
    await open_stream({}, None, cast("Any", call), late, lambda uri, call: None, cast("Any", None))
    assert await exchange.replies.next()
    quiet = asyncio.create_task(exchange.replies.next(0.0))
    await asyncio.wait({quiet}, timeout=60)
    assert isinstance(quiet.exception(), TimeoutError)
    exchange.cancel("the client disconnected")
    frame = await exchange.replies.next()
    assert frame is not None and frame.final
    exchange.done()
    assert not late.streams.calls and not live.subscriptions


@requirement("spec.relayed-changes")
async def test_what_a_full_server_cannot_take_is_subscribed_to_once_it_has_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two clients with a thousand subscriptions each are more than an object in this process takes in one turn."""
    monkeypatch.setattr(subscriptions, "FULL_S", 0.0)
    upstream, wanted = FakeUpstream(), Filter(uris=frozenset({"file:///a", "file:///b"}))
    conversation, live = upstream.conversation, a_live()
    exchange = a_call(live)
    await conversation.ready()
    conversation.links.initialize_result = b'{"capabilities":{"resources":{"subscribe":true}}}'
    [link] = upstream.links
    link.refusal = LinkFull("it does not read its input")
    server = cast("ConfiguredUpstream", SimpleNamespace(name="fake", permits=lambda context, uris: uris))
    subscription = SubscriptionFilter(7, wanted, exchange.emit)
    opened = ServerSubscriptions(live, subscription, exchange, {}, {})
    await opened.subscribe(server, conversation)
    await turns()
    link.refusal = None
    await turns()
    asked = [message["params"]["uri"] for message in link.sent if message["method"] == "resources/subscribe"]
    assert asked == ["file:///a", "file:///b"]
    link.refusal = LinkFull("it does not read its input")
    again = ServerSubscriptions(live, subscription, exchange, {}, {})
    await again.subscribe(server, conversation)
    again.end()
    link.refusal, link.sent = None, []
    await turns()
    assert "resources/subscribe" not in [message["method"] for message in link.sent], "its client has left"
