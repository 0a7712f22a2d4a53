"""Policy decides on a request once it has the lists that the decision needs."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gateway.calls.client_request import Call
from gateway.calls.received_lists import Listed
from gateway.config.upstreams import ItemSettings, ToolSettings
from gateway.protocol.item_digests import form_of
from gateway.protocol.merged_lists import Names, Tools
from gateway.protocol.methods import METHODS, Method
from gateway.protocol.shown_tool_hashes import NOTHING
from gateway.relay.policy_admission import AdmittedTool
from session_store import Context
from tests.requirements import requirement
from tests.support.paged_server import OneServer, a_call, admission_by, ruled
from tests.unit.relay.parts import a_live, a_tool_call
from transports.era import Era
from transports.inbound_port import Refused
from transports.upstream_port import UpstreamUnavailable
from transports.work_steps import run_steps


class ServerLists:
    """`lists` are those of the server, `asked` has the requests for them. It knows what was asked for before."""

    def __init__(self, lists: dict[str, Listed]) -> None:
        self._lists = lists
        self.asked: list[str] = []

    def known(self, method: str, conversation: object) -> Listed | None:
        return None if conversation is None or method not in self.asked else self._lists[method]

    async def listed(self, method: str, conversation: object, name: str) -> Listed:
        self.asked.append(method)
        return self._lists[method]

    async def refresh(self, method: str, conversation: object) -> Listed:
        return await self.listed(method, conversation, "")


class Listing(OneServer):
    """A server with these lists. `decide` knows only those that were asked for before, and `ask` asks for others."""

    known_lists: Any = None

    def __init__(self, **rules: Any) -> None:
        self.server_lists = ServerLists(
            {
                "tools/list": Tools([DROP, {"name": "secret"}]),
                "prompts/list": Names({"open", "secret"}),
                "resources/list": Names({"file:///a"}),
                "resources/templates/list": Names({"db://{table}/{id}"}),
            }
        )
        self.unreviewed: set[str] = set()
        self._admission = admission_by({"s": ruled(**rules)})[1]

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
        assert server.ask(wanted) is wanted.params and server.server_lists.asked == ["prompts/list"]
    for name, lists in (("secret", 1), ("missing", 2)):
        with pytest.raises(Refused):
            server.ask(a_call("prompts/get", live=live, trust="sandboxed", name=name))
        assert len(server.server_lists.asked) == lists, "the list may have changed"


def test_a_resource_that_is_not_listed_has_to_be_of_a_listed_template_to_be_read_or_subscribed_to() -> None:
    server, wanted = Listing(resource_uris=SECRET_ROWS), asked("resources/read", uri="db://t/1")
    assert server.ask(wanted) is wanted.params
    assert server.server_lists.asked == ["resources/list", "resources/templates/list"]
    for uri in ("db://secret/1", "web://t/1"):
        with pytest.raises(Refused):
            server.ask(asked("resources/read", uri=uri))
    wanted = asked("subscriptions/listen", notifications={"resourceSubscriptions": ["db://secret/1", "db://t/1"]})
    params = server.ask(wanted)
    assert isinstance(params, dict)
    assert msgspec.json.decode(params["notifications"]) == {"resourceSubscriptions": ["db://t/1"]}


@requirement("wall.decoded", "pol.late-patterns")
@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("tools/call", "tools"),
        ("prompts/get", "prompts"),
        *((method, "resources") for method in ("resources/read", "resources/subscribe", "subscriptions/listen")),
    ],
)
def test_the_patterns_of_a_server_that_came_late_are_compared_before_it_serves_what_they_protect(
    method: str, kind: str
) -> None:
    def late(tool: str, prompt: str, uri: str) -> Listing:
        server = Listing(prompts=SECRET, resource_uris=SECRET_ROWS, tools={"drop": ToolSettings(operation="write")})
        patterns = {"tools": {tool: None}, "prompts": {prompt: None}, "resource_uris": {uri: None}}
        server.settings = SimpleNamespace(handles=False, **patterns)
        server.unreviewed = {"tools", "prompts", "resources"}
        return server

    misspelt, right = late("dorp", "secrt*", "db:/secret/*"), late("dr*", "op*", "db://*")
    names = {"name": "drop" if kind == "tools" else "open", "uri": "file:///a"}
    wanted = a_call(
        method, live=a_live(), trust="sandboxed", **names, notifications={"resourceSubscriptions": ["file:///a"]}
    )
    for _ in range(2):
        with pytest.raises(UpstreamUnavailable, match="its policy names"):
            misspelt.ask(wanted)
    right.ask(wanted)
    assert misspelt.unreviewed - right.unreviewed == {kind}, "what was compared is compared no more"


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
    server.server_lists.asked.append("tools/list")
    exchange = a_tool_call(a_live(context=Context(workspace="red")), context=Context(workspace="blue"))
    wanted = Call(exchange, Era.LEGACY, {"name": msgspec.Raw(b'"drop"')}, {}, "c")
    admitted = server.ask(wanted)
    assert isinstance(admitted, AdmittedTool)
    params = admitted.params(wanted)
    assert not isinstance(params, dict) and msgspec.json.decode(run_steps(params)["arguments"]) == {"where": "blue"}


@requirement("ops.history")
def test_a_tool_that_the_server_does_not_list_is_counted_as_such() -> None:
    server = Listing()
    server.server_lists.asked.append("tools/list")
    for name, is_listed in (("drop", True), ("other", False)):
        wanted = a_call("tools/call", live=a_live(), name=name)
        admitted = server.ask(wanted)
        assert isinstance(admitted, AdmittedTool)
        admitted.begins(wanted.exchange)
        assert wanted.exchange.is_listed == admitted.is_listed == is_listed


@requirement("live.tools-fixed")
def test_a_list_of_another_process_accuses_no_tool_that_the_session_was_shown() -> None:
    server, live = Listing(), a_live()
    server.server_lists.asked.append("tools/list")
    live.record_shown_tools(
        NOTHING.with_page("s", (("drop", form_of(DROP | {"description": "other"})), ("secret", b"0" * 20)))
    )
    admitted = server.ask(a_call("tools/call", live=live, name="drop"))
    assert isinstance(admitted, AdmittedTool) and admitted.is_changed
    assert server.server_lists.asked == ["tools/list"] * 2, "its own process was asked"
    first = Listing()
    admitted = first.ask(a_call("tools/call", live=live, name="drop"))
    assert first.server_lists.asked == ["tools/list"] * 2, "what may come from the cache does not decide, either"
    live.record_shown_tools(NOTHING.with_page("s", (("drop", form_of(DROP)),)))
    admitted = server.ask(a_call("tools/call", live=live, name="drop"))
    assert isinstance(admitted, AdmittedTool) and not admitted.is_changed
    assert len(server.server_lists.asked) == 2, "what was shown needs no other list"


def test_a_request_that_names_a_tool_and_is_no_call_is_decided_on_as_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Method("tools/describe", frozenset({"legacy"}), "tools", named="name")
    monkeypatch.setattr("gateway.relay.policy_admission.METHODS", {**METHODS, row.name: row})
    server, wanted = Listing(tools={"secret*": ToolSettings(direct_only=True)}), asked(row.name, name="drop")
    assert server.ask(wanted) is wanted.params
    with pytest.raises(Refused, match="secret"):
        server.ask(asked(row.name, name="secret"))
