"""What a server lists is kept within bounds."""

import pytest

from gateway.protocol.listing import MOST_BYTES, MOST_TOOLS, Names, Tools, app_of, is_for_apps, items_of
from tests.requirements import requirement

SCHEMA = {"type": "object"}


@requirement("wall.memory", "wall.decoded")
def test_what_a_server_lists_is_kept_within_bounds() -> None:
    many = [{"name": f"t{n}", "inputSchema": SCHEMA} for n in range(10_000)]
    large = [{"name": f"t{n}", "description": "x" * (1 << 20), "inputSchema": SCHEMA} for n in range(20)]
    assert len(Tools(many).listed) == MOST_TOOLS
    assert Tools(large).size <= MOST_BYTES and len(Tools(large).listed) == 3
    assert Names.of([{"uri": f"{n}" + "x" * 8_000} for n in range(4_000)], "uri").size <= MOST_BYTES
    page = {"tools": [{"name": "x" * 257}, {"name": 7}, {}, "x", {"name": ""}, {"name": "good"}]}
    assert items_of(page, "tools", "name", most_chars=256) == [{"name": "good"}]


@requirement("ext.apps")
@pytest.mark.parametrize(
    ("meta", "uri", "callable_by_apps"),
    [
        ({"ui": {"resourceUri": "ui://a"}}, "ui://a", True),
        ({"ui/resourceUri": "ui://a"}, "ui://a", True),
        ({"ui": {"visibility": ["app"]}}, "", True),
        ({"ui": {"resourceUri": "ui://a", "visibility": ["model"]}}, "ui://a", False),
        ({"ui": {"resourceUri": "https://a"}}, "", True),
        ({"ui": {"resourceUri": 7, "visibility": "model"}}, "", True),
        ({"ui": []}, "", True),
        ([], "", True),
    ],
)
def test_the_app_of_a_tool_is_where_servers_name_it(meta: object, uri: str, callable_by_apps: bool) -> None:
    tool = {"name": "t", "_meta": meta}
    assert (app_of(tool), is_for_apps(tool)) == (uri, callable_by_apps)
    tools = Tools([tool])
    assert tools.apps == ({"t": uri} if uri else {}) and ("t" in tools.for_models) is not callable_by_apps


def test_a_tool_that_is_only_to_be_called_as_a_task_is_known() -> None:
    support = ("required", "optional", "forbidden", "unheard of")
    tools = Tools([{"name": each, "execution": {"taskSupport": each}} for each in support] + [{"name": "plain"}])
    needing = [name for name in (*support, "plain", "unlisted") if tools.needs_task(name)]
    assert needing == ["required"] == [name for name in support if tools.called("s", name).needs_task]
