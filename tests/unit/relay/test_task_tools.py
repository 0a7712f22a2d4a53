"""The three tools of tasks in lists of servers' tools."""

from typing import Any, cast

import msgspec

from gateway.protocol.capabilities import caller_of_meta
from gateway.relay.task_tools import _with_tools
from gateway.tasks.exchange import StartedExchange
from tests.requirements import requirement
from transports.jsonrpc import Object, encode
from transports.reply_queue import ReplyQueue

NAMES = ["start_task", "task_status", "task_result"]


def page(*tools: Any, **more: Any) -> Object:
    return {key: msgspec.Raw(encode(value)) for key, value in {"tools": tools, **more}.items()}


def listed(result: Object) -> list[Any]:
    return [tool["name"] for tool in _with_tools_of(result)]


def _with_tools_of(result: Object) -> list[Any]:
    shaped = _with_tools(cast("Any", None), result)
    return cast("list[Any]", msgspec.json.decode(shaped["tools"]))


@requirement("task.tools")
def test_servers_tools_of_the_same_names_are_hidden_on_every_page() -> None:
    tools = [{"name": "start_task"}, {"name": "build"}, {"name": "task_result", "of": "the server"}]
    assert listed(page(*tools, nextCursor="more")) == ["build"]
    assert listed(page(*tools)) == ["build", *NAMES]
    assert _with_tools_of(page("no object", {"name": 5}))[:2] == ["no object", {"name": 5}], "as it came"


@requirement("task.tools")
def test_the_client_of_a_started_call_cannot_be_asked_once_the_server_has_it() -> None:
    meta = b'{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}'
    exchange = StartedExchange(
        method="tools/call", client_id=0, live=None, replies=ReplyQueue(), caller=caller_of_meta(meta)
    )
    assert exchange.caller is not None and b"elicitation" in exchange.caller.capabilities, "for the link"
    exchange.sent_as(cast("Any", None), 1, None, 0.0)
    assert exchange.caller.capabilities == b"{}"
