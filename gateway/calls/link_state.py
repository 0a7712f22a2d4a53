"""The life of a link as a table, and why a link is replaced. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

__all__ = ["LINK", "LOSSES", "LinkEvent", "LinkState", "Loss"]


class Loss(StrEnum):
    """Why a link was replaced, as clients, the log and the metrics report it."""

    STOPPED = "idle_stop"
    CRASHED = "crash"
    FORGOTTEN = "upstream_session"


LOSSES: Final = frozenset(Loss)


class LinkState(StrEnum):
    """The state of a conversation's link."""

    ABSENT = "absent"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    ENDED = "ended"
    """The conversation has ended. No link will follow."""


class LinkEvent(StrEnum):
    """What happens to a link."""

    OPEN = "open"
    OPENED = "opened"
    FAILED = "failed"
    """It could not be opened, or the server refused the handshake."""
    LOST = "lost"
    """The process ended, or the server has forgotten the session."""
    DISCARD = "discard"
    """It is not needed (idle stop), or it takes no message."""
    CLOSED = "closed"
    END = "end"


LINK: Final[Mapping[LinkState, Mapping[LinkEvent, LinkState]]] = {
    LinkState.ABSENT: {
        LinkEvent.OPEN: LinkState.OPENING,
        LinkEvent.LOST: LinkState.ABSENT,
        LinkEvent.END: LinkState.ENDED,
    },
    LinkState.OPENING: {
        LinkEvent.OPENED: LinkState.OPEN,
        LinkEvent.LOST: LinkState.OPENING,  # the opening fails by itself
        LinkEvent.FAILED: LinkState.ABSENT,
        LinkEvent.END: LinkState.ENDED,
    },
    LinkState.OPEN: {
        LinkEvent.LOST: LinkState.ABSENT,
        LinkEvent.DISCARD: LinkState.CLOSING,
        LinkEvent.END: LinkState.ENDED,
    },
    LinkState.CLOSING: {
        LinkEvent.LOST: LinkState.CLOSING,
        LinkEvent.CLOSED: LinkState.ABSENT,
        LinkEvent.END: LinkState.ENDED,
    },
    LinkState.ENDED: {
        LinkEvent.FAILED: LinkState.ENDED,
        LinkEvent.LOST: LinkState.ENDED,
        LinkEvent.CLOSED: LinkState.ENDED,
        LinkEvent.END: LinkState.ENDED,
    },
}
"""An opening waits for the end of the link before it, so there are never two."""
