"""Define the parts of a store backend, which one store URL selects."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from session_store.ports.audit import AuditTrail
from session_store.ports.events import EventLog
from session_store.ports.quotas import ExpiringFlags, Quotas, Rates, SealedValues
from session_store.ports.replica_directory import Bus, Directory
from session_store.ports.sessions import SessionStore
from session_store.ports.tasks import TaskStore
from session_store.ports.timelines import HistoryStore, TimelineStore
from session_store.ports.tool_state import StateStore
from session_store.token_signing import KeyRing


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A fact about a store that an operator should know, such as a finding of `Backend.inspect`.

    `state` is `ok`, `warning` (the store works now, but will fail under load or after a restart) or `error`. `advice`
    says what to do; empty for `ok`.
    """

    subject: str
    state: Literal["ok", "warning", "error"]
    text: str
    advice: str = ""


class Backend(Protocol):
    """All parts of one store, which one URL selects: sessions, state, events, tasks and the others."""

    @property
    def is_durable(self) -> bool:
        """Return True if sessions outlive the process."""

    @property
    def is_shared(self) -> bool:
        """Return True if several gateway processes may use the store at once."""

    @property
    def needs_keys(self) -> bool:
        """Return True if the operator must configure signing keys, because several processes or runs need the same
        keys."""

    def own_keys(self) -> KeyRing:
        """Return the signing keys that the backend provides if the operator configures none. Not called if
        `needs_keys`.

        Raises:
            StoreError: the keys cannot be read or made.
        """

    def protect(self, in_use: Callable[[str], bool]) -> None:
        """Set the function by which the store knows which sessions are in use. A session for whose id `in_use` returns
        True is never evicted. A backend without a limit of sessions ignores this."""

    async def inspect(self) -> Sequence[Observation]:
        """Return what an operator should know about the store. Called when the store is open. Raises `StoreError`."""

    @property
    def sessions(self) -> SessionStore: ...

    @property
    def state(self) -> StateStore: ...

    @property
    def events(self) -> EventLog: ...

    @property
    def tasks(self) -> TaskStore: ...

    @property
    def bus(self) -> Bus: ...

    @property
    def directory(self) -> Directory: ...

    @property
    def audit(self) -> AuditTrail: ...

    @property
    def timelines(self) -> TimelineStore: ...

    @property
    def history(self) -> HistoryStore: ...

    @property
    def rates(self) -> Rates: ...

    @property
    def quotas(self) -> Quotas: ...

    @property
    def flags(self) -> ExpiringFlags: ...

    @property
    def sealed(self) -> SealedValues: ...

    async def open(self) -> None:
        """Connect to the store or open it. Raises `StoreError`, which says what is wrong and what to do."""

    async def ping(self) -> None:
        """Check that the store answers. Raises `StoreUnavailable`."""

    async def try_write(self) -> None:
        """Check that the store accepts writes, by a small write that changes nothing. Raises `StoreUnavailable`."""

    async def close(self) -> None:
        """Release all resources."""
