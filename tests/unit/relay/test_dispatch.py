"""A call is sent to its server: at once where nothing has to be waited for, else once everything is known."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from gateway.bridge.legacy_server import LegacyServerBridge
from gateway.bridge.modern_server import ModernServerBridge
from gateway.bridge.subscription_relay import subscription_relay_for
from gateway.calls.call import Call
from gateway.calls.exchange import Exchange
from gateway.calls.lists import Listed
from gateway.calls.live_session import LiveSession
from gateway.config.auth import AuditSettings
from gateway.config.upstreams import ItemSettings, ToolSettings
from gateway.observability.audit import Audit
from gateway.policy.decisions import ServerPolicy
from gateway.protocol.listing import Names, Tools
from gateway.protocol.methods import METHODS, Method
from gateway.protocol.tasks import TASKS
from gateway.relay.admitted_tool import AdmittedTool
from gateway.relay.dispatch import Dispatch
from gateway.upstreams.result_cache import ResultCache
from session_store import Context
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock
from tests.requirements import requirement
from tests.support.paged_server import OneServer, a_call, admission_by
from tests.unit.relay.parts import a_live, a_tool_call
from transports.era import Era
from transports.inbound_port import Refused
from transports.jsonrpc import Message, Object
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

    async def facts(self) -> None: ...

    def is_asked_by(self, live: LiveSession) -> bool:
        return self._is_asked

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
        self.audit = Audit(self.backend.audit, FakeClock(), AuditSettings(calls=True))
        self.dispatch = Dispatch(cast("Any", None), admission_by({"s": ServerPolicy()}, self.audit)[1])
        self.live = a_live(initialized=initialized)

    def subscribe(self, server: Server) -> None:
        """The server has the subscription of the session."""
        relay = self.live.subscription_relays[server.name] = subscription_relay_for(self.live)
        relay.takes_acknowledgement()

    def call(self, method: str = "tools/call", *, era: Era = Era.LEGACY, **params: Any) -> Call:
        call = a_call(method, live=self.live, **(params or {"name": "count"}))
        return replace(call, era=era, meta={"io.modelcontextprotocol/x": msgspec.Raw(b"1")})

    def send_now(self, server: Server, call: Call) -> bool:
        return self.dispatch.send_now(cast("Any", server), call) is not None

    async def send(self, server: Server, call: Call) -> None:
        await self.dispatch.send(cast("Any", server), call)

    async def send_both_ways(self, server: Server, *calls: Call) -> None:
        """Send the first call at once, and the second as one that has to wait."""
        now, waiting = calls
        assert self.send_now(server, now)
        await self.send(server, waiting)
        assert [way for way, *_ in server.sent] == ["now", "waited"]


async def test_a_call_over_an_open_link_is_sent_at_once_unless_it_asks_for_a_list() -> None:
    parts, server = Parts(), Server()
    call = parts.call()
    assert parts.send_now(server, call)
    assert server.sent == [("now", call.params, call.meta)]
    assert not parts.send_now(server, parts.call("tools/list")), "its result may be kept"


@pytest.mark.parametrize(
    "server",
    [Server(era=Era.MODERN), Server(is_open=False), Server(shared=True), Server(handles=True)],
    ids=["changes to subscribe to", "no link", "shared", "handles"],
)
async def test_a_call_that_has_to_wait_is_left_as_it_was(server: Server) -> None:
    parts = Parts()
    call = parts.call()
    assert not parts.send_now(server, call)
    assert server.sent == [] and not call.exchange.watchers


async def test_a_legacy_call_is_sent_to_a_modern_server_at_once_behind_the_subscription() -> None:
    parts, server = Parts(), Server(era=Era.MODERN)
    parts.subscribe(server)
    calls = parts.call(), parts.call()
    await parts.send_both_ways(server, *calls)
    assert all(isinstance(call.exchange.bridge, ModernServerBridge) for call in calls)
    (_, params, meta), (_, *waited) = server.sent
    assert [params, meta] == waited, "one body of rules"
    assert b"2026-07-28" in bytes(meta["io.modelcontextprotocol/protocolVersion"])
    assert TASKS.encode() in bytes(meta["io.modelcontextprotocol/clientCapabilities"])


async def test_a_call_between_eras_waits_for_what_its_server_has_to_be_asked_first() -> None:
    parts, server = Parts(), Server(era=Era.MODERN)
    parts.subscribe(server)
    parts.live.subscription_relays["s"].fail(-32014, "it exited")
    assert not parts.send_now(server, parts.call()), "the subscription that has ended is made again before it"
    parts, server.declared = Parts(), {"tools": {}}
    assert parts.send_now(server, parts.call())
    assert not parts.send_now(server, parts.call("resources/subscribe", uri="x://y")), "its record changes"
    assert not parts.send_now(Server(is_asked=True), parts.call(era=Era.MODERN)), "its era has to be asked for"


@pytest.mark.parametrize("method", ["tools/call", "acme/method"])
async def test_a_legacy_server_gets_nothing_of_the_modern_era(method: str) -> None:
    parts, server = Parts(), Server()
    calls = [parts.call(method, era=Era.MODERN, name="count", requestState="s") for _ in range(2)]
    await parts.send_both_ways(server, *calls)
    assert all(isinstance(call.exchange.bridge, LegacyServerBridge) for call in calls)
    assert [sent for _, *sent in server.sent] == [[{"name": call.params["name"]}, {}] for call in calls]


async def test_a_call_that_is_admitted_twice_is_audited_once() -> None:
    parts, server = Parts(), Server(takes_now=False)
    call = parts.call()
    assert not parts.send_now(server, call)
    await parts.send(server, call)
    assert [way for way, *_ in server.sent] == ["waited"]
    call.exchange.finish(Message(jsonrpc="2.0", id=0, result=msgspec.Raw(b"{}")))
    await parts.audit.flush()
    assert [event.event for event in await parts.backend.audit.recent(100)].count("called") == 1


async def test_a_modern_server_is_not_asked_for_what_the_record_of_the_session_has() -> None:
    parts, server = Parts(initialized=False), Server(era=Era.MODERN)
    call = parts.call("logging/setLevel", level="debug")
    await parts.send(server, call)
    assert server.sent == [] and call.exchange.is_over


class Inventory:
    """`lists` are those of the server, `asked` has the requests for them. It knows what was asked for before."""

    def __init__(self, lists: dict[str, Listed]) -> None:
        self._lists = lists
        self.asked: list[str] = []

    def known(self, method: str, conversation: object) -> Listed | None:
        return None if conversation is None or method not in self.asked else self._lists[method]

    async def listed(self, method: str, conversation: object, name: str) -> Listed:
        self.asked.append(method)
        return self._lists[method]


class Listing(OneServer):
    """A server with these lists. `decide` knows only those that were asked for before, and `ask` asks for others."""

    def __init__(self, **rules: Any) -> None:
        self.inventory = Inventory(
            {
                "tools/list": Tools([DROP, {"name": "secret"}]),
                "prompts/list": Names({"open", "secret"}),
                "resources/list": Names({"file:///a"}),
                "resources/templates/list": Names({"db://{table}/{id}"}),
            }
        )
        self.unreviewed: set[str] = set()
        self._admission = admission_by({"s": ServerPolicy(**rules)})[1]

    async def facts(self) -> None: ...

    def mark_reviewed(self, kind: str) -> None:
        self.unreviewed.remove(kind)

    def decide(self, call: Call) -> Any:
        return self._admission.admit_now(cast("Any", self), cast("Any", self), call)

    def ask(self, call: Call) -> Object:
        return asyncio.run(self._admission.admit(cast("Any", self), call))


def asked(method: str, **params: Any) -> Call:
    return a_call(method, trust="sandboxed", **params)


DROP = {"name": "drop", "inputSchema": {"type": "object", "properties": {"where": {"type": "string"}}}}
SECRET = {"secret*": ItemSettings(direct_only=True)}
SECRET_ROWS = {"db://secret/*": ItemSettings(direct_only=True)}


def test_where_nothing_is_restricted_nothing_is_asked_for() -> None:
    unknown = asked("acme/unknown")
    for wanted in (asked("prompts/get", name="anything"), unknown):
        assert Listing().decide(wanted) is wanted.params
    with pytest.raises(Refused, match="acme/unknown"):
        Listing(prompts=SECRET).decide(unknown)


def test_both_ways_make_the_same_decision() -> None:
    server, wanted = Listing(prompts=SECRET), asked("prompts/get", name="open")
    assert server.decide(wanted) is None and server.inventory.asked == []
    assert server.ask(wanted) is wanted.params and server.inventory.asked == ["prompts/list"]
    assert server.decide(wanted) is wanted.params
    assert server.decide(asked("prompts/get", name="missing")) is None, "the list may have changed"
    for name in ("secret", "missing"):
        with pytest.raises(Refused):
            server.ask(asked("prompts/get", name=name))
    with pytest.raises(Refused):
        server.decide(asked("prompts/get", name="secret"))


def test_a_resource_that_is_not_listed_has_to_be_of_a_listed_template() -> None:
    server, wanted = Listing(resources=SECRET_ROWS), asked("resources/read", uri="db://t/1")
    assert server.ask(wanted) is wanted.params
    assert server.inventory.asked == ["resources/list", "resources/templates/list"]
    for uri in ("db://secret/1", "web://t/1"):
        with pytest.raises(Refused):
            server.ask(asked("resources/read", uri=uri))


@requirement("wall.decoded", "pol.late-patterns")
@pytest.mark.parametrize("method", ["resources/read", "resources/subscribe", "subscriptions/listen", "prompts/get"])
def test_the_patterns_of_a_server_that_came_late_are_compared_before_it_serves_what_they_protect(method: str) -> None:
    server = Listing(prompts=SECRET, resources=SECRET_ROWS)
    server.settings = SimpleNamespace(handles=False, prompts={"secrt*": None}, resource_uris={"db:/secret/*": None})
    server.unreviewed = {"prompts", "resources"}
    wanted = asked(method, name="open", uri="file:///a", notifications={"resourceSubscriptions": ["file:///a"]})
    for _ in range(2):
        with pytest.raises(UpstreamUnavailable, match="its policy names"):
            server.ask(wanted)
    server.settings = SimpleNamespace(handles=False, prompts={"op*": None}, resource_uris={"db://*": None})
    server.ask(wanted)
    assert server.unreviewed == {"resources" if method == "prompts/get" else "prompts"}, "and compared no more"


def test_a_completion_is_decided_on_as_what_it_belongs_to() -> None:
    server = Listing(prompts=SECRET)
    server.ask(asked("completion/complete", ref={"type": "ref/prompt", "name": "open"}))
    with pytest.raises(Refused):
        server.ask(asked("completion/complete", ref={"type": "ref/prompt", "name": "secret"}))
    with pytest.raises(Refused, match=r"params\.ref"):
        server.ask(asked("completion/complete", ref={}))


@requirement("wall.authority")
def test_bound_arguments_are_facts_of_the_request_and_not_of_another_one_in_the_session() -> None:
    server = Listing(tools={"drop": ToolSettings(bind={"where": "workspace"})})
    server.inventory.asked.append("tools/list")
    exchange = a_tool_call(a_live(context=Context(workspace="red")), context=Context(workspace="blue"))
    wanted = Call(exchange, Era.LEGACY, {"name": msgspec.Raw(b'"drop"')}, {}, "c")
    admitted = server.decide(wanted)
    assert isinstance(admitted, AdmittedTool)
    params = admitted.params(wanted)
    assert not isinstance(params, dict) and msgspec.json.decode(at_once(params)["arguments"]) == {"where": "blue"}


@requirement("ops.history")
def test_a_tool_that_the_server_does_not_list_is_counted_as_such() -> None:
    server = Listing()
    server.inventory.asked.append("tools/list")
    for name, is_listed in (("drop", True), ("other", False)):
        wanted = a_call("tools/call", live=a_live(), name=name)
        admitted = server.decide(wanted)
        assert isinstance(admitted, AdmittedTool)
        admitted.begins(wanted.exchange)
        assert wanted.exchange.is_listed == admitted.is_listed == is_listed


def test_a_subscription_is_left_with_the_resources_that_the_session_may_see() -> None:
    wanted = asked("subscriptions/listen", notifications={"resourceSubscriptions": ["db://secret/1", "db://t/1"]})
    params = Listing(resources=SECRET_ROWS).decide(wanted)
    assert isinstance(params, dict)
    assert msgspec.json.decode(params["notifications"]) == {"resourceSubscriptions": ["db://t/1"]}


def test_a_request_that_names_a_tool_and_is_no_call_is_decided_on_as_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Method("tools/describe", frozenset({"legacy"}), "tools", named="name")
    monkeypatch.setattr("gateway.relay.admission.METHODS", {**METHODS, row.name: row})
    server, wanted = Listing(tools={"secret*": ToolSettings(direct_only=True)}), asked(row.name, name="drop")
    assert server.ask(wanted) is wanted.params
    with pytest.raises(Refused, match="secret"):
        server.ask(asked(row.name, name="secret"))
