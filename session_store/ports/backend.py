"""All that one store URL gives."""

from typing import Protocol

from session_store.ports.accounting import Marks, Quotas, Rates
from session_store.ports.audit import AuditTrail
from session_store.ports.cluster import Bus, Directory
from session_store.ports.events import EventLog
from session_store.ports.sessions import SessionStore
from session_store.ports.state import StateStore

__all__ = ["Backend"]


class Backend(Protocol):
    """All that one URL gives."""

    @property
    def is_durable(self) -> bool:
        """True if sessions outlive the process."""
        ...

    @property
    def is_shared(self) -> bool:
        """True if many gateway processes may use it at once."""
        ...

    @property
    def sessions(self) -> SessionStore: ...

    @property
    def state(self) -> StateStore: ...

    @property
    def events(self) -> EventLog: ...

    @property
    def bus(self) -> Bus: ...

    @property
    def directory(self) -> Directory: ...

    @property
    def audit(self) -> AuditTrail: ...

    @property
    def rates(self) -> Rates: ...

    @property
    def quotas(self) -> Quotas: ...

    @property
    def marks(self) -> Marks: ...

    async def open(self) -> None:
        """Connect or open. Raises `StoreError`, which says what is wrong and what to do."""
        ...

    async def ping(self) -> None:
        """Check that the store answers. Raises `StoreUnavailable`."""
        ...

    async def try_write(self) -> None:
        """Check that the store accepts writes, with a small write of no meaning. Raises `StoreUnavailable`."""
        ...

    async def close(self) -> None:
        """Release all resources."""
        ...
