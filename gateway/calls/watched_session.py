"""The part of a live session that an operator may watch."""

from collections.abc import Mapping
from typing import Any, Protocol

from gateway.calls.session_frames import SessionFrames
from gateway.calls.usage import Usage
from transports.jsonrpc import Message

__all__ = ["WatchedSession"]


class _Watched(Protocol):
    def watch(self, frames: SessionFrames | None) -> None: ...


class WatchedSession(Usage):
    """`frames` gets the messages of the session; None while nobody watches. `version` is another number after each
    change of what its calls were decided on: its life, its record, its links, who watches."""

    __slots__ = ("frames", "version")

    def __init__(self) -> None:
        super().__init__()
        self.frames: SessionFrames | None = None
        self.version = 0

    def changed(self) -> None:
        """What was decided on a call of the session does not hold for the next one."""
        self.version += 1

    def watched_by(self, frames: SessionFrames | None, links: Mapping[Any, _Watched]) -> None:
        """Have `frames` get the messages of the session and of its links from now on; None: nobody."""
        self.frames = frames
        self.changed()
        for link in links.values():
            link.watch(frames)

    def client_sent(self, message: Message | None) -> None:
        """Show that message of the client to whoever watches."""
        if self.frames is not None and message is not None:
            self.frames.from_client(message)
