"""The part of a conversation that an operator may watch: what it sends over its link, and what is written to stderr."""

from collections.abc import Callable

from gateway.calls.link_lifecycle import LinkLifecycle
from gateway.calls.link_source import LinkSource
from gateway.calls.session_frames import SessionFrames

__all__ = ["WatchedLink"]


class WatchedLink:
    """`frames` gets the messages to and from the server; None while nobody watches."""

    # Without a dictionary each: there are as many as there are sessions.
    __slots__ = ("_links", "frames", "name")

    def __init__(self, source: LinkSource, links: LinkLifecycle) -> None:
        self.name = source.name  # the server's
        self._links = links
        self.frames: SessionFrames | None = source.frames

    def watch(self, frames: SessionFrames | None) -> None:
        """Have `frames` get the messages from now on, and the last lines of stderr; None: nobody."""
        if frames is not None and self.frames is None:
            frames.hide(self._links.secrets())
            words = self._links.last_words if self._links.link is None else self._links.link.last_words
            for line in words:
                frames.line(self.name, line, is_earlier=True)
        self.frames = frames

    def put(self, frame: bytes) -> None:
        """Send a message over the present link, even while it is shaking hands. Raises `LinkClosed`."""
        self._links.require().send(frame)
        if self.frames is not None:
            self.frames.to_server(self.name, frame)

    @property
    def stderr(self) -> Callable[[str], None] | None:
        """Who gets the lines that the server writes to stderr (LinkEvents)."""
        return None if self.frames is None else self._on_stderr

    def _on_stderr(self, line: str) -> None:
        if self.frames is not None:
            self.frames.line(self.name, line)
