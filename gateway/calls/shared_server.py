"""Requests of one session that would affect the other sessions of a shared server process. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec

from session_store import Session
from transports.jsonrpc import Object, encode
from transports.wire_methods import LOG_LEVELS

__all__ = ["LEVELS", "params_for_shared"]

LEVELS: Final = LOG_LEVELS


def params_for_shared(method: str, params: Object, others: Sequence[Session]) -> Object | None:
    """The params of a request for the shared process. None if the request must not be sent.

    A subscription stays while one of the `others` has it. The log level is the lowest that any session has set.
    """
    if method == "resources/unsubscribe":
        uri = msgspec.json.decode(params.get("uri", b"null"))
        return None if any(uri in other.subscriptions for other in others) else params
    if method == "logging/setLevel":
        level = msgspec.json.decode(params.get("level", b"null"))
        wanted = [known for known in (level, *(other.log_level for other in others)) if known in LEVELS]
        if level in LEVELS:
            return params | {"level": msgspec.Raw(encode(min(wanted, key=LEVELS.index)))}
    return params
