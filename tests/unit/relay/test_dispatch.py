"""A call is sent to its server: at once where nothing has to be waited for, else once everything is known."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gateway.bridge.legacy_server import LegacyServerBridge
from gateway.bridge.modern_server import ModernServerBridge
from gateway.bridge.subscription_relay import subscription_relay_for
from gateway.calls.call import Call
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.config.operators import AuditSettings
from gateway.observability.audit import Audit
from gateway.policy.decisions import ServerPolicy
from gateway.protocol.capabilities import Caller
from gateway.protocol.extensions import Declared
from gateway.protocol.listing import Tools
from gateway.protocol.tasks import TASKS
from gateway.relay.dispatch import Dispatch
from gateway.upstreams.result_cache import ResultCache
from session_store import Context
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.support.paged_server import admission_by
from transports.era import Era
from transports.jsonrpc import Message, Object, encode
from transports.reply_queue import ReplyQueue

pytestmark = pytest.mark.anyio

TOOLS = Tools([{"name": "count"}])


class Server:
    """A server with one tool, and its conversation. `takes_now`: whether its open link takes a message."""

    name = "s"
    era = Era.LEGACY
    users = ()
    known_lists = None
    initialize_result = None

    declared: Mapping[str, Any] = {"tools": {"listChanged": True}}
    notifies = True
    extensions = Declared()

    def __init__(self, *, era: Era = Era.LEGACY, is_open: bool = True, takes_now: bool = True, **settings: Any) -> None:
        self.era = era
        self.settings = SimpleNamespace(**({"shared": False, "handles": False} | settings))
        self.inventory = SimpleNamespace(
            known=lambda method, conversation: TOOLS, results=ResultCache(1 << 20), refresh=dict
        )
        self.unreviewed: set[str] = set()
        self.sent: list[tuple[str, Object, Object]] = []
        self._is_open = is_open
        self._is_asked = bool(settings.get("is_asked"))
        self._takes_now = takes_now

    # as upstream

    def era_now(self, client: Era) -> Era:
        return self.era

    async def era_for(self, client: Era) -> Era:
        return self.era

    async def facts(self) -> None:
        """They are known."""

    def open_with(self, live: LiveSession) -> "Server":
        return self

    def conversation(self, live: LiveSession, era: Era, correlation: str, caller: Caller | None = None) -> "Server":
        return self

    def is_asked_by(self, live: LiveSession) -> bool:
        return self._is_asked

    async def capabilities(self) -> Mapping[str, Any]:
        return self.declared

    def permits(self, context: Context, uris: frozenset[str]) -> frozenset[str]:
        return uris

    async def conversation_for(self, call: Call) -> "Server":
        return self

    # as conversation

    def is_open_to(self, live: LiveSession | None) -> bool:
        return self._is_open

    def start_now(self, exchange: Exchange, params: Object, meta: Object) -> bool:
        if self._takes_now:
            self.sent.append(("now", params, meta))
        return self._takes_now

    async def start(self, exchange: Exchange, params: Object, meta: Object) -> None:
        self.sent.append(("waited", params, meta))


class Parts:
    """A dispatch, the audit trail that it writes to, and one live session."""

    def __init__(self, *, initialized: bool = True) -> None:
        self.backend = MemoryBackend()
        clock = FakeClock()
        self.audit = Audit(self.backend.audit, clock, AuditSettings(calls=True))
        self.dispatch = Dispatch(cast("Any", None), admission_by({"s": ServerPolicy()}, self.audit)[1])
        self.live = LiveSession(a_session(clock, initialized=initialized), self.backend.events)

    def subscribe(self, server: Server) -> None:
        """The server has the subscription of the session."""
        relay = self.live.subscription_relays[server.name] = subscription_relay_for(self.live)
        relay.takes_acknowledgement()

    def call(self, method: str = "tools/call", *, era: Era = Era.LEGACY, **params: Any) -> Call:
        exchange = Exchange(method=method, client_id=1, live=self.live, replies=ReplyQueue())
        raw = {key: msgspec.Raw(encode(value)) for key, value in (params or {"name": "count"}).items()}
        return Call(exchange, era, raw, {"io.modelcontextprotocol/x": msgspec.Raw(b"1")}, "c")

    async def called(self) -> int:
        await self.audit.flush()
        return [event.event for event in await self.backend.audit.recent(100)].count("called")


def send_now(parts: Parts, server: Server, call: Call) -> bool:
    return parts.dispatch.send_now(cast("Any", server), call) is not None


async def sent_at_once(parts: Parts, server: Server, call: Call) -> None:
    assert send_now(parts, server, call)


async def sent_waiting(parts: Parts, server: Server, call: Call) -> None:
    await parts.dispatch.send(cast("Any", server), call)


async def test_a_call_over_an_open_link_is_sent_at_once() -> None:
    parts, server = Parts(), Server()
    call = parts.call()
    assert send_now(parts, server, call)
    assert server.sent == [("now", call.params, call.meta)]


@pytest.mark.parametrize(
    "server",
    [Server(era=Era.MODERN), Server(is_open=False), Server(shared=True), Server(handles=True)],
    ids=["changes to subscribe to", "no link", "shared", "handles"],
)
async def test_a_call_that_has_to_wait_is_left_as_it_was(server: Server) -> None:
    parts = Parts()
    call = parts.call()
    assert not send_now(parts, server, call)
    assert server.sent == [] and not call.exchange.watchers


async def test_a_legacy_call_is_sent_to_a_modern_server_at_once_behind_the_subscription() -> None:
    parts, server = Parts(), Server(era=Era.MODERN)
    parts.subscribe(server)
    for way in (sent_at_once, sent_waiting):
        call = parts.call()
        await way(parts, server, call)
        assert isinstance(call.exchange.bridge, ModernServerBridge)
    (now, params, meta), (waited, *sent) = server.sent
    assert (now, waited) == ("now", "waited") and [params, meta] == sent, "one body of rules"
    assert b"2026-07-28" in bytes(meta["io.modelcontextprotocol/protocolVersion"])
    assert TASKS.encode() in bytes(meta["io.modelcontextprotocol/clientCapabilities"])


async def test_a_legacy_call_waits_for_changes_where_there_are_any() -> None:
    parts, server = Parts(), Server(era=Era.MODERN)
    parts.subscribe(server)
    parts.live.subscription_relays["s"].fail(-32014, "it exited")
    assert not send_now(parts, server, parts.call()), "the subscription that has ended is made again before it"
    parts, server.declared = Parts(), {"tools": {}}
    assert send_now(parts, server, parts.call())
    assert not send_now(parts, server, parts.call("resources/subscribe", uri="x://y")), "its record changes"


async def test_a_modern_call_is_sent_to_a_legacy_server_at_once() -> None:
    parts, server = Parts(), Server()
    for way in (sent_at_once, sent_waiting):
        call = parts.call(era=Era.MODERN, name="count", requestState="s")
        await way(parts, server, call)
        assert isinstance(call.exchange.bridge, LegacyServerBridge)
        assert server.sent.pop()[1:] == ({"name": call.params["name"]}, {})
    server = Server(is_asked=True)
    assert not send_now(parts, server, parts.call(era=Era.MODERN)), "its era has to be asked for"


async def test_a_call_that_is_admitted_twice_is_audited_once() -> None:
    parts, server = Parts(), Server(takes_now=False)
    call = parts.call()
    assert not send_now(parts, server, call)
    await parts.dispatch.send(cast("Any", server), call)
    assert [way for way, _, _ in server.sent] == ["waited"]
    call.exchange.finish(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(b"{}")))
    assert await parts.called() == 1


async def test_a_legacy_server_gets_nothing_of_the_modern_era() -> None:
    parts, server = Parts(), Server()
    call = parts.call("acme/method", era=Era.MODERN, requestState="s", own=1)
    await parts.dispatch.send(cast("Any", server), call)
    assert server.sent == [("waited", {"own": call.params["own"]}, {})]
    assert call.exchange.bridge is not None


async def test_a_modern_server_is_not_asked_for_what_the_record_of_the_session_has() -> None:
    parts, server = Parts(initialized=False), Server(era=Era.MODERN)
    call = parts.call("logging/setLevel", level="debug")
    await parts.dispatch.send(cast("Any", server), call)
    assert server.sent == [] and call.exchange.is_over
