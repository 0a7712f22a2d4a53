"""The sessions that use a conversation, and the restarts of its server that each has yet to be notified of. Pure."""

from collections.abc import Iterator

from gateway.calls.link_source import LinkSession

__all__ = ["LinkUsers"]


class LinkUsers:
    """Iterates over the sessions; None stands for requests without a session."""

    __slots__ = ("_notices", "_users")

    def __init__(self) -> None:
        self._users: set[LinkSession | None] = set()
        self._notices: dict[LinkSession | None, str] = {}

    def __contains__(self, live: LinkSession | None) -> bool:
        return live in self._users

    def __iter__(self) -> Iterator[LinkSession | None]:
        return iter(self._users)

    def add(self, live: LinkSession | None) -> None:
        """Record that a session uses the conversation."""
        self._users.add(live)

    def discard(self, live: LinkSession | None) -> None:
        """The session no longer uses the conversation."""
        self._users.discard(live)
        self._notices.pop(live, None)

    def restarted(self, reason: str) -> None:
        """Record that the server was restarted. The next result of every session reports it."""
        self._notices = dict.fromkeys(self._users, reason)

    def notify(self, live: LinkSession, reason: str) -> None:
        """Give one session the reason with its next result, unless another reason waits already."""
        self._notices.setdefault(live, reason)

    def take_notice(self, live: LinkSession | None) -> str | None:
        """The reason for the session's next result. It is returned once."""
        return self._notices.pop(live, None)
