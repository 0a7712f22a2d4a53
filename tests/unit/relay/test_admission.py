"""What policy lets through to a server: one decision, made at once or once the lists it needs were asked for."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gateway.calls.call import Call
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.config.upstreams import ItemSettings, ToolSettings
from gateway.policy.decisions import ServerPolicy
from gateway.protocol.listing import Names, Tools
from gateway.protocol.methods import METHODS, Method
from gateway.relay.admission import Admission
from gateway.relay.admitted_tool import AdmittedTool
from session_store import Context
from session_store.memory import MemoryBackend
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.support.paged_server import a_call, admission_by
from transports.era import Era
from transports.inbound_port import Refused
from transports.reply_queue import ReplyQueue
from transports.turns import at_once
from transports.upstream_port import UpstreamUnavailable

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


class Server:
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


def call(method: str, **params: Any) -> Call:
    return a_call(method, trust="sandboxed", **params)


DROP = {"name": "drop", "inputSchema": {"type": "object", "properties": {"where": {"type": "string"}}}}
SECRET = {"secret*": ItemSettings(direct_only=True)}


def test_where_nothing_is_restricted_nothing_is_asked_for() -> None:
    server, unknown = cast("Any", Server(Inventory())), call("acme/unknown")
    for wanted in (call("prompts/get", name="anything"), unknown):
        assert admission().admit_now(server, CONVERSATION, wanted) is wanted.params
    with pytest.raises(Refused, match="acme/unknown"):
        admission(prompts=SECRET).admit_now(server, CONVERSATION, unknown)


def test_both_ways_make_the_same_decision() -> None:
    rules = admission(prompts=SECRET)
    inventory = Inventory(prompts=Names({"open", "secret"}))
    server = cast("Any", Server(inventory))
    wanted = call("prompts/get", name="open")
    assert rules.admit_now(server, CONVERSATION, wanted) is None and inventory.asked == []
    assert asyncio.run(rules.admit(server, wanted)) is wanted.params and inventory.asked == ["prompts/list"]
    assert rules.admit_now(server, CONVERSATION, wanted) is wanted.params
    for name in ("secret", "missing"):
        with pytest.raises(Refused):
            asyncio.run(rules.admit(server, call("prompts/get", name=name)))
    with pytest.raises(Refused):
        rules.admit_now(server, CONVERSATION, call("prompts/get", name="secret"))


def test_a_resource_that_is_not_listed_has_to_be_of_a_listed_template() -> None:
    rules = admission(resources={"db://secret/*": ItemSettings(direct_only=True)})
    inventory = Inventory(resources=Names({"file:///a"}), resources_templates=Names({"db://{table}/{id}"}))
    server = cast("Any", Server(inventory))
    wanted = call("resources/read", uri="db://t/1")
    assert asyncio.run(rules.admit(server, wanted)) is wanted.params
    assert inventory.asked == ["resources/list", "resources/templates/list"]
    for uri in ("db://secret/1", "web://t/1"):
        with pytest.raises(Refused):
            asyncio.run(rules.admit(server, call("resources/read", uri=uri)))


@requirement("wall.decoded", "pol.late-patterns")
@pytest.mark.parametrize("method", ["resources/read", "resources/subscribe", "subscriptions/listen", "prompts/get"])
def test_the_patterns_of_a_server_that_came_late_are_compared_before_it_serves_what_they_protect(method: str) -> None:
    rules = admission(prompts=SECRET, resources={"db://secret/*": ItemSettings(direct_only=True)})
    inventory = Inventory(
        prompts=Names({"open"}), resources=Names({"file:///a"}), resources_templates=Names({"db://{table}/{id}"})
    )
    late = Server(inventory)
    late.settings = SimpleNamespace(handles=False, prompts={"secrt*": None}, resource_uris={"db:/secret/*": None})
    late.unreviewed = {"prompts", "resources"}
    server = cast("Any", late)
    wanted = call(method, name="open", uri="file:///a", notifications={"resourceSubscriptions": ["file:///a"]})
    for _ in range(2):
        with pytest.raises(UpstreamUnavailable, match="its policy names"):
            asyncio.run(rules.admit(server, wanted))
    late.settings = SimpleNamespace(handles=False, prompts={"op*": None}, resource_uris={"db://*": None})
    asyncio.run(rules.admit(server, wanted))
    assert late.unreviewed == {"resources" if method == "prompts/get" else "prompts"}, "and compared no more"


def test_a_completion_is_decided_on_as_what_it_belongs_to() -> None:
    rules = admission(prompts=SECRET)
    server = cast("Any", Server(Inventory(prompts=Names({"open", "secret"}))))
    asyncio.run(rules.admit(server, call("completion/complete", ref={"type": "ref/prompt", "name": "open"})))
    with pytest.raises(Refused):
        asyncio.run(rules.admit(server, call("completion/complete", ref={"type": "ref/prompt", "name": "secret"})))
    with pytest.raises(Refused, match=r"params\.ref"):
        asyncio.run(rules.admit(server, call("completion/complete", ref={})))


@requirement("wall.authority")
def test_bound_arguments_are_facts_of_the_request_and_not_of_another_one_in_the_session() -> None:
    inventory = Inventory()
    inventory.known_lists["tools/list"] = cast("Any", Tools([DROP]))
    server = cast("Any", Server(inventory))
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
        assert admission().admit_now(cast("Any", Server(inventory)), CONVERSATION, wanted) is not None
        assert wanted.exchange.is_listed == is_listed


def test_a_subscription_is_left_with_the_resources_that_the_session_may_see() -> None:
    rules = admission(resources={"db://secret/*": ItemSettings(direct_only=True)})
    wanted = call("subscriptions/listen", notifications={"resourceSubscriptions": ["db://secret/1", "db://t/1"]})
    params = rules.admit_now(cast("Any", Server(Inventory())), CONVERSATION, wanted)
    assert isinstance(params, dict)
    assert msgspec.json.decode(params["notifications"]) == {"resourceSubscriptions": ["db://t/1"]}


def test_a_request_that_names_a_tool_and_is_no_call_is_decided_on_as_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Method("tools/describe", frozenset({"legacy"}), "tools", named="name")
    monkeypatch.setattr("gateway.relay.admission.METHODS", {**METHODS, row.name: row})
    rules = admission(tools={"secret*": ToolSettings(direct_only=True)})
    server = cast("Any", Server(Inventory(tools=cast("Any", Tools([{"name": "open"}, {"name": "secret"}])))))
    server.facts = lambda: None
    wanted, hidden = call(row.name, name="open"), call(row.name, name="secret")
    assert asyncio.run(rules.admit(server, wanted)) is wanted.params
    with pytest.raises(Refused, match="secret"):
        asyncio.run(rules.admit(server, hidden))
