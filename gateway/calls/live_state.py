"""The life of a session on one replica, as a table. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

__all__ = ["GONE", "LIVE", "LiveEvent", "LiveState"]


class LiveState(StrEnum):
    """The state of a session on this replica."""

    OPENING = "opening"
    """Streams that an earlier process left open have yet to be ended."""
    LIVE = "live"
    DRAINING = "draining"
    """Its streams end. Calls in flight continue."""
    ENDED = "ended"
    ELSEWHERE = "elsewhere"
    """Another replica or a later process continues it. Its sessions at servers behind URLs are kept."""


class LiveEvent(StrEnum):
    """What happens to a live session."""

    RECOVER = "recover"
    UNRECOVERED = "unrecovered"
    """The store failed during the recovery. The next request tries again."""
    DRAIN = "drain"
    END = "end"
    HAND_OVER = "hand over"


_S, _E = LiveState, LiveEvent
_ENDS: Final = {_E.END: _S.ENDED, _E.HAND_OVER: _S.ELSEWHERE}

LIVE: Final[Mapping[LiveState, Mapping[LiveEvent, LiveState]]] = {
    _S.OPENING: {_E.RECOVER: _S.LIVE, _E.DRAIN: _S.DRAINING, **_ENDS},
    _S.LIVE: {_E.UNRECOVERED: _S.OPENING, _E.DRAIN: _S.DRAINING, **_ENDS},
    _S.DRAINING: {_E.DRAIN: _S.DRAINING, **_ENDS},
    _S.ENDED: {_E.END: _S.ENDED, _E.HAND_OVER: _S.ENDED},
    _S.ELSEWHERE: {_E.HAND_OVER: _S.ELSEWHERE, _E.END: _S.ENDED},
}

GONE: Final = frozenset({_S.ENDED, _S.ELSEWHERE})
