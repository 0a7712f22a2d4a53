"""A call is sent to its server once everything is known."""

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
from gateway.relay.admission import AdmittedTool, Route
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
    """A server with one tool, and its conversation."""

    users = ()
    known_lists = None
    initialize_result = None
    notifies = True

    def __init__(self, *, era: Era = Era.LEGACY, is_open: bool = True, **settings: Any) -> None:
        self.era = era
        self.settings = SimpleNamespace(**({"shared": False, "handles": False} | settings))
        self.inventory = SimpleNamespace(
            known=lambda method, conversation: TOOLS, results=ResultCache(1 << 20), refresh=dict
        )
        self.unreviewed: set[str] = set()
        self.sent: list[tuple[Object, Object]] = []
        self._is_open = is_open
        self._is_asked = bool(settings.get("is_asked"))

    async def facts(self) -> None: ...

    def is_asked_by(self, live: LiveSession) -> bool:
        return self._is_asked

    def is_open_to(self, live: LiveSession | None) -> bool:
        return self._is_open

    async def start(self, exchange: Exchange, params: Object, meta: Object) -> None:
        self.sent.append((params, meta))


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

    async def send(self, server: Server, call: Call) -> Route | None:
        return await self.dispatch.send(cast("Any", server), call)


async def test_how_a_call_of_a_tool_was_sent_is_known_unless_its_server_is_shared() -> None:
    parts, server = Parts(), Server()
    call = parts.call()
    route = await parts.send(server, call)
    assert server.sent == [(call.params, call.meta)]
    assert route is not None and route.held_conversation is cast("Any", server) and route.named is None
    assert await parts.send(Server(shared=True), parts.call()) is None


async def test_a_legacy_call_is_sent_to_a_modern_server_behind_the_subscription() -> None:
    parts, server = Parts(), Server(era=Era.MODERN)
    parts.subscribe(server)
    call = parts.call()
    assert await parts.send(server, call) is not None
    assert isinstance(call.exchange.bridge, ModernServerBridge)
    ((_, meta),) = server.sent
    assert b"2026-07-28" in bytes(meta["io.modelcontextprotocol/protocolVersion"])
    assert TASKS.encode() in bytes(meta["io.modelcontextprotocol/clientCapabilities"])


async def test_a_path_between_eras_is_not_taken_while_its_server_has_to_be_asked_first() -> None:
    parts, server = Parts(), Server(era=Era.MODERN)
    parts.subscribe(server)
    route = await parts.send(server, parts.call())
    assert route is not None
    waits = parts.dispatch.waits(route, parts.call())
    assert waits is not None and not waits()
    parts.live.subscription_relays["s"].fail(-32014, "it exited")
    assert waits(), "the subscription that has ended is made again before it"
    server._is_asked = True
    assert waits(), "its era has to be asked for"
    assert parts.dispatch.waits(route, parts.call(era=Era.MODERN)) is None


@pytest.mark.parametrize("method", ["tools/call", "acme/method"])
async def test_a_legacy_server_gets_nothing_of_the_modern_era(method: str) -> None:
    parts, server = Parts(), Server()
    call = parts.call(method, era=Era.MODERN, name="count", requestState="s")
    await parts.send(server, call)
    assert isinstance(call.exchange.bridge, LegacyServerBridge)
    assert server.sent == [({"name": call.params["name"]}, {})]


async def test_a_call_is_audited_once() -> None:
    parts, server = Parts(), Server()
    call = parts.call()
    await parts.send(server, call)
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

    def ask(self, call: Call) -> Any:
        return asyncio.run(self._admission.admit(cast("Any", self), call))


def asked(method: str, **params: Any) -> Call:
    return a_call(method, trust="sandboxed", **params)


DROP = {"name": "drop", "inputSchema": {"type": "object", "properties": {"where": {"type": "string"}}}}
SECRET = {"secret*": ItemSettings(direct_only=True)}
SECRET_ROWS = {"db://secret/*": ItemSettings(direct_only=True)}


def test_where_nothing_is_restricted_nothing_is_asked_for() -> None:
    unknown = asked("acme/unknown")
    for wanted in (asked("prompts/get", name="anything"), unknown):
        assert Listing().ask(wanted) is wanted.params
    with pytest.raises(Refused, match="acme/unknown"):
        Listing(prompts=SECRET).ask(unknown)


def test_the_list_that_a_decision_lacks_is_requested_once_and_again_for_a_name_that_it_has_not() -> None:
    server, live = Listing(prompts=SECRET), a_live()
    wanted = a_call("prompts/get", live=live, trust="sandboxed", name="open")
    for _ in range(2):
        assert server.ask(wanted) is wanted.params and server.inventory.asked == ["prompts/list"]
    for name, lists in (("secret", 1), ("missing", 2)):
        with pytest.raises(Refused):
            server.ask(a_call("prompts/get", live=live, trust="sandboxed", name=name))
        assert len(server.inventory.asked) == lists, "the list may have changed"


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
    admitted = server.ask(wanted)
    assert isinstance(admitted, AdmittedTool)
    params = admitted.params(wanted)
    assert not isinstance(params, dict) and msgspec.json.decode(at_once(params)["arguments"]) == {"where": "blue"}


@requirement("ops.history")
def test_a_tool_that_the_server_does_not_list_is_counted_as_such() -> None:
    server = Listing()
    server.inventory.asked.append("tools/list")
    for name, is_listed in (("drop", True), ("other", False)):
        wanted = a_call("tools/call", live=a_live(), name=name)
        admitted = server.ask(wanted)
        assert isinstance(admitted, AdmittedTool)
        admitted.begins(wanted.exchange)
        assert wanted.exchange.is_listed == admitted.is_listed == is_listed


def test_a_subscription_is_left_with_the_resources_that_the_session_may_see() -> None:
    wanted = asked("subscriptions/listen", notifications={"resourceSubscriptions": ["db://secret/1", "db://t/1"]})
    params = Listing(resources=SECRET_ROWS).ask(wanted)
    assert isinstance(params, dict)
    assert msgspec.json.decode(params["notifications"]) == {"resourceSubscriptions": ["db://t/1"]}


def test_a_request_that_names_a_tool_and_is_no_call_is_decided_on_as_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Method("tools/describe", frozenset({"legacy"}), "tools", named="name")
    monkeypatch.setattr("gateway.relay.admission.METHODS", {**METHODS, row.name: row})
    server, wanted = Listing(tools={"secret*": ToolSettings(direct_only=True)}), asked(row.name, name="drop")
    assert server.ask(wanted) is wanted.params
    with pytest.raises(Refused, match="secret"):
        server.ask(asked(row.name, name="secret"))
