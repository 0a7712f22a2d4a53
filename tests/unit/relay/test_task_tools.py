"""The calls that the tools of tasks start."""

from typing import Any, cast

from gateway.protocol.capabilities import caller_of_meta
from gateway.tasks.exchange import StartedExchange
from tests.requirements import requirement
from transports.reply_queue import ReplyQueue


@requirement("task.tools")
def test_the_client_of_a_started_call_cannot_be_asked_once_the_server_has_it() -> None:
    meta = b'{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}'
    exchange = StartedExchange(
        method="tools/call", client_id=0, live=None, replies=ReplyQueue(), caller=caller_of_meta(meta)
    )
    assert exchange.caller is not None and b"elicitation" in exchange.caller.capabilities, "for the link"
    exchange.sent_as(cast("Any", None), 1, None, 0.0)
    assert exchange.caller.capabilities == b"{}"
