"""A call is sent to its server: at once where nothing has to be waited for, else once everything is known."""

import asyncio
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
from gateway.config.upstreams import ItemSettings, ToolSettings
from gateway.observability.audit import Audit
from gateway.policy.decisions import ServerPolicy
from gateway.protocol.listing import Names, Tools
from gateway.protocol.methods import METHODS, Method
from gateway.protocol.tasks import TASKS
from gateway.relay.admission import Admission
from gateway.relay.admitted_tool import AdmittedTool
from gateway.relay.dispatch import Dispatch
from gateway.upstreams.result_cache import ResultCache
from session_store import Context
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.paged_server import OneServer, a_call, admission_by
from transports.era import Era
from transports.inbound_port import Refused
from transports.jsonrpc import Message, Object, encode
from transports.reply_queue import ReplyQueue
from transports.turns import at_once
from transports.upstream_port import UpstreamUnavailable

pytestmark = pytest.mark.anyio

TOOLS = Tools([{"name": "count"}])


class Server(OneServer):
    """A server with one tool, and its conversation. `takes_now`: whether its open link takes a message."""

    users = ()
    known_lists = None
    initialize_result = None
    notifies = True

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

    async def facts(self) -> None: ...

    def is_asked_by(self, live: LiveSession) -> bool:
        return self._is_asked

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


CONVERSATION = cast("Any", object())


class Inventory:
    """Knows what it was asked for before."""

    def __init__(self, **lists: Names) -> None:
        self._lists = {name.replace("_", "/") + "/list": names for name, names in lists.items()}
        self.known_lists: dict[str, Names] = {}
        self.asked: list[str] = []

    def known(self, method: str, conversation: object) -> Names | None:
        return self.known_lists.get(method) if conversation is CONVERSATION else None

    async def listed(self, method: str, conversation: object, name: str) -> Names:
        self.asked.append(method)
        self.known_lists[method] = self._lists[method]
        return self._lists[method]


class Listing:
    name = "s"

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.settings = SimpleNamespace(handles=False)
        self.unreviewed: set[str] = set()

    def mark_reviewed(self, kind: str) -> None:
        self.unreviewed.remove(kind)

    async def conversation_for(self, call: Call) -> object:
        return CONVERSATION


def admission(**rules: Any) -> Admission:
    return admission_by({"s": ServerPolicy(**rules)})[1]


def asked(method: str, **params: Any) -> Call:
    return a_call(method, trust="sandboxed", **params)


DROP = {"name": "drop", "inputSchema": {"type": "object", "properties": {"where": {"type": "string"}}}}
SECRET = {"secret*": ItemSettings(direct_only=True)}


def test_where_nothing_is_restricted_nothing_is_asked_for() -> None:
    server, unknown = cast("Any", Listing(Inventory())), asked("acme/unknown")
    for wanted in (asked("prompts/get", name="anything"), unknown):
        assert admission().admit_now(server, CONVERSATION, wanted) is wanted.params
    with pytest.raises(Refused, match="acme/unknown"):
        admission(prompts=SECRET).admit_now(server, CONVERSATION, unknown)


def test_both_ways_make_the_same_decision() -> None:
    rules = admission(prompts=SECRET)
    inventory = Inventory(prompts=Names({"open", "secret"}))
    server = cast("Any", Listing(inventory))
    wanted = asked("prompts/get", name="open")
    assert rules.admit_now(server, CONVERSATION, wanted) is None and inventory.asked == []
    assert asyncio.run(rules.admit(server, wanted)) is wanted.params and inventory.asked == ["prompts/list"]
    assert rules.admit_now(server, CONVERSATION, wanted) is wanted.params
    for name in ("secret", "missing"):
        with pytest.raises(Refused):
            asyncio.run(rules.admit(server, asked("prompts/get", name=name)))
    with pytest.raises(Refused):
        rules.admit_now(server, CONVERSATION, asked("prompts/get", name="secret"))


def test_a_resource_that_is_not_listed_has_to_be_of_a_listed_template() -> None:
    rules = admission(resources={"db://secret/*": ItemSettings(direct_only=True)})
    inventory = Inventory(resources=Names({"file:///a"}), resources_templates=Names({"db://{table}/{id}"}))
    server = cast("Any", Listing(inventory))
    wanted = asked("resources/read", uri="db://t/1")
    assert asyncio.run(rules.admit(server, wanted)) is wanted.params
    assert inventory.asked == ["resources/list", "resources/templates/list"]
    for uri in ("db://secret/1", "web://t/1"):
        with pytest.raises(Refused):
            asyncio.run(rules.admit(server, asked("resources/read", uri=uri)))


@requirement("wall.decoded", "pol.late-patterns")
@pytest.mark.parametrize("method", ["resources/read", "resources/subscribe", "subscriptions/listen", "prompts/get"])
def test_the_patterns_of_a_server_that_came_late_are_compared_before_it_serves_what_they_protect(method: str) -> None:
    rules = admission(prompts=SECRET, resources={"db://secret/*": ItemSettings(direct_only=True)})
    inventory = Inventory(
        prompts=Names({"open"}), resources=Names({"file:///a"}), resources_templates=Names({"db://{table}/{id}"})
    )
    late = Listing(inventory)
    late.settings = SimpleNamespace(handles=False, prompts={"secrt*": None}, resource_uris={"db:/secret/*": None})
    late.unreviewed = {"prompts", "resources"}
    server = cast("Any", late)
    wanted = asked(method, name="open", uri="file:///a", notifications={"resourceSubscriptions": ["file:///a"]})
    for _ in range(2):
        with pytest.raises(UpstreamUnavailable, match="its policy names"):
            asyncio.run(rules.admit(server, wanted))
    late.settings = SimpleNamespace(handles=False, prompts={"op*": None}, resource_uris={"db://*": None})
    asyncio.run(rules.admit(server, wanted))
    assert late.unreviewed == {"resources" if method == "prompts/get" else "prompts"}, "and compared no more"


def test_a_completion_is_decided_on_as_what_it_belongs_to() -> None:
    rules = admission(prompts=SECRET)
    server = cast("Any", Listing(Inventory(prompts=Names({"open", "secret"}))))
    asyncio.run(rules.admit(server, asked("completion/complete", ref={"type": "ref/prompt", "name": "open"})))
    with pytest.raises(Refused):
        asyncio.run(rules.admit(server, asked("completion/complete", ref={"type": "ref/prompt", "name": "secret"})))
    with pytest.raises(Refused, match=r"params\.ref"):
        asyncio.run(rules.admit(server, asked("completion/complete", ref={})))


@requirement("wall.authority")
def test_bound_arguments_are_facts_of_the_request_and_not_of_another_one_in_the_session() -> None:
    inventory = Inventory()
    inventory.known_lists["tools/list"] = cast("Any", Tools([DROP]))
    server = cast("Any", Listing(inventory))
    live = LiveSession(a_session(FakeClock(), context=Context(workspace="red")), MemoryBackend().events)
    own = Context(workspace="blue")
    exchange = Exchange(method="tools/call", client_id=1, live=live, replies=ReplyQueue(), context=own)
    wanted = Call(exchange, Era.LEGACY, {"name": msgspec.Raw(b'"drop"')}, {}, "c")
    rules = admission(tools={"drop": ToolSettings(bind={"where": "workspace"})})
    admitted = rules.admit_now(server, CONVERSATION, wanted)
    assert isinstance(admitted, AdmittedTool)
    params = admitted.params(wanted)
    assert not isinstance(params, dict) and msgspec.json.decode(at_once(params)["arguments"]) == {"where": "blue"}


@requirement("ops.history")
def test_a_tool_that_the_server_does_not_list_is_counted_as_such() -> None:
    inventory = Inventory()
    inventory.known_lists["tools/list"] = cast("Any", Tools([DROP]))
    for name, is_listed in (("drop", True), ("other", False)):
        wanted = a_call("tools/call", live=LiveSession(a_session(FakeClock()), MemoryBackend().events), name=name)
        assert admission().admit_now(cast("Any", Listing(inventory)), CONVERSATION, wanted) is not None
        assert wanted.exchange.is_listed == is_listed


def test_a_subscription_is_left_with_the_resources_that_the_session_may_see() -> None:
    rules = admission(resources={"db://secret/*": ItemSettings(direct_only=True)})
    wanted = asked("subscriptions/listen", notifications={"resourceSubscriptions": ["db://secret/1", "db://t/1"]})
    params = rules.admit_now(cast("Any", Listing(Inventory())), CONVERSATION, wanted)
    assert isinstance(params, dict)
    assert msgspec.json.decode(params["notifications"]) == {"resourceSubscriptions": ["db://t/1"]}


def test_a_request_that_names_a_tool_and_is_no_call_is_decided_on_as_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Method("tools/describe", frozenset({"legacy"}), "tools", named="name")
    monkeypatch.setattr("gateway.relay.admission.METHODS", {**METHODS, row.name: row})
    rules = admission(tools={"secret*": ToolSettings(direct_only=True)})
    server = cast("Any", Listing(Inventory(tools=cast("Any", Tools([{"name": "open"}, {"name": "secret"}])))))
    server.facts = lambda: None
    wanted, hidden = asked(row.name, name="open"), asked(row.name, name="secret")
    assert asyncio.run(rules.admit(server, wanted)) is wanted.params
    with pytest.raises(Refused, match="secret"):
        asyncio.run(rules.admit(server, hidden))
