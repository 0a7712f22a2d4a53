"""What one session may not take from the others that share its server's process. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec

from session_store import Session
from transports.jsonrpc import Object, encode

__all__ = ["LEVELS", "considerate"]

LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


def considerate(method: str, params: Object, others: Sequence[Session]) -> Object | None:
    """A request's params as the shared process is to see them; None when it is not to see the request at all.

    A subscription stays while another session holds it, and the log level is the lowest that any of them asked for.
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
