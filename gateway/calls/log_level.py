"""How much a legacy server is to say on behalf of modern clients, who ask for it with each call."""

from typing import TYPE_CHECKING

from gateway.calls.shared_server import LEVELS
from gateway.protocol.handshake import capabilities_of
from transports.jsonrpc import encode

if TYPE_CHECKING:
    from gateway.calls.conversation import Conversation

__all__ = ["want_log_level"]


def want_log_level(conversation: "Conversation", level: str) -> None:
    """A legacy server has one level for all: the lowest that any call has asked for. The rest is filtered."""
    if level not in LEVELS or "logging" not in capabilities_of(conversation.initialize_result):
        return
    if not conversation.log_level or LEVELS.index(level) < LEVELS.index(conversation.log_level):
        conversation.log_level = level
        conversation.request("logging/setLevel", encode({"level": level}))
