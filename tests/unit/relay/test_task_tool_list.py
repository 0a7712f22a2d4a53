"""The three tools of tasks in lists of servers' tools."""

from typing import Any, cast

import msgspec

from gateway.relay.task_tool_list import with_task_tools
from tests.requirements import requirement
from transports.jsonrpc import Object, encode

NAMES = ["start_task", "task_status", "task_result"]


def page(*tools: Any, **more: Any) -> Object:
    return {key: msgspec.Raw(encode(value)) for key, value in {"tools": tools, **more}.items()}


def listed(result: Object) -> list[Any]:
    return [tool["name"] for tool in _with_tools_of(result)]


def _with_tools_of(result: Object) -> list[Any]:
    shaped = with_task_tools(cast("Any", None), result)
    return cast("list[Any]", msgspec.json.decode(shaped["tools"]))


@requirement("task.tools")
def test_servers_tools_of_the_same_names_are_hidden_on_every_page() -> None:
    tools = [{"name": "start_task"}, {"name": "build"}, {"name": "task_result", "of": "the server"}]
    assert listed(page(*tools, nextCursor="more")) == ["build"]
    assert listed(page(*tools)) == ["build", *NAMES]
    assert _with_tools_of(page("no object", {"name": 5}))[:2] == ["no object", {"name": 5}], "as it came"
