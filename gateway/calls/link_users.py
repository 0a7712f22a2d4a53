"""The sessions that use a conversation, and those that have yet to learn that its server was restarted. Pure."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.calls.live_session import LiveSession

__all__ = ["LinkUsers"]


class LinkUsers:
    """Iterates over the sessions; None stands for requests without a session."""

    __slots__ = ("_notices", "_users")

    def __init__(self) -> None:
        self._users: set[LiveSession | None] = set()
        self._notices: dict[LiveSession | None, str] = {}

    def __contains__(self, live: "LiveSession | None") -> bool:
        return live in self._users

    def __iter__(self) -> "Iterator[LiveSession | None]":
        return iter(self._users)

    def add(self, live: "LiveSession | None") -> None:
        """Record that a session uses the conversation."""
        self._users.add(live)

    def discard(self, live: "LiveSession | None") -> None:
        """It does no longer."""
        self._users.discard(live)
        self._notices.pop(live, None)

    def restarted(self, reason: str) -> None:
        """Record that the server was restarted. The next result of every session reports it."""
        self._notices = dict.fromkeys(self._users, reason)

    def notify(self, live: "LiveSession", reason: str) -> None:
        """One session gets that with its next result, unless another reason waits for it already."""
        self._notices.setdefault(live, reason)

    def take_notice(self, live: "LiveSession | None") -> str | None:
        """The reason that the session has yet to learn. It is returned once."""
        return self._notices.pop(live, None)
