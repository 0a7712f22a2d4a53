"""Sends a call to its server again, or for its next step, when no request handler waits to see an error."""

from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.failed_start import fail_start
from gateway.errors import OUTCOME_UNKNOWN
from gateway.observability.logs import CORRELATION
from transports.jsonrpc import Object

__all__ = ["start_in_background"]


def start_in_background(conversation: Conversation, exchange: Exchange, params: Object, meta: Object) -> None:
    """Send a call that its server has had before, in a task that ends with the conversation. An error ends the call:
    what the server has done of it is unknown."""
    conversation.in_background(_start(conversation, exchange, params, meta))


async def _start(conversation: Conversation, exchange: Exchange, params: Object, meta: Object) -> None:
    CORRELATION.set(exchange.correlation)  # of this task
    try:
        await conversation.start(exchange, params, meta)
    except Exception as error:  # nobody else would answer the call
        fail_start(conversation, exchange, error, OUTCOME_UNKNOWN)
