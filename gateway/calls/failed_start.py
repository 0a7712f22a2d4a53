"""The client's answer when a call cannot be sent from the background, where no request handler would see the error."""

import logging

from gateway.calls.exchange import Exchange, ExchangeConversation
from gateway.errors import store_unavailable
from gateway.protocol.handshake import HandshakeRefused
from session_store import StoreUnavailable
from transports.inbound_port import Refused
from transports.jsonrpc import Message
from transports.upstream_port import LinkClosed, UpstreamUnavailable

__all__ = ["fail_start"]

logger = logging.getLogger(__name__)


def fail_start(conversation: ExchangeConversation, exchange: Exchange, error: Exception, code: int) -> None:
    """End a call that `Conversation.start` has failed to send: whatever the reason, its client gets an answer.

    `code`: the code for errors of the server or of its link, and for unexpected errors.
    """
    if isinstance(error, StoreUnavailable):
        error = store_unavailable()
    if isinstance(error, Refused):
        conversation.fail(exchange, error.code, str(error))
    elif isinstance(error, UpstreamUnavailable | LinkClosed):
        conversation.fail(exchange, code, str(error))
    elif isinstance(error, HandshakeRefused):
        exchange.finish(Message(jsonrpc="2.0", id=0, error=error.error))
    else:
        logger.error(
            "a call could not be sent to server %s", conversation.name, exc_info=error, extra=exchange.log_fields()
        )
        conversation.fail(exchange, code, f"the call could not be sent to server {conversation.name!r}")
