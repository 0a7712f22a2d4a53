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
    """`frames` gets the messages of the session; None while nobody watches."""

    __slots__ = ("frames",)

    def __init__(self) -> None:
        super().__init__()
        self.frames: SessionFrames | None = None

    def watched_by(self, frames: SessionFrames | None, links: Mapping[Any, _Watched]) -> None:
        """Have `frames` get the messages of the session and of its links from now on; None: nobody."""
        self.frames = frames
        for link in links.values():
            link.watch(frames)

    def client_sent(self, message: Message | None) -> None:
        """Show that message of the client to whoever watches."""
        if self.frames is not None and message is not None:
            self.frames.from_client(message)
