"""The subscriptions at modern servers for a legacy client, when several calls of it come at the same time."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.relay import subscriptions
from gateway.relay.lost_subscriptions import LostSubscriptions
from gateway.relay.subscriptions import changes_confirmed, relay_changes
from gateway.upstreams.link_source import UpstreamLinks
from gateway.upstreams.upstream import ConfiguredUpstream
from session_store import EventLog
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.paged_server import OneServer
from transports.jsonrpc import parse
from transports.upstream_port import UpstreamUnavailable

pytestmark = [pytest.mark.anyio, requirement("spec.legacy")]


class Server(OneServer):
    """A modern server that is subscribed to, and its conversation. It says what it supports once `is_known` is set."""

    def __init__(self, *, is_away: bool = False) -> None:
        self.is_known = asyncio.Event()
        self.started: list[Exchange] = []
        self.awaited: list[Callable[[], None]] = []
        self.cancelled: list[Exchange] = []
        self.is_away = is_away

    async def capabilities(self) -> dict[str, Any]:
        await self.is_known.wait()
        return dict(self.declared)

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


def of(server: Server) -> ConfiguredUpstream:
    return cast("ConfiguredUpstream", server)


def a_live() -> LiveSession:
    return LiveSession(a_session(FakeClock(), era="legacy"), MemoryBackend().events)


@pytest.fixture(autouse=True)
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = SimpleNamespace(capabilities=b"{}", meta=lambda _: {})
    monkeypatch.setattr("gateway.relay.subscriptions.caller_of", lambda live: caller)


@pytest.mark.parametrize("replaces", [False, True])
async def test_of_two_calls_at_the_same_time_one_subscribes(replaces: bool) -> None:
    server, live = Server(), a_live()
    calls = [asyncio.create_task(relay_changes(of(server), live, "c", anew=anew)) for anew in (False, replaces)]
    await asyncio.sleep(0)
    server.is_known.set()
    await asyncio.gather(*calls)
    assert server.started == [live.subscription_relays["s"]]


async def test_one_that_fails_leaves_the_place_to_the_next_call() -> None:
    server, live = Server(is_away=True), a_live()
    server.is_known.set()
    with pytest.raises(UpstreamUnavailable):
        await relay_changes(of(server), live, "c")
    assert not live.subscription_relays


class Client:
    """A session with an open subscription, and the notifications that its client got."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notified: list[str] = []
        monkeypatch.setattr(
            LiveSession, "send_to_client", lambda _, frame: self.notified.append(str(parse(frame).method))
        )
        self.live, self.server = a_live(), Server()
        self.server.is_known.set()

    async def calls(self, *, anew: bool = False) -> None:
        await relay_changes(of(self.server), self.live, "c", anew=anew)
        await changes_confirmed(of(self.server), self.live)

    def begins(self, *, anew: bool = False) -> asyncio.Task[None]:
        return asyncio.create_task(self.calls(anew=anew))

    async def subscribed(self) -> Exchange:
        """A subscription that the server has."""
        calling = self.begins()
        await settled()
        self.server.started[-1].takes_acknowledgement()
        await calling
        return self.server.started[-1]


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    return Client(monkeypatch)


@requirement("spec.relayed-changes")
async def test_calls_wait_until_the_server_has_the_subscription(client: Client) -> None:
    calls = [client.begins() for _ in range(2)]
    await settled()
    assert len(client.server.started) == 1 and not any(call.done() for call in calls)
    assert client.server.started[0].takes_acknowledgement()
    await asyncio.gather(*calls)
    await client.calls()
    assert not client.notified and len(client.server.started) == 1


@requirement("spec.relayed-changes")
async def test_what_may_have_changed_before_a_late_acknowledgement_is_notified_of(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "CONFIRM_S", 0.01)
    await client.calls()
    monkeypatch.setattr(subscriptions, "CONFIRM_S", 60)
    async with asyncio.timeout(5):
        await client.calls()  # a server that never acknowledges is waited for once
    for _ in range(2):
        client.server.started[0].takes_acknowledgement()
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
    await settled()
    _, second = client.server.started
    again()
    await settled()
    second.takes_acknowledgement()
    assert len(client.server.started) == 2, "a call may have been faster"
    assert client.notified == ["notifications/tools/list_changed"]


@requirement("spec.relayed-changes")
async def test_a_server_that_refuses_subscriptions_is_not_waited_for_with_each_call(client: Client) -> None:
    calling = client.begins()
    await settled()
    client.server.started[0].fail(-32601, "unknown method")
    await calling
    async with asyncio.timeout(5):
        await client.calls()
    assert len(client.server.started) == 2 and not client.notified


@requirement("spec.relayed-changes")
async def test_changed_subscriptions_take_the_place_of_the_old_ones_without_a_gap(client: Client) -> None:
    first = await client.subscribed()
    calls = []
    for _ in range(3):
        calls.append(client.begins(anew=True))
        await settled()
    _, second, third, fourth = client.server.started
    assert client.server.cancelled == [second, third], "of those that the server has not acknowledged one is open"
    fourth.takes_acknowledgement()
    await asyncio.gather(*calls)
    assert client.server.cancelled == [second, third, first] and not client.notified


class StartedServer(OneServer):
    """A server and its conversation."""

    def __init__(self, *, url: str = "") -> None:
        self.settings = SimpleNamespace(url=url)
        self.links = UpstreamLinks(
            "s",
            *cast("Any", [None] * 2),
            is_url=bool(url),
            records=cast(
                "Any", SimpleNamespace(remote_session_changed=None, record_use=None, happened=lambda *_: None)
            ),
            permits=cast("Any", None),
            known=cast("Any", SimpleNamespace(handshake=None)),
            quotes="own",
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
        self.clock = FakeClock()
        self.live = LiveSession(a_session(self.clock, era="modern"), cast("EventLog", None))
        self.listened: list[str] = []
        self.lost_ones = LostSubscriptions(self.live, "c", self._listen, clock=self.clock)

    async def _listen(self, upstream: Any, conversation: Any) -> None:
        self.listened.append(upstream.name)

    def lost(self, server: StartedServer) -> None:
        self.lost_ones.lost(cast("ConfiguredUpstream", server))


async def turned() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@requirement("spec.lost-listen")
async def test_a_process_is_listened_to_once_with_the_next_start_for_this_session() -> None:
    server, stream, other = StartedServer(), Stream(), Stream()
    stream.lost(server)
    stream.lost(server)
    server.links.started(1, 0.1, "c", other.live)
    server.links.started(1, 0.1, "c", None)
    await turned()
    assert not stream.listened
    for _ in range(2):
        server.links.started(1, 0.1, "c", stream.live)
    await turned()
    assert stream.listened == ["s"]


@pytest.mark.parametrize("url", ["", "http://s"])
async def test_nothing_is_opened_again_for_a_stream_or_a_session_that_has_ended(url: str) -> None:
    server, stream = StartedServer(url=url), Stream()
    stream.lost(server)
    stream.lost_ones.end()
    server.links.started(1, 0.1, "c", stream.live)
    stream.lost(server)
    server.has_ended = True
    server.links.started(1, 0.1, "c", stream.live)
    await turned()
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
        stream.lost(server)
        await turned()
        stream.clock.pass_time(pauses[-1])
    assert pauses == [1, 2, 4] and stream.listened == ["s"] * 3
    stream.clock.pass_time(60)
    stream.lost(server)
    await turned()
    assert pauses[-1] == 1, "it has lasted a while"
