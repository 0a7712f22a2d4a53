"""A modern client's call to a legacy server."""

import functools
from collections.abc import Callable
from typing import Final

import msgspec

from gateway.bridge.suspended_calls import without_modern_gaps
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.protocol.results import modern_error, modern_result, urls_required
from transports.jsonrpc import Message, Object, encode

__all__ = ["LegacyServerBridge", "legacy_meta", "legacy_params"]

_SPEC: Final = "io.modelcontextprotocol/"
_MODERN_ONLY: Final = frozenset({"_meta", "inputResponses", "requestState", "task"})
_objects: Final = msgspec.json.Decoder(Object)


def legacy_params(params: Object) -> Object:
    """Return params without the members that the handshake era does not know, or by which its clients ask for a
    task."""
    return {key: value for key, value in params.items() if key not in _MODERN_ONLY}


def legacy_meta(meta: Object) -> Object:
    """`_meta` without the facts that a legacy server got in its handshake."""
    return {key: value for key, value in meta.items() if not key.startswith(_SPEC)}


class LegacyServerBridge:
    """Turns the response of a legacy server into that of a modern client."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def finish(self, exchange: Exchange, message: Message) -> Message | None:
        """Return the client's answer to the call."""
        if isinstance(message.error, msgspec.Raw):
            elicitations = urls_required(message.error)
            if elicitations:
                return Message(jsonrpc="2.0", id=0, result=msgspec.Raw(encode(_visits(elicitations))))
            return Message(jsonrpc="2.0", id=0, error=modern_error(message.error))
        if not isinstance(message.result, msgspec.Raw):
            return message
        return Message(jsonrpc="2.0", id=0, result=msgspec.Raw(self.translator(exchange.method)(message.result)))

    def translator(self, method: str) -> Callable[[msgspec.Raw | bytes], bytes]:
        """Return what makes the client's result of such a request from the server's."""
        return functools.partial(_translated, method, self._conversation.links.greeting.server_info)


def _translated(method: str, server_info: bytes, result: msgspec.Raw | bytes) -> bytes:
    return encode(modern_result(method, _objects.decode(result), server_info))


def _visits(elicitations: list[Object]) -> Object:
    """URLs that the user must visit before the client repeats the call. The server keeps no state of the call."""
    requests = {
        f"u{number}": {
            "method": "elicitation/create",
            "params": {"mode": "url", **without_modern_gaps("elicitation/create", elicitation)},
        }
        for number, elicitation in enumerate(elicitations, start=1)
    }
    return {
        "resultType": msgspec.Raw(b'"input_required"'),
        "inputRequests": msgspec.Raw(encode(requests)),
    }
