"""The log level of a legacy server on behalf of modern clients, which ask for one with each call. Pure."""

from typing import Final

from gateway.calls.shared_server import LEVELS
from gateway.protocol.handshake import capabilities_of

__all__ = ["is_lower"]

_CAPABILITY: Final = "logging"


def is_lower(level: str, present: str, initialize_result: bytes | None) -> bool:
    """True if the server has to be set to that level. A server has one level for all calls: the lowest that any of them
    requested. `present` is that level, empty before the first. The messages are filtered for each call."""
    if level not in LEVELS or _CAPABILITY not in capabilities_of(initialize_result):
        return False
    return not present or LEVELS.index(level) < LEVELS.index(present)
