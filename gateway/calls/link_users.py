"""The sessions that use a conversation, and the restarts of its server that each has yet to be notified of. Pure."""

from collections.abc import Iterator
from typing import Final

from gateway.calls.link_source import LinkSession

__all__ = ["LinkUsers"]

_FEW: Final = 4


class LinkUsers:
    """Iterates over the sessions; None stands for requests without a session."""

    # A tuple while they are few: most conversations have one user, and there are as many as there are sessions.

    __slots__ = ("_notices", "_users")

    def __init__(self) -> None:
        self._users: tuple[LinkSession | None, ...] | set[LinkSession | None] = ()
        self._notices: dict[LinkSession | None, str] | None = None

    def __contains__(self, live: LinkSession | None) -> bool:
        return live in self._users

    def __iter__(self) -> Iterator[LinkSession | None]:
        return iter(self._users)

    def add(self, live: LinkSession | None) -> None:
        """Record that a session uses the conversation."""
        if live in self._users:
            return
        if isinstance(self._users, set):
            self._users.add(live)
        elif len(self._users) < _FEW:
            self._users = (*self._users, live)
        else:
            self._users = {*self._users, live}

    def discard(self, live: LinkSession | None) -> None:
        """The session no longer uses the conversation."""
        if isinstance(self._users, set):
            self._users.discard(live)
        else:
            self._users = tuple(user for user in self._users if user is not live)
        self.take_notice(live)

    def restarted(self, reason: str) -> None:
        """Record that the server was restarted. The next result of every session reports it."""
        self._notices = dict.fromkeys(self._users, reason)
        self.changed()

    def notify(self, live: LinkSession, reason: str) -> None:
        """Give one session the reason with its next result, unless another reason waits already."""
        if self._notices is None:
            self._notices = {}
        self._notices.setdefault(live, reason)
        live.changed()

    def changed(self) -> None:
        """What was decided on calls of the sessions does not hold for the next ones."""
        for live in self._users:
            if live is not None:
                live.changed()

    def rest(self) -> None:
        """The sessions give back the memory that their calls have taken."""
        for live in self._users:
            if live is not None:
                live.rest()

    def has_notice(self, live: LinkSession | None) -> bool:
        """Whether the session's next result has to report something."""
        return self._notices is not None and live in self._notices

    def take_notice(self, live: LinkSession | None) -> str | None:
        """The reason for the session's next result. It is returned once."""
        if self._notices is None:
            return None
        reason = self._notices.pop(live, None)
        self._notices = self._notices or None
        return reason
