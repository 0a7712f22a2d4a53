"""Whom a server means: finds the call or the session for what a server sends on its own.

On stdio neither requests nor log messages say which call they belong to. A process of one session leaves no doubt about
the client; in a shared process a message goes to a session only when no other could be meant.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Protocol

import msgspec

from gateway.calls.conversation import Conversation
from gateway.calls.exchange import Exchange
from gateway.calls.live_session import LiveSession
from gateway.calls.questions import MAX_SERVER_ID_BYTES
from gateway.calls.shared_server import LEVELS
from gateway.protocol.methods import CHANGES
from gateway.protocol.params import meta_of
from gateway.protocol.subscription_filter import SUBSCRIPTION_ID, tagged
from transports.era import Era
from transports.jsonrpc import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    InvalidMessage,
    Message,
    Object,
    decode_id,
    encode,
    encode_notification,
    splice,
)

__all__ = ["IsolatedRouter", "Router", "SharedRouter"]


class Router(Protocol):
    """Finds the client for what a server sends on its own. On stdio a message does not say which call it belongs to."""

    def asked(self, conversation: "Conversation", message: Message) -> None:
        """The server wants something of a client."""
        ...

    def notified(self, conversation: "Conversation", message: Message) -> None:
        """The server sent a notification."""
        ...

    def closed(self, conversation: "Conversation") -> None:
        """The link is gone: nobody waits for the answers to what the server has asked."""
        ...


class _Router(ABC):
    def asked(self, conversation: Conversation, message: Message) -> None:
        server_id = encode(message.id)
        if message.method == "ping":
            conversation.acknowledge(server_id)
            return
        if len(server_id) > MAX_SERVER_ID_BYTES:
            # Kept until the client answers, which may be never.
            reason = f"The id of a request is longer than {MAX_SERVER_ID_BYTES} bytes."
            conversation.refuse(server_id, INVALID_REQUEST, reason)
            return
        live, exchange = self._meant(conversation)
        if conversation.era is Era.MODERN or live is None:
            # MCP 2026-07-28: servers send no requests. In a shared process nobody may get another's question.
            conversation.refuse(server_id, METHOD_NOT_FOUND, f"No client is available for {message.method} now.")
            return
        try:
            live.ask(conversation, message, exchange)
        except InvalidMessage as error:
            conversation.refuse(server_id, error.code, str(error))

    def notified(self, conversation: Conversation, message: Message) -> None:
        method = str(message.method)
        try:
            params = message.params_object()
            change = CHANGES.get(method)
            if change is not None and change.flag:
                conversation.lists.forget(change.kind)
            if method == "notifications/progress":
                _progress(conversation, params)
            elif method == "notifications/cancelled":
                for live in self._audience(conversation):
                    live.questions.withdraw(conversation, params)
            elif conversation.era is Era.MODERN and _subscribed(conversation, method, params):
                pass
            elif change is not None:
                self._changed(conversation, method, params)
            else:
                self._said(conversation, method, params)
        except (InvalidMessage, msgspec.MsgspecError):
            return  # a notification nobody could read; there is no one to tell

    def closed(self, conversation: Conversation) -> None:
        for live in self._audience(conversation):
            live.questions.closed(conversation)

    def _changed(self, conversation: Conversation, method: str, params: Object) -> None:
        frame = encode_notification(method, splice(encode(params)))
        uri = msgspec.json.decode(params["uri"]) if "uri" in params else None
        for live in self._audience(conversation):
            if conversation.era is not Era.LEGACY:
                continue
            if live.session.era == Era.MODERN:
                for listening in live.listening:
                    listening.hear(method, params, uri)
            elif uri is None or self._wants(live, uri):
                live.tell(frame)

    def _said(self, conversation: Conversation, method: str, params: Object) -> None:
        live, exchange = self._meant(conversation)
        frame = encode_notification(method, splice(encode(params)))
        if live is not None and live.session.era == Era.MODERN and conversation.era is Era.LEGACY:
            if exchange is not None and method == "notifications/message" and _is_wanted(exchange, params):
                exchange.emit(frame)
        elif exchange is not None:
            exchange.emit(frame)
        elif live is not None and conversation.era is Era.LEGACY:
            live.tell(frame)

    @abstractmethod
    def _meant(self, conversation: Conversation) -> tuple[LiveSession | None, Exchange | None]: ...

    @abstractmethod
    def _audience(self, conversation: Conversation) -> Iterable[LiveSession]: ...

    @abstractmethod
    def _wants(self, live: LiveSession, uri: object) -> bool: ...


class IsolatedRouter(_Router):
    """For a process that serves one session."""

    def __init__(self, live: LiveSession) -> None:
        self._live = live

    def _meant(self, conversation: Conversation) -> tuple[LiveSession | None, Exchange | None]:
        calls = _calls(conversation)
        if len(calls) == 1 or (calls and not self._live.listeners):
            return self._live, calls[-1]
        return self._live, None

    def _audience(self, conversation: Conversation) -> Iterable[LiveSession]:
        return (self._live,)

    def _wants(self, live: LiveSession, uri: object) -> bool:
        return True


class SharedRouter(_Router):
    """For a process that serves many sessions, or none in particular."""

    def _meant(self, conversation: Conversation) -> tuple[LiveSession | None, Exchange | None]:
        calls = _calls(conversation)
        if not calls or any(call.live is not calls[0].live for call in calls):
            return None, None
        return calls[-1].live, calls[-1]

    def _audience(self, conversation: Conversation) -> Iterable[LiveSession]:
        return [live for live in conversation.users if live is not None]

    def _wants(self, live: LiveSession, uri: object) -> bool:
        return uri in live.session.subscriptions


def _is_wanted(exchange: Exchange, params: Object) -> bool:
    """Whether a call has asked for messages of that level (MCP 2026-07-28, Logging)."""
    level = msgspec.json.decode(params.get("level", b"null"))
    wanted = exchange.caller.log_level if exchange.caller is not None else ""
    return level in LEVELS and wanted in LEVELS and LEVELS.index(level) >= LEVELS.index(wanted)


def _calls(conversation: Conversation) -> list[Exchange]:
    return [exchange for exchange in conversation.calls.sent.values() if not exchange.is_subscription]


def _progress(conversation: Conversation, params: Object) -> None:
    number = decode_id(params.get("progressToken", msgspec.Raw(b"null")))
    exchange = conversation.calls.sent.get(number) if isinstance(number, int) else None
    if exchange is None:
        return
    exchange.heard()
    if exchange.progress_token is not None:
        params = params | {"progressToken": exchange.progress_token}
        exchange.emit(encode_notification("notifications/progress", splice(encode(params))))


def _subscribed(conversation: Conversation, method: str, params: Object) -> bool:
    """Pass on a frame of a subscription, under the client's own subscription id; False for any other message."""
    meta = meta_of(params)
    if SUBSCRIPTION_ID not in meta:
        return False
    number = decode_id(meta[SUBSCRIPTION_ID])
    exchange = conversation.calls.sent.get(number) if isinstance(number, int) else None
    if exchange is not None:
        exchange.emit(encode_notification(method, splice(encode(tagged(params, exchange.client_id)))))
    return True
