"""Provide the base class of embedded backends: those that only one gateway process uses.

The author of a backend writes `Records` (eleven short methods) and `run`, and registers a factory for the URL scheme
(`session_store.connect`). `session_store.testing.BackendContract` then tests the backend.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from time import time

from session_store.embedded.accounting import (
    MemoryAuditTrail,
    MemoryExpiringFlags,
    MemoryHistory,
    MemoryQuotas,
    MemoryRates,
    MemoryTimelines,
)
from session_store.embedded.cluster import MemoryBus, MemoryDirectory
from session_store.embedded.events import MemoryEventLog
from session_store.embedded.records_port import Result, Work
from session_store.embedded.sessions import EmbeddedSessionStore, EmbeddedStateStore
from session_store.embedded.tasks import MemoryTasks
from session_store.ports.accounting import AuditTrail, HistoryStore, Quotas
from session_store.ports.backend import Observation
from session_store.ports.errors import StoreError
from session_store.ports.events import EventLog
from session_store.ports.tasks import TaskStore
from session_store.ports.timelines import TimelineStore
from session_store.tokens import KeyRing


class EmbeddedBackend(ABC):
    """Keep sessions and state in the `Records` of a subclass, and everything else in memory.

    For bus, leases, rates and flags, memory is enough for one process. A durable backend may set `events`, `audit`,
    `timelines`, `history`, `quotas` and `tasks` to durable parts of its own, after `super().__init__()`. Otherwise,
    after a restart, clients cannot resume earlier streams; audit trail, timelines and history are empty; earlier
    sessions do not count for quotas; and earlier tasks are unknown.
    """

    is_shared = False
    is_durable = False

    def __init__(self, *, clock: Callable[[], float] = time, sessions: EmbeddedSessionStore | None = None) -> None:
        self.sessions = EmbeddedSessionStore(self, clock) if sessions is None else sessions
        self.state = EmbeddedStateStore(lambda session_id: self, clock)
        self.events: EventLog = MemoryEventLog()
        self.audit: AuditTrail = MemoryAuditTrail()
        self.timelines: TimelineStore = MemoryTimelines(clock)
        self.history: HistoryStore = MemoryHistory()
        self.quotas: Quotas = MemoryQuotas(clock)
        self.tasks: TaskStore = MemoryTasks(clock)
        self.bus = MemoryBus()
        self.directory = MemoryDirectory(self.sessions, clock=clock)
        self.rates = MemoryRates(clock)
        self.flags = MemoryExpiringFlags(clock)

    @abstractmethod
    async def run(self, work: Work[Result]) -> Result:
        """Call `work` with the records in one transaction, and return its result (see `Transactions.run`)."""

    @property
    def needs_keys(self) -> bool:
        """Return True for a durable backend: its sessions outlive the process, and later processes need the same
        signing keys."""
        return self.is_durable

    def own_keys(self) -> KeyRing:
        """Return new random signing keys. Raises `StoreError` for a durable backend, whose sessions need the same keys
        as before."""
        if self.needs_keys:
            raise StoreError("a durable store needs keys that are the same after a restart")
        return KeyRing.ephemeral()

    def protect(self, in_use: Callable[[str], bool]) -> None:  # noqa: B027  # optional
        """Never evict a session for whose id `in_use` returns True. A backend without a limit ignores this."""

    async def inspect(self) -> Sequence[Observation]:
        return [Observation(subject="store", state="ok", text="ready")]

    async def open(self) -> None:  # noqa: B027  # optional
        """Connect to the store or open it. Does nothing by default."""

    async def ping(self) -> None:  # noqa: B027  # optional
        """Check that the store answers. Does nothing by default."""

    async def try_write(self) -> None:  # noqa: B027  # optional
        """Check that the store accepts writes. Does nothing by default."""

    async def close(self) -> None:  # noqa: B027  # optional
        """Release all resources. Does nothing by default."""
