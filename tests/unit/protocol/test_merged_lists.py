"""What a server lists is kept within bounds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol import merged_lists
from tests.requirements import requirement
from tests.unit.protocol.parts import raw
from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_PARAMS

SCHEMA = {"type": "object"}


@requirement("wall.memory", "wall.decoded")
def test_what_a_server_lists_is_kept_within_bounds() -> None:
    many = [{"name": f"t{n}", "inputSchema": SCHEMA} for n in range(10_000)]
    large = [{"name": f"t{n}", "description": "x" * (1 << 20), "inputSchema": SCHEMA} for n in range(20)]
    assert len(merged_lists.Tools(many).listed) == merged_lists.MOST_TOOLS
    assert merged_lists.Tools(large).size <= merged_lists.MOST_BYTES and len(merged_lists.Tools(large).listed) == 3
    assert (
        merged_lists.Names.of([{"uri": f"{n}" + "x" * 8_000} for n in range(4_000)], "uri").size
        <= merged_lists.MOST_BYTES
    )
    page = {"tools": [{"name": "x" * 257}, {"name": 7}, {}, "x", {"name": ""}, {"name": "good"}]}
    assert merged_lists.items_of(page, "tools", "name", most_chars=256) == [{"name": "good"}]


@requirement("ext.apps")
@pytest.mark.parametrize(
    ("meta", "uri", "callable_by_apps"),
    [
        *(({"ui": {"resourceUri": "ui://a"}}, "ui://a", True), ({"ui/resourceUri": "ui://a"}, "ui://a", True)),
        ({"ui": {"resourceUri": "ui://a", "visibility": ["model"]}}, "ui://a", False),
        *(({"ui": {"visibility": ["app"]}}, "", True), ({"ui": {"resourceUri": "https://a"}}, "", True)),
        *(({"ui": {"resourceUri": 7, "visibility": "model"}}, "", True), ({"ui": []}, "", True), ([], "", True)),
    ],
)
def test_the_app_of_a_tool_is_where_servers_name_it(meta: object, uri: str, callable_by_apps: bool) -> None:
    tool = {"name": "t", "_meta": meta}
    assert (merged_lists.app_of(tool), merged_lists.is_for_apps(tool)) == (uri, callable_by_apps)
    tools = merged_lists.Tools([tool])
    assert tools.apps == ({"t": uri} if uri else {}) and tools.called("s", "t").is_for_apps is callable_by_apps


@requirement("pol.tools")
@pytest.mark.parametrize(
    "other",
    [
        {"name": "b"},
        {"inputSchema": {"type": "object", "required": ["a"]}},
        {"annotations": {"readOnlyHint": True}},
        {"annotations": {"idempotentHint": True}},
        {"execution": {"taskSupport": "required"}},
        {"_meta": {"ui": {"visibility": ["model"]}}},
        {"description": "of another language"},
    ],
)
def test_a_list_has_a_tool_only_with_all_that_clients_are_shown_of_it(other: dict[str, Any]) -> None:
    tool = {"name": "a", "inputSchema": SCHEMA}
    assert merged_lists.Tools([tool]).are_same([tool | {"icons": []}])
    assert not merged_lists.Tools([tool]).are_same([tool | other])
    assert not merged_lists.Tools([tool | other]).are_same([tool])


def test_a_tool_that_is_only_to_be_called_as_a_task_is_known() -> None:
    support = ("required", "optional", "forbidden", "unheard of")
    tools = merged_lists.Tools(
        [{"name": each, "execution": {"taskSupport": each}} for each in support] + [{"name": "plain"}]
    )
    needing = [name for name in (*support, "plain", "unlisted") if tools.called("s", name).needs_task]
    assert needing == ["required"]


@given(upstream=st.sampled_from(["one", "two"]), name=st.text(min_size=1))
def test_a_public_name_leads_back_to_its_upstream_and_its_own_name(upstream: str, name: str) -> None:
    public = merged_lists.with_public_name(upstream, {"name": name, "title": "kept"})
    assert public["title"] == "kept"
    assert merged_lists.split_public_name(public["name"], ["one", "two"], "tool") == (upstream, name)


@pytest.mark.parametrize("name", ["", "echo", "one__", "three__echo", "__echo", "one_echo", "x" * 10_000], ids=len)
def test_a_name_of_no_upstream_is_refused_as_unknown(name: str) -> None:
    with pytest.raises(Refused, match="Unknown tool") as refused:
        merged_lists.split_public_name(name, ["one", "two"], "tool")
    assert (refused.value.status, refused.value.code) == (200, INVALID_PARAMS)
    assert len(str(refused.value)) < 200, "only a part of it is repeated"


def test_lists_are_merged_in_the_order_of_the_upstreams() -> None:
    pages = [("one", {"tools": [{"name": "b"}, {"name": "a"}]}), ("two", {}), ("three", {"tools": [{"name": "a"}]})]
    assert merged_lists.merge_lists("tools/list", pages) == [
        {"name": "one__b"},
        {"name": "one__a"},
        {"name": "three__a"},
    ]
    resource = {"uri": "note://a", "name": "a"}
    assert merged_lists.merge_lists("resources/list", [("one", {"resources": [resource]})]) == [resource], "URIs stay"


@given(more=st.dictionaries(st.text(max_size=20), st.text(max_size=20), min_size=1, max_size=4))
def test_a_cursor_says_whose_pages_come_next(more: dict[str, str]) -> None:
    assert merged_lists.cursor_of(raw(cursor=merged_lists.next_cursor(more)), more) == more
    assert merged_lists.cursor_of({}, []) is None, "without one a list begins at the start"


def test_a_cursor_that_no_client_can_send_ends_the_list_of_its_upstream() -> None:
    assert merged_lists.cursor_of(raw(cursor=merged_lists.next_cursor({"one": "c" * 4_000, "two": "2"})), ["two"]) == {
        "two": "2"
    }
    assert merged_lists.next_cursor({"one": "c" * 4_000}) is None


@requirement("spec.letter")
@pytest.mark.parametrize(
    ("page", "more"),
    [
        *(({"nextCursor": "2"}, True), ({"nextCursor": "", "resultType": "complete"}, True), ({}, False)),
        *(({"nextCursor": cursor}, False) for cursor in (None, "", 5)),
        ({"nextCursor": {"a": 1}, "resultType": "complete"}, False),
    ],
)
def test_a_cursor_is_a_text_and_in_the_modern_era_also_an_empty_one(page: dict[str, Any], more: bool) -> None:
    assert merged_lists.has_more(page) is more


@pytest.mark.parametrize("cursor", ["", "nonsense", "WzFd", 7, None, "\u00fc", "W10=", "e30=", "eyJ0d28iOiIyIn0="])
def test_a_cursor_of_somebody_else_is_refused(cursor: object) -> None:
    with pytest.raises(Refused, match="Invalid cursor") as refused:
        merged_lists.cursor_of(raw(cursor=cursor), ["one"])
    assert refused.value.code == INVALID_PARAMS
