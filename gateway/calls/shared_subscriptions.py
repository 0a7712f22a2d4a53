"""Combine the subscriptions and log levels of several sessions or calls for the server process that they share.
Pure."""

from collections.abc import Sequence, Set
from typing import Final, Protocol

import msgspec

from gateway.protocol.handshake import capabilities_of
from session_store import Session
from transports.era import LOG_LEVELS
from transports.jsonrpc import Object, encode

_CAPABILITY: Final = "logging"


class Subscriber(Protocol):
    """A session that uses the shared process (`gateway.calls.live_session.LiveSession` describes the methods)."""

    @property
    def session(self) -> Session: ...
    def subscribed(self, uris: frozenset[str]) -> Set[str]: ...


def params_for_shared(method: str, params: Object, others: Sequence[Subscriber]) -> Object | None:
    """Return the params with which a session's request is sent to a shared process. None if the request must not be
    sent.

    An unsubscription is not sent while one of the `others` is subscribed. The log level becomes the lowest of all
    sessions.
    """
    if method == "resources/unsubscribe":
        uris = frozenset({msgspec.json.decode(params.get("uri", b"null"))})
        return None if any(other.subscribed(uris) for other in others) else params
    if method == "logging/setLevel":
        level = msgspec.json.decode(params.get("level", b"null"))
        wanted = [known for known in (level, *(other.session.log_level for other in others)) if known in LOG_LEVELS]
        if level in LOG_LEVELS:
            return params | {"level": msgspec.Raw(encode(min(wanted, key=LOG_LEVELS.index)))}
    return params


def is_lower(level: str, present: str, initialize_result: bytes | None) -> bool:
    """Return True if a legacy server must be set to this log level for a call. Each call of a modern client has its own
    level, but a server has only one: the lowest requested so far (`present`, empty before the first). Messages are
    filtered later for each call."""
    if level not in LOG_LEVELS or _CAPABILITY not in capabilities_of(initialize_result):
        return False
    return not present or LOG_LEVELS.index(level) < LOG_LEVELS.index(present)
