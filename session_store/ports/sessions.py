"""What a backend does with session records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from session_store.session import Principal, Session

__all__ = ["Fate", "Gone", "SessionStore", "SetField"]

Fate = Literal["live", "ended", "expired", "evicted", "unknown"]
"""What happened to the session of an id. `unknown` also when it ended too long ago."""


SetField = Literal["children", "links", "remote", "subscriptions"]
"""Fields of a record that are sets of names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A session that expired or was evicted."""

    session_id: str
    reason: Literal["expired", "evicted"]


class SessionStore(Protocol):
    """Sessions by id, and by alias.

    The answer for a missing, an expired and an ended session is the same: None. Every method may raise
    `StoreUnavailable`. Concurrent calls are safe: two calls that create under one alias get the same session, and no
    update of a field is lost.
    """

    async def create(self, session: Session, *, alias: str | None = None) -> Session:
        """Store `session`. If its alias already names a live session, resume and return that one instead.

        Raises:
            StoreFull: the store is bounded and every session in it is in use.
        """
        ...

    async def resume(self, session_id: str, principal: Principal, known: Session | None = None) -> Session | None:
        """Return the live session of that id, confirmed and with its idle time restarted: its client sent a request.

        None also if the session is another principal's, which leaves it unchanged. `known` is the caller's copy of the
        session: while its `version` is current, a store need not send the record again.
        """
        ...

    async def named(self, alias: str) -> Session | None:
        """Return the live session with that alias. Does not count as use."""
        ...

    async def resume_alias(self, alias: str) -> Session | None:
        """As `resume`, by alias. The alias includes the principal, so ownership is not checked again."""
        ...

    async def peek(self, session_id: str) -> Session | None:
        """Return the live session of that id. Does not count as use."""
        ...

    async def touch(self, session_id: str) -> bool:
        """Restart the idle time; False when the session has ended."""
        ...

    async def update(self, session_id: str, *, if_version: int | None = None, **fields: object) -> Session | None:
        """Set these fields of the record only. Not for times, metadata, owner and epoch. With `if_version` only if the
        record has that version: None, and nothing changes, if somebody else has written since it was read."""
        ...

    async def change_set(
        self,
        session_id: str,
        field: Literal["children", "links", "remote", "subscriptions"],
        *,
        add: str = "",
        remove: str = "",
    ) -> Session | None:
        """Add one name to a field that is a set of names, or remove one. Concurrent changes are kept."""
        ...

    async def annotate(self, session_id: str, changes: Mapping[str, str | None]) -> Session | None:
        """Change these names of the metadata; None removes a name.

        Raises:
            InvalidMetadata: the metadata would be too large. Nothing changes.
        """
        ...

    async def end(self, session_id: str) -> bool:
        """Delete the session and its state. True for the one caller that ended it; further calls are harmless."""
        ...

    async def page(self, *, after: str = "", limit: int = 100) -> list[Session]:
        """Live sessions in order of id, starting after the id `after`."""
        ...

    async def gone(self, session_ids: Sequence[str]) -> list[str]:
        """Return those of these ids that name no live session."""
        ...

    async def fate(self, session_id: str) -> Fate:
        """Return what happened to the session of that id. For logs, never for clients."""
        ...

    async def sweep(self) -> list[Gone]:
        """Delete expired sessions, and return them with those evicted. Each is returned exactly once, to one caller."""
        ...
