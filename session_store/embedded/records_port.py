"""Define what the author of an embedded backend writes: access to stored records, inside one transaction.

`session_store.embedded.backend.EmbeddedBackend` builds the rest of a backend on it. The methods here only read and
write. That class decides what an operation means: expiry, ownership, limits.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from session_store.ports.sessions import SessionStatus
from session_store.session import Session

Result = TypeVar("Result")


class Records(ABC):
    """Read and write sessions by id or alias, and values by session and key. Expired sessions still have records.

    All methods are synchronous: they run inside a transaction (see `Transactions`).
    """

    @abstractmethod
    def read(self, session_id: str) -> Session | None:
        """Return the record of the session, even if it has expired; None if there is none."""

    @abstractmethod
    def write(self, session: Session) -> None:
        """Create or replace the record of the session."""

    @abstractmethod
    def remove(self, session_id: str) -> None:
        """Delete the session's record and values, and its alias unless another session has the alias now."""

    @abstractmethod
    def scan(self, after: str = "") -> Iterable[Session]:
        """Return all records in order of id, starting after the id `after`."""

    @abstractmethod
    def named(self, alias: str) -> str | None:
        """Return the id of the session that has the alias; None if there is none."""

    @abstractmethod
    def set_alias(self, alias: str, session_id: str) -> None:
        """Give the alias to a session that has none yet. Another session that has this alias loses it."""

    @abstractmethod
    def value(self, session_id: str, key: str) -> bytes | None:
        """Return the value under the key; None if there is none."""

    @abstractmethod
    def set_value(self, session_id: str, key: str, value: bytes | None) -> None:
        """Store the value under the key; None deletes the key."""

    @abstractmethod
    def keys(self, session_id: str) -> list[str]:
        """Return the keys that have a value, sorted."""

    @abstractmethod
    def record_status(self, session_id: str, status: SessionStatus, at: float) -> None:
        """Record that a session was removed at the time `at` (seconds since the epoch), and how it ended (`status`).
        Old entries may be dropped."""

    @abstractmethod
    def status(self, session_id: str) -> SessionStatus:
        """Return the status that `record_status` recorded for the session; `unknown` if there is none."""

    # -- Correct for every backend. A backend that can do them faster overrides them.

    def use(self, session: Session) -> None:
        """Write the record of a session that was just used. A backend that evicts by last use updates that order
        here."""
        self.write(session)

    def size(self, session_id: str, *, without: str = "") -> int:
        """Return the total bytes of the session's keys and values, leaving out the key `without` and its value."""
        keys = [key for key in self.keys(session_id) if key != without]
        return sum(len(key.encode()) + len(self.value(session_id, key) or b"") for key in keys)

    def expired(self, now: float) -> list[str]:
        """Return the ids of the sessions that have expired."""
        return [session.id for session in self.scan() if session.is_expired(now)]

    def prune(self, now: float) -> None:  # noqa: B027  # optional
        """Delete the old entries of `record_status`. Does nothing by default."""


Work = Callable[[Records], Result]


class Transactions(Protocol):
    """Run functions on the records, each in a transaction."""

    async def run(self, work: Work[Result]) -> Result:
        """Call `work` with the records, and return its result once its changes are stored.

        Nothing else reads or writes the records meanwhile. `work` never raises after it has changed something, so its
        exceptions need no rollback; they are raised here. Raises `StoreUnavailable`.
        """


def live(records: Records, session_id: str, now: float) -> Session | None:
    """Return the live session with this id; None if it does not exist or has expired."""
    session = records.read(session_id)
    return None if session is None or session.is_expired(now) else session
