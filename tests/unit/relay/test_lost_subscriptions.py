"""When a part of a stream that is gone is opened again."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.calls.live_session import LiveSession
from gateway.relay.lost_subscriptions import LostSubscriptions
from gateway.upstreams.link_source import UpstreamLinks
from gateway.upstreams.upstream import ConfiguredUpstream
from session_store import EventLog
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from transports.upstream_port import UpstreamUnavailable

pytestmark = [pytest.mark.anyio, requirement("spec.lost-listen")]


class Server:
    """A server and its conversation."""

    name = "s"

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

    def conversation(self, live: LiveSession, *_: Any) -> "Server":
        if self.has_ended:
            raise UpstreamUnavailable("the session has ended")
        return self

    def in_background(self, work: Any) -> None:
        asyncio.get_running_loop().create_task(work)


class Stream:
    """The stream of a client, and the servers at which its parts were opened again."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.live = LiveSession(a_session(self.clock, era="modern"), cast("EventLog", None))
        self.listened: list[str] = []
        self.lost_ones = LostSubscriptions(self.live, "c", self._listen, clock=self.clock)

    async def _listen(self, upstream: Any, conversation: Any) -> None:
        self.listened.append(upstream.name)

    def lost(self, server: Server) -> None:
        self.lost_ones.lost(cast("ConfiguredUpstream", server))


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_process_is_listened_to_once_with_the_next_start_for_this_session() -> None:
    server, stream, other = Server(), Stream(), Stream()
    stream.lost(server)
    stream.lost(server)
    server.links.started(1, 0.1, "c", other.live)
    server.links.started(1, 0.1, "c", None)
    await settled()
    assert not stream.listened
    for _ in range(2):
        server.links.started(1, 0.1, "c", stream.live)
    await settled()
    assert stream.listened == ["s"]


@pytest.mark.parametrize("url", ["", "http://s"])
async def test_nothing_is_opened_again_for_a_stream_or_a_session_that_has_ended(url: str) -> None:
    server, stream = Server(url=url), Stream()
    stream.lost(server)
    stream.lost_ones.end()
    server.links.started(1, 0.1, "c", stream.live)
    stream.lost(server)
    server.has_ended = True
    server.links.started(1, 0.1, "c", stream.live)
    await settled()
    assert not stream.listened and not server.links._awaited


async def test_a_server_behind_a_url_is_asked_again_after_longer_and_longer_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, stream = Server(url="http://s"), Stream()
    pauses: list[float] = []
    loop = asyncio.get_running_loop()

    def call_later(delay_s: float, callback: Callable[[], None]) -> asyncio.Handle:
        pauses.append(delay_s)
        return loop.call_soon(callback)

    monkeypatch.setattr(loop, "call_later", call_later)
    for _ in range(3):
        stream.lost(server)
        await settled()
        stream.clock.pass_time(pauses[-1])
    assert pauses == [1, 2, 4] and stream.listened == ["s"] * 3
    stream.clock.pass_time(60)
    stream.lost(server)
    await settled()
    assert pauses[-1] == 1, "it has lasted a while"
