"""Define the interface by which a store backend keeps session records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from session_store.session import Principal, Session

SessionStatus = Literal["live", "ended", "expired", "evicted", "unknown"]
"""The status of a session: it is live, or how it ended. `unknown`: it never existed, or ended too long ago."""


SetField = Literal["children", "links", "remote", "subscriptions"]
"""The fields of a record that are sets of names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A session that expired or was evicted."""

    session_id: str
    reason: Literal["expired", "evicted"]


class SessionStore(Protocol):
    """Store sessions by id and by alias.

    For a missing, an expired and an ended session, the answer is the same: None. Every method may raise
    `StoreUnavailable`. Concurrent calls are safe: two calls that create a session under one alias get the same session,
    and no update of a field is lost.
    """

    async def create(self, session: Session, *, alias: str | None = None) -> Session:
        """Store `session` and return it. If a live session has the alias already, resume and return that session
        instead.

        Raises:
            StoreFull: the store has a limit, and every session in it is in use.
        """

    async def resume(self, session_id: str, principal: Principal, known: Session | None = None) -> Session | None:
        """Return the live session with this id. Confirm it and restart its idle timer, because its client has sent a
        request.

        Return None for another principal's session too, and do not change it. `known` is the caller's copy of the
        session: if its `version` is current, the store need not send the record again.
        """

    async def named(self, alias: str) -> Session | None:
        """Return the live session with this alias. Does not count as use."""

    async def resume_alias(self, alias: str) -> Session | None:
        """Resume the session with this alias, like `resume`. The alias contains the principal, so none is compared."""

    async def peek(self, session_id: str) -> Session | None:
        """Return the live session with this id. Does not count as use."""

    async def touch(self, session_id: str) -> bool:
        """Restart the session's idle timer. Return False if the session has ended."""

    async def update(self, session_id: str, *, if_version: int | None = None, **fields: object) -> Session | None:
        """Set these fields of the record, and return it. Times, metadata, owner and epoch cannot be set here.

        Return None, and change nothing, if the session is not live, or if its version differs from `if_version`."""

    async def change_set(self, session_id: str, field: SetField, *, add: str = "", remove: str = "") -> Session | None:
        """Add one name to a field that is a set of names, or remove one, and return the record. Concurrent changes are
        not lost."""

    async def annotate(self, session_id: str, changes: Mapping[str, str | None]) -> Session | None:
        """Set these entries of the metadata, and return the record. The value None removes an entry.

        Raises:
            InvalidMetadata: the metadata would be too large. Nothing changes.
        """

    async def end(self, session_id: str) -> bool:
        """Delete the session and its state. Return True to the one caller that has ended it, False to all others."""

    async def page(self, *, after: str = "", limit: int = 100) -> list[Session]:
        """Return live sessions in order of id, starting after the id `after`."""

    async def gone(self, session_ids: Sequence[str]) -> list[str]:
        """Return those of the given ids that belong to no live session."""

    async def status(self, session_id: str) -> SessionStatus:
        """Return the status of the session with this id. For logs, never for clients."""

    async def sweep(self) -> list[Gone]:
        """Delete expired sessions, and return them with the evicted ones. Each is returned exactly once, to one
        caller."""
