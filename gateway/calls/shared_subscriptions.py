"""Combine the subscriptions and log levels of several sessions or calls for the server process that they share.
Pure."""

from collections.abc import Iterable, Sequence, Set
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


def params_for_shared(method: str, params: Object, others: Sequence[Subscriber], present: str = "") -> Object | None:
    """Return the params with which a session's request is sent to a shared process. None if the request must not be
    sent.

    An unsubscription is not sent while one of the other sessions (`others`) is subscribed. The log level becomes the
    lowest of all sessions, and of the calls of modern clients (`present`, empty if none named one)."""
    if method == "resources/unsubscribe":
        uris = frozenset({msgspec.json.decode(params.get("uri", b"null"))})
        return None if any(other.subscribed(uris) for other in others) else params
    if method == "logging/setLevel":
        level = msgspec.json.decode(params.get("level", b"null"))
        if level in LOG_LEVELS:
            lowest = lowest_level((level, present, *(other.session.log_level for other in others)))
            return params | {"level": msgspec.Raw(encode(lowest))}
    return params


def lowest_level(levels: Iterable[str]) -> str:
    """Return the lowest of these log levels; empty if none of them is one."""
    return min((level for level in levels if level in LOG_LEVELS), key=LOG_LEVELS.index, default="")


def is_lower(level: str, present: str, initialize_result: bytes | None) -> bool:
    """Return True if a legacy server must be set to the log level `level` before a call is sent. Each call of a modern
    client has its own level, but a server has only one: the lowest requested so far (`present`, empty before the
    first). Messages are filtered later for each call."""
    if level not in LOG_LEVELS or _CAPABILITY not in capabilities_of(initialize_result):
        return False
    return not present or LOG_LEVELS.index(level) < LOG_LEVELS.index(present)
