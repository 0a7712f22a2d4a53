"""Several servers behind one URL: one list of all their items, and the server of each request."""

from typing import Any, cast

import msgspec
import pytest

from gateway.calls.exchange import Exchange
from gateway.relay.aggregation import Aggregation
from tests.requirements import requirement
from tests.support.paged_server import PagedServer as Server
from tests.support.paged_server import a_call as call
from tests.support.paged_server import aggregation
from transports.era import Era
from transports.inbound_port import Refused
from transports.jsonrpc import Object, encode

pytestmark = pytest.mark.anyio


def tools(*names: str, **more: str) -> dict[str, Any]:
    return {"tools": [{"name": name} for name in names], **more}


async def listed(
    parts: Aggregation, method: str = "tools/list", *, era: Era = Era.LEGACY, **params: Any
) -> dict[str, Any]:
    """The result of a list."""
    results: list[dict[str, Any]] = []
    request = msgspec.structs.replace(call(method, **params), era=era)

    def keep(_: Exchange, result: Object) -> Object:
        results.append(msgspec.json.decode(encode(result)))
        return result

    request.exchange.filter_result(keep)
    await parts.merged_list(request)
    return results[0]


def names(result: dict[str, Any]) -> list[str]:
    return [tool["name"] for tool in result["tools"]]


async def test_the_lists_of_all_servers_are_one_list_under_public_names() -> None:
    one, two = Server("a", {("tools/list", ""): tools("x", "y")}), Server("b", {("tools/list", ""): tools("x")})
    result = await listed(aggregation(one, two))
    assert names(result) == ["a__x", "a__y", "b__x"] and "nextCursor" not in result


async def test_a_list_continues_at_the_servers_that_have_more_pages() -> None:
    pages = {("tools/list", ""): tools("x", nextCursor="2"), ("tools/list", "2"): tools("y")}
    one, two, three = Server("a", pages), Server("b", {("tools/list", ""): tools("z")}), Server("c", pages)
    parts = aggregation(one, two, three)
    first = await listed(parts)
    assert names(first) == ["a__x", "b__z", "c__x"] and one.asked == [("tools/list", "")]
    rest = await listed(parts, cursor=first["nextCursor"])
    assert names(rest) == ["a__y", "c__y"] and "nextCursor" not in rest
    assert one.asked == three.asked == [*pages] and two.asked == [("tools/list", "")]


@pytest.mark.parametrize("cursor", ["again", "c" * 8_192, 7])
async def test_a_list_without_an_end_keeps_nothing_of_other_servers_from_a_client(cursor: Any) -> None:
    endless = {("tools/list", at): tools("x", nextCursor=cursor) for at in ("", "again")}
    two = {("tools/list", ""): tools("y", nextCursor="2"), ("tools/list", "2"): tools("z")}
    parts = aggregation(Server("a", endless), Server("b", two), Server("c", {("tools/list", ""): tools("w")}))
    first = await listed(parts)
    assert names(first) == ["a__x", "b__y", "c__w"] and len(first["nextCursor"]) <= 4_096
    rest = await listed(parts, cursor=first["nextCursor"])
    assert names(rest)[-1] == "b__z"


@requirement("spec.letter")
async def test_every_page_of_a_list_has_the_same_scope() -> None:
    public = {"ttlMs": 5, "cacheScope": "public", "resultType": "complete"}
    two = {("tools/list", ""): tools("x", nextCursor="2") | public, ("tools/list", "2"): tools("y") | public}

    def servers() -> Aggregation:
        return aggregation(Server("a", {("tools/list", ""): tools("w") | public}), Server("b", two))

    first = await listed(servers(), era=Era.MODERN)
    rest = await listed(servers(), era=Era.MODERN, cursor=first["nextCursor"])
    assert first["cacheScope"] == rest["cacheScope"] == "private"
    whole = await listed(aggregation(Server("a", {("tools/list", ""): tools("w") | public})), era=Era.MODERN)
    assert whole["cacheScope"] == "public"


async def test_a_server_that_is_away_takes_nothing_from_the_others() -> None:
    without_tools = Server("c", {})
    result = await listed(aggregation(Server("a", None), Server("b", {("tools/list", ""): tools("x")}), without_tools))
    assert names(result) == ["b__x"]


async def test_a_cursor_that_is_not_of_the_gateway_is_refused() -> None:
    with pytest.raises(Refused, match="Invalid cursor"):
        await aggregation(Server("a", {}), Server("b", {})).merged_list(call("tools/list", cursor="2"))


async def test_a_public_name_belongs_to_one_server() -> None:
    one, two = Server("a", {}), Server("b", {})
    parts = aggregation(one, two)
    upstream, request = await parts.owner(call("tools/call", name="b__x"))
    assert cast("Any", upstream) is two and bytes(request.params["name"]) == b'"x"'
    for name in ("c__x", "x"):
        with pytest.raises(Refused, match="Unknown tool"):
            await parts.owner(call("tools/call", name=name))


async def test_a_resource_belongs_to_the_server_that_lists_it_or_has_the_closest_template() -> None:
    def server(name: str, uri: str, template: str) -> Server:
        pages = {
            ("resources/list", ""): {"resources": [{"uri": uri}]},
            ("resources/templates/list", ""): {"resourceTemplates": [{"uriTemplate": template}]},
        }
        return Server(name, pages)

    one, two = server("a", "db://t/1", "db://{+table}"), server("b", "db://t/2", "db://t/{id}")
    parts = aggregation(one, two)
    for uri, owner in (("db://t/1", one), ("db://t/2", two), ("db://t/3", two), ("db://u/1", one)):
        upstream, _ = await parts.owner(call("resources/read", uri=uri))
        assert cast("Any", upstream) is owner, uri
    with pytest.raises(Refused, match="Resource not found"):
        await parts.owner(call("resources/read", uri="web://x"))


async def test_a_completion_belongs_to_the_server_of_its_prompt() -> None:
    two = Server("b", {})
    reference = {"type": "ref/prompt", "name": "b__p"}
    upstream, request = await aggregation(Server("a", {}), two).owner(call("completion/complete", ref=reference))
    assert cast("Any", upstream) is two
    assert msgspec.json.decode(request.params["ref"]) == reference | {"name": "p"}


async def test_an_unknown_method_has_no_server() -> None:
    with pytest.raises(Refused, match="Method not found"):
        await aggregation(Server("a", {}), Server("b", {})).owner(call("acme/method"))


async def test_a_request_to_all_servers_is_answered_once_all_have_answered() -> None:
    one, two = Server("a", {}), Server("b", None)
    request = call("logging/setLevel", level="debug")
    await aggregation(one, two).send_to_all(request)
    assert one.asked == [("logging/setLevel", "")] and request.exchange.is_over
