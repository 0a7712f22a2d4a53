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
        """Store `session`, and return it. If a live session has the alias already, do not store `session`: resume that
        other session (as `resume` does), and return it.

        Raises:
            StoreFull: the store has a limit, and every session in it is in use.
        """

    async def resume(self, session_id: str, principal: Principal, known: Session | None = None) -> Session | None:
        """Return the live session with this id, because its client has sent a request: mark the session as confirmed,
        and restart its idle timer.

        Return None, and change nothing, if the session is not live or belongs to another principal. `known` is the
        caller's copy of the session: if its `version` is current, the store need not send the record again.
        """

    async def named(self, alias: str) -> Session | None:
        """Return the live session with this alias; None if there is none. This does not restart its idle timer."""

    async def resume_alias(self, alias: str) -> Session | None:
        """Return the live session with this alias, and confirm it and restart its idle timer, as `resume` does; None if
        there is none. An alias contains the principal, so no principal is compared."""

    async def peek(self, session_id: str) -> Session | None:
        """Return the live session with this id; None if there is none. This does not restart its idle timer."""

    async def touch(self, session_id: str) -> bool:
        """Restart the session's idle timer. Return False if the session has ended."""

    async def update(self, session_id: str, *, if_version: int | None = None, **fields: object) -> Session | None:
        """Set these fields of the session's record, and return the new record. Times, metadata, owner and epoch cannot
        be set here.

        Return None, and change nothing, if the session is not live, or if its version differs from `if_version`.
        """

    async def change_set(self, session_id: str, field: SetField, *, add: str = "", remove: str = "") -> Session | None:
        """Add the name `add` to a field that is a set of names, or remove the name `remove`. Return the new record;
        None if the session is not live. Concurrent changes are not lost."""

    async def annotate(self, session_id: str, changes: Mapping[str, str | None]) -> Session | None:
        """Set these entries of the session's metadata; the value None removes an entry. Return the new record; None if
        the session is not live.

        Raises:
            InvalidMetadata: the metadata would be too large. Nothing changes.
        """

    async def end(self, session_id: str) -> bool:
        """Delete the session and its state. Return True to the one caller that has ended it, False to all others."""

    async def page(self, *, after: str = "", limit: int = 100) -> list[Session]:
        """Return at most `limit` live sessions in order of id, starting after the id `after`."""

    async def gone(self, session_ids: Sequence[str]) -> list[str]:
        """Return those of the given ids that belong to no live session."""

    async def status(self, session_id: str) -> SessionStatus:
        """Return whether the session with this id is live, or how it ended; `unknown` if the store does not know. For
        logs, never for clients."""

    async def sweep(self) -> list[Gone]:
        """Delete expired sessions. Return these and the sessions that were evicted since the last call. Each is
        returned exactly once, to one caller."""
