"""The three tools of tasks in lists of servers' tools."""

from typing import Any, cast

import msgspec

from gateway.relay.task_tool_list import with_task_tools
from tests.requirements import requirement
from transports.jsonrpc import Object, encode

NAMES = ["start_task", "task_status", "task_result"]


def listed(*tools: Any, **more: Any) -> list[Any]:
    """The tools that a client gets of a page with these tools of a server."""
    page: Object = {key: msgspec.Raw(encode(value)) for key, value in {"tools": tools, **more}.items()}
    return cast("list[Any]", msgspec.json.decode(with_task_tools(cast("Any", None), page)["tools"]))


@requirement("task.tools")
def test_servers_tools_of_the_same_names_are_hidden_on_every_page() -> None:
    tools = {"name": "start_task"}, {"name": "build"}, {"name": "task_result", "of": "the server"}
    assert listed(*tools, nextCursor="more") == [{"name": "build"}]
    assert [tool["name"] for tool in listed(*tools)] == ["build", *NAMES]
    assert listed("no object", {"name": 5})[:2] == ["no object", {"name": 5}], "as it came"
