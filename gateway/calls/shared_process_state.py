"""Merge the requests of several sessions or calls into one state of a server process that they share. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.protocol.handshake import capabilities_of
from session_store import Session
from transports.era import LOG_LEVELS
from transports.jsonrpc import Object, encode

_CAPABILITY: Final = "logging"


def params_for_shared(method: str, params: Object, others: Sequence[Session]) -> Object | None:
    """Return the params for sending a session's request to a process that it shares. None if it must not be sent.

    A subscription stays while one of the `others` has it. The log level is the lowest that any session has set.
    """
    if method == "resources/unsubscribe":
        uri = msgspec.json.decode(params.get("uri", b"null"))
        return None if any(uri in other.subscriptions for other in others) else params
    if method == "logging/setLevel":
        level = msgspec.json.decode(params.get("level", b"null"))
        wanted = [known for known in (level, *(other.log_level for other in others)) if known in LOG_LEVELS]
        if level in LOG_LEVELS:
            return params | {"level": msgspec.Raw(encode(min(wanted, key=LOG_LEVELS.index)))}
    return params


def is_lower(level: str, present: str, initialize_result: bytes | None) -> bool:
    """Return True if a legacy server must be set to that log level for a call. A modern client asks for a level with
    each call. A server has one level for all calls: the lowest that any of them requested. `present` is that level,
    empty before the first. Messages are filtered for each call."""
    if level not in LOG_LEVELS or _CAPABILITY not in capabilities_of(initialize_result):
        return False
    return not present or LOG_LEVELS.index(level) < LOG_LEVELS.index(present)
