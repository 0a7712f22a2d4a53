"""Which of several servers has a resource, and what finding out costs."""

from typing import Any, cast

import msgspec
import pytest

from gateway.calls.call import Call
from gateway.config.upstreams import ItemSettings
from gateway.policy.decisions import ServerPolicy
from gateway.relay.aggregation import Aggregation
from tests.requirements import requirement
from tests.support.paged_server import PagedServer, a_call, aggregation
from transports.inbound_port import Refused
from transports.upstream_port import UpstreamUnavailable

pytestmark = [pytest.mark.anyio, requirement("ext.resource-owner")]

LIST, TEMPLATES, READ = "resources/list", "resources/templates/list", "resources/read"


class Session:
    """A session, as far as finding owners needs one."""

    class session:
        id = "s1"


def pages(*uris: str, templates: tuple[str, ...] = (), reads: tuple[str, ...] = ()) -> dict[tuple[str, str], Any]:
    """The results of a server that lists these URIs, one on each page, and templates, and can be read at others."""
    listed: dict[tuple[str, str], Any] = {
        (LIST, str(n or "")): {"resources": [{"uri": uri}], "nextCursor": str(n + 1)} for n, uri in enumerate(uris)
    }
    listed[LIST, str(len(uris) or "")] = {"resources": []}
    listed[TEMPLATES, ""] = {"resourceTemplates": [{"uriTemplate": template} for template in templates]}
    return listed | {(READ, uri): {"contents": [{"uri": uri, "text": "x"}]} for uri in (*uris, *reads)}


async def owner(parts: Aggregation, uri: str, method: str = READ, **more: Any) -> str:
    call: Call = a_call(method, uri=uri, **more)
    return (await parts.resources.owner(uri, call)).upstream.name


async def test_a_resource_on_a_later_page_is_found_once_and_costs_no_list_after_that() -> None:
    one, two = PagedServer("a", pages("x://1")), PagedServer("b", pages("y://1", "y://2", "y://3"))
    parts = aggregation(one, two)
    assert await owner(parts, "y://3") == "b" and (LIST, "3") in two.asked
    asked = len(one.asked) + len(two.asked)
    assert await owner(parts, "y://3") == "b" and await owner(parts, "x://1") == "a"
    assert len(one.asked) + len(two.asked) == asked


async def test_pages_that_clients_ask_for_count() -> None:
    one, two = PagedServer("a", pages()), PagedServer("b", pages("y://1"))
    parts = aggregation(one, two)
    await parts.merged_list(a_call(LIST))
    asked = len(one.asked) + len(two.asked)
    assert await owner(parts, "y://1") == "b"
    assert len(one.asked) + len(two.asked) == asked


async def test_a_list_that_has_changed_is_asked_for_again() -> None:
    one, two = PagedServer("a", pages("x://1")), PagedServer("b", pages())
    parts = aggregation(one, two)
    assert await owner(parts, "x://1") == "a"
    for each in (one, two):
        each.lists.forget("resources")
    one.asked.clear()
    assert await owner(parts, "x://1") == "a" and (LIST, "") in one.asked


@pytest.mark.parametrize("method", ["resources/read", "resources/subscribe", "resources/unsubscribe"])
async def test_a_resource_that_nobody_lists_is_looked_for_at_a_few_servers_at_a_time(method: str) -> None:
    servers = [PagedServer(name, pages(reads=("z://1",) if name != "a" else ())) for name in "abcdef"]
    one, *_, six = servers
    parts = aggregation(*servers)
    found = await parts.resources.owner("z://1", call := a_call(method, uri="z://1"))
    assert found.upstream.name == "b" and (READ, "z://1") in one.asked and (READ, "z://1") not in six.asked
    if method == READ:
        assert found.answer is not None and found.answer.message.result is not msgspec.UNSET
    else:
        assert found.answer is None
    asked = len(one.asked)
    again = await parts.resources.owner("z://1", call)
    assert again.upstream.name == "b" and again.answer is None and len(one.asked) == asked, "it is remembered"


async def test_a_template_that_says_less_than_its_server_can_read_still_leads_there() -> None:
    one, two = PagedServer("a", pages()), PagedServer("b", pages(templates=("f:///{name}",), reads=("f:///x/y",)))
    assert await owner(aggregation(one, two), "f:///x") == "b"
    assert await owner(aggregation(one, two), "f:///x/y") == "b" and (READ, "f:///x/y") not in one.asked


async def test_a_server_that_lists_similar_uris_is_asked_first() -> None:
    one, two = PagedServer("a", pages(reads=("db://t/9",))), PagedServer("b", pages("db://t/1", reads=("db://t/9",)))
    assert await owner(aggregation(one, two), "db://t/9") == "b"


@pytest.mark.parametrize("code", [-32002, -32602, -32601, 0])
async def test_what_servers_answer_for_a_missing_resource_is_not_an_answer(code: int) -> None:
    one, two = PagedServer("a", pages()), PagedServer("b", pages(reads=("z://1",)))
    one.error = code
    assert await owner(aggregation(one, two), "z://1") == "b"


async def test_another_error_is_the_answer() -> None:
    one, two = PagedServer("a", pages()), PagedServer("b", pages(reads=("z://1",)))
    one.error = -32603
    assert await owner(aggregation(one, two), "z://1") == "a"


async def test_nobody_has_it() -> None:
    parts = aggregation(PagedServer("a", pages()), PagedServer("b", pages()))
    with pytest.raises(Refused, match="Resource not found: z://1"):
        await owner(parts, "z://1")
    with pytest.raises(UpstreamUnavailable, match="c did not answer in time"):
        await owner(aggregation(PagedServer("a", pages()), PagedServer("c", None)), "z://1")


async def test_servers_without_resources_are_not_asked() -> None:
    one, two = PagedServer("a", pages()), PagedServer("b", pages("y://1"))
    one.declared = {"tools": {}}
    assert await owner(aggregation(one, two), "y://1") == "b" and not one.asked


async def test_of_two_servers_that_list_it_the_first_of_the_configuration_has_it() -> None:
    assert await owner(aggregation(PagedServer("b", pages("x://1")), PagedServer("a", pages("x://1"))), "x://1") == "b"


async def test_a_server_whose_resource_policy_hides_does_not_have_it() -> None:
    hidden = ServerPolicy(resources={"x://*": ItemSettings(direct_only=True)})
    one, two = PagedServer("a", pages("x://1", "x://2")), PagedServer("b", pages("x://1"))
    parts = aggregation(one, two, policies={"a": hidden})
    assert await owner(parts, "x://1") == "a"
    assert await owner(parts, "x://1", trust="sandboxed") == "b"
    one.asked.clear()
    with pytest.raises(Refused, match="Resource not found: x://2"):
        await owner(parts, "x://2", trust="sandboxed")
    assert not one.asked, "it is not even asked"


async def test_an_unlisted_resource_is_not_looked_for_where_policy_goes_by_lists() -> None:
    restricted = ServerPolicy(resources={"secret://*": ItemSettings(direct_only=True)})
    one, two = PagedServer("a", pages(reads=("z://1",))), PagedServer("b", pages())
    with pytest.raises(Refused):
        await owner(aggregation(one, two, policies={"a": restricted}), "z://1")
    assert (READ, "z://1") not in one.asked


async def test_an_app_that_no_list_has_belongs_to_the_server_whose_tool_names_it() -> None:
    tool = {"name": "t", "_meta": {"ui": {"resourceUri": "ui://t/app.html"}}}
    one, two = PagedServer("a", pages()), PagedServer("b", pages(), probed=[tool])
    assert await owner(aggregation(one, two), "ui://t/app.html") == "b"
    assert not one.asked and not two.asked


async def test_of_two_servers_with_the_same_app_the_one_that_was_called_has_it() -> None:
    tool = {"name": "t", "_meta": {"ui": {"resourceUri": "ui://t/app.html"}}}
    served = {("tools/list", ""): {"tools": [tool]}}
    one, two = PagedServer("a", pages() | served, probed=[tool]), PagedServer("b", pages() | served, probed=[tool])
    parts, live = aggregation(one, two), cast("Any", Session())
    await parts.merged_list(a_call("tools/list"))
    assert await owner(parts, "ui://t/app.html", live=live) == "a"
    await parts.owner(a_call("tools/call", live=live, name="b__t"))
    assert await owner(parts, "ui://t/app.html", live=live) == "b"
    assert await owner(parts, "ui://t/app.html", live=cast("Any", Session())) == "a", "in another session"
