"""The life of a session on one replica, as a table. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

__all__ = ["GONE", "LIVE", "LiveEvent", "LiveState"]


class LiveState(StrEnum):
    """Where a session is in its life on this replica."""

    OPENING = "opening"
    """Streams that an earlier process has left open have yet to be ended."""
    LIVE = "live"
    DRAINING = "draining"
    """Its streams end; calls in flight go on."""
    ENDED = "ended"
    ELSEWHERE = "elsewhere"
    """It lives on another replica, or in a later process. Its sessions at servers behind URLs are kept."""


class LiveEvent(StrEnum):
    """What happens to it."""

    RECOVER = "recover"
    UNRECOVERED = "unrecovered"
    """The store has failed the recovery; the next request tries again."""
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
