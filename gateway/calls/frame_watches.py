"""The sessions of this replica that operators watch: few, and not for long."""

import asyncio
from collections.abc import Iterator
from time import time
from typing import Final

from gateway.calls.live_session import LiveSession
from gateway.calls.session_frames import SessionFrames

__all__ = ["MOST_WATCHED", "WATCHED_S", "FrameWatches"]

MOST_WATCHED: Final = 8
"""Sessions that are watched at a time."""

WATCHED_S: Final = 600.0
"""After so long a watch ends by itself."""


class FrameWatches:
    """Begins and ends watches."""

    def __init__(self) -> None:
        self._watched: dict[LiveSession, asyncio.TimerHandle] = {}

    def __iter__(self) -> Iterator[SessionFrames]:
        return iter([live.frames for live in self._watched if live.frames is not None])

    def start(self, live: LiveSession, by: str) -> bool:
        """Watch a session for the operator `by`, or watch it for longer. False: too many are watched."""
        for ended in [one for one in self._watched if one.ended]:
            self.stop(ended)
        if live not in self._watched and len(self._watched) >= MOST_WATCHED:
            return False
        if live.frames is None:
            live.watched_by(SessionFrames(live.session.id, by), live.conversations)
        assert live.frames is not None
        live.frames.extend(by, time() + WATCHED_S)
        if (timer := self._watched.pop(live, None)) is not None:
            timer.cancel()
        self._watched[live] = asyncio.get_running_loop().call_later(WATCHED_S, self.stop, live)
        return True

    def stop(self, live: LiveSession) -> None:
        """Watch a session no longer, and forget what was seen."""
        if (timer := self._watched.pop(live, None)) is not None:
            timer.cancel()
        live.watched_by(None, live.conversations)
