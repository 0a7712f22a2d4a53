"""Define what a backend does with session records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from session_store.session import Principal, Session

SessionStatus = Literal["live", "ended", "expired", "evicted", "unknown"]
"""The state of the session with an id, or how it ended. `unknown`: there was none, or it ended too long ago."""


SetField = Literal["children", "links", "remote", "subscriptions"]
"""Fields of a record that are sets of names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A session that expired or was evicted."""

    session_id: str
    reason: Literal["expired", "evicted"]


class SessionStore(Protocol):
    """Keep sessions by id and by alias.

    The answer for a missing, an expired and an ended session is the same: None. Every method may raise
    `StoreUnavailable`. Concurrent calls are safe: two calls that create under one alias get the same session, and no
    update of a field is lost.
    """

    async def create(self, session: Session, *, alias: str | None = None) -> Session:
        """Store `session`. If its alias already names a live session, resume and return that one instead.

        Raises:
            StoreFull: the store is bounded and every session in it is in use.
        """

    async def resume(self, session_id: str, principal: Principal, known: Session | None = None) -> Session | None:
        """Return the live session of that id. Confirm it and restart its idle time: its client sent a request.

        Return None also for another principal's session, which stays unchanged. `known` is the caller's copy of the
        session: while its `version` is current, a store need not send the record again.
        """

    async def named(self, alias: str) -> Session | None:
        """Return the live session with that alias. Does not count as use."""

    async def resume_alias(self, alias: str) -> Session | None:
        """Resume the session with that alias, like `resume`. The alias contains the principal, so none is checked."""

    async def peek(self, session_id: str) -> Session | None:
        """Return the live session of that id. Does not count as use."""

    async def touch(self, session_id: str) -> bool:
        """Restart the idle time. Return False if the session has ended."""

    async def update(self, session_id: str, *, if_version: int | None = None, **fields: object) -> Session | None:
        """Set these fields of the record, and return it. Not for times, metadata, owner and epoch. With `if_version`,
        return None and change nothing if the record has another version: it was changed since it was read."""

    async def change_set(self, session_id: str, field: SetField, *, add: str = "", remove: str = "") -> Session | None:
        """Add one name to a field that is a set of names, or remove one. Concurrent changes are not lost."""

    async def annotate(self, session_id: str, changes: Mapping[str, str | None]) -> Session | None:
        """Set these entries of the metadata. The value None removes an entry.

        Raises:
            InvalidMetadata: the metadata would be too large. Nothing changes.
        """

    async def end(self, session_id: str) -> bool:
        """Delete the session and its state. Return True to the one caller that ended it. More calls are harmless."""

    async def page(self, *, after: str = "", limit: int = 100) -> list[Session]:
        """Return live sessions in order of id, starting after the id `after`."""

    async def gone(self, session_ids: Sequence[str]) -> list[str]:
        """Return the ids, out of these, that name no live session."""

    async def status(self, session_id: str) -> SessionStatus:
        """Return the status of the session of that id. For logs, never for clients."""

    async def sweep(self) -> list[Gone]:
        """Delete expired sessions, and return them with those evicted. Each is returned exactly once, to one caller."""
