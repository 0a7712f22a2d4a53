"""What an app calls by its server's own name reaches that server, or nobody."""

from typing import Any, cast

import pytest

from gateway.relay.merged_servers import MergedServers
from gateway.relay.resource_servers import OpenApps
from tests.requirements import requirement
from tests.support.paged_server import NamedSession, PagedServer, a_call, merged, ruled
from transports.inbound_port import Refused

pytestmark = requirement("ext.apps")

APP = "ui://clock/app.html"
SHOW = {"name": "show", "_meta": {"ui": {"resourceUri": APP}}}
TICK = {"name": "tick", "_meta": {"ui": {"visibility": ["app"]}}}
ADMIN = {"name": "admin", "_meta": {"ui": {"visibility": ["model"]}}}


def clock(name: str, *more: dict[str, Any]) -> PagedServer:
    read = {("resources/read", APP): {"contents": []}, ("resources/list", ""): {"resources": [{"uri": APP}]}}
    return PagedServer(name, read, probed=[SHOW, TICK, ADMIN, *more])


async def called(parts: MergedServers, tool: str, live: Any = None) -> tuple[str, bytes]:
    upstream, call = await parts.server_for(a_call("tools/call", live=live, name=tool))
    return upstream.name, bytes(call.params["name"])


async def test_an_app_calls_tools_by_the_names_of_its_server() -> None:
    plain = PagedServer("p", {}, probed=[{"name": "other"}, {"name": "tick"}])
    parts = merged(plain, clock("c"))
    assert await called(parts, "tick") == ("c", b'"tick"'), "the other server has no app"
    assert await called(parts, "c__tick") == ("c", b'"tick"')
    for hidden in ("admin", "other", "none"):
        with pytest.raises(Refused, match=f"Unknown tool: {hidden}"):
            await called(parts, hidden)
    parts = merged(clock("a"), clock("b"), policies={"a": ruled(hidden_tools=("tick",))})
    assert await called(parts, "tick") == ("b", b'"tick"'), "what policy hides makes no name ambiguous"


async def test_of_two_servers_with_one_app_the_one_that_was_called_is_meant_and_none_is_guessed() -> None:
    parts, live = merged(clock("a"), clock("b", {"name": "more"})), cast("Any", NamedSession())
    assert await called(parts, "more", live) == ("b", b'"more"')
    await parts.resources.find(APP, a_call("resources/read", live=live, uri=APP))
    with pytest.raises(Refused, match="call a__tick or b__tick"):
        await called(parts, "tick", live)
    await called(parts, "b__show", live)
    assert await called(parts, "tick", live) == ("b", b'"tick"')
    await called(parts, "a__show", live)
    with pytest.raises(Refused, match="call a__tick or b__tick"):
        await called(parts, "tick", live)
    with pytest.raises(Refused, match="call a__tick or b__tick"):
        await called(parts, "tick", cast("Any", NamedSession()))


async def test_of_two_servers_with_different_apps_the_one_whose_app_was_read_is_meant() -> None:
    other = [{"name": "show", "_meta": {"ui": {"resourceUri": "ui://other"}}}, TICK]
    parts, live = merged(clock("a"), PagedServer("b", {}, probed=other)), cast("Any", NamedSession())
    with pytest.raises(Refused, match="call a__tick or b__tick"):
        await called(parts, "tick", live)
    await parts.resources.find("ui://other", a_call("resources/read", live=live, uri="ui://other"))
    assert await called(parts, "tick", live) == ("b", b'"tick"')


def test_only_apps_that_several_servers_have_are_followed_and_within_bounds() -> None:
    apps, live = OpenApps(), cast("Any", NamedSession())
    apps.listed("a", [("t", APP), ("u", "ui://other")])
    assert not apps.contested
    apps.listed("b", [("t", APP)])
    assert apps.contested == {("a", "t"): APP, ("b", "t"): APP}
    apps.called(live, "a", "u")
    assert apps.server_of(live, "ui://other") == ""
    apps.called(live, "b", "t")
    assert apps.server_of(live, APP) == "b" and apps.server_of(None, APP) == ""
    apps.listed("c", [(f"t{n}", f"ui://{n}") for n in range(10_000)])
    apps.listed("d", [("t9999", "ui://9999")])
    assert ("d", "t9999") not in apps.contested


@requirement("fast.same")
async def test_a_call_that_opens_an_app_which_two_servers_have_is_noted_each_time() -> None:
    parts = merged(clock("a"), clock("b", {"name": "more"}))
    reading = a_call("resources/read", live=cast("Any", NamedSession()), uri=APP)
    await parts.resources.find(APP, reading)  # both are asked for theirs
    for tool, is_noted in (("show", True), ("tick", False), ("more", False)):
        upstream, call = await parts.server_for(a_call("tools/call", live=None, name=f"b__{tool}"))
        assert parts.opens_app(upstream, call.params["name"]) is is_noted
