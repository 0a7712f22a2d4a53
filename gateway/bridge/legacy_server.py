"""Translate calls of modern clients (MCP 2026-07-28) for legacy servers (MCP up to 2025-11-25), and responses back."""

import functools
from collections.abc import Callable
from typing import Final

import msgspec

from gateway.bridge.call_suspension import without_modern_gaps
from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.protocol.extensions import SPEC
from gateway.protocol.result_translation import modern_error, modern_result, urls_required
from transports.jsonrpc import Message, Object, encode

_MODERN_ONLY: Final = frozenset({"_meta", "inputResponses", "requestState", "task"})
_objects: Final = msgspec.json.Decoder(Object)


def legacy_params(params: Object) -> Object:
    """Return the params without the members that a legacy server does not know, and without `task`, so that the server
    answers with a result and not with a task."""
    return {key: value for key, value in params.items() if key not in _MODERN_ONLY}


def legacy_meta(meta: Object) -> Object:
    """Return the `_meta` without the keys that MCP 2026-07-28 defines. A legacy server has got their values in its
    handshake."""
    return {key: value for key, value in meta.items() if not key.startswith(SPEC)}


class LegacyServerBridge:
    """Translate the response of a legacy server into the response for a modern client."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def answer_for_client(self, exchange: Exchange, message: Message) -> Message | None:
        """Translate the server's response, and return it for the modern client. An error that asks the user to visit
        URLs becomes an `input_required` result."""
        if isinstance(message.error, msgspec.Raw):
            elicitations = urls_required(message.error)
            if elicitations:
                return Message(jsonrpc="2.0", id=0, result=msgspec.Raw(encode(_visits(elicitations))))
            return Message(jsonrpc="2.0", id=0, error=modern_error(message.error))
        if not isinstance(message.result, msgspec.Raw):
            return message
        return Message(jsonrpc="2.0", id=0, result=msgspec.Raw(self.translator(exchange.method)(message.result)))

    def translator(self, method: str) -> Callable[[msgspec.Raw | bytes], bytes]:
        """Return a function that translates the server's result of this method into the result for the modern
        client."""
        return functools.partial(_translated, method, self._conversation.links.greeting.server_info)


def _translated(method: str, server_info: bytes, result: msgspec.Raw | bytes) -> bytes:
    return encode(modern_result(method, _objects.decode(result), server_info))


def _visits(elicitations: list[Object]) -> Object:
    """Return an `input_required` result that asks the user to visit these URLs. The client then repeats the call. There
    is no `requestState`, because the server has ended the call."""
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
