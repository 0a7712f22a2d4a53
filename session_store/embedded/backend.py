"""Provide the base class of embedded backends: those that only one gateway process uses.

The author of a backend writes `Records` (eleven short methods) and `run`, and registers a factory for the URL scheme
(`session_store.connect`). `session_store.testing.BackendContract` then tests the backend.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from time import time

from msgspec.structs import replace

from session_store.embedded import accounting
from session_store.embedded.events import MemoryEventLog
from session_store.embedded.records_port import Result, Work
from session_store.embedded.sessions import EmbeddedSessionStore, EmbeddedStateStore
from session_store.embedded.tasks import MemoryTasks
from session_store.ports.audit import AuditTrail
from session_store.ports.backend import Observation
from session_store.ports.errors import StoreError
from session_store.ports.events import EventLog
from session_store.ports.quotas import Quotas, SealedValues
from session_store.ports.replica_directory import ConfigurationNumbers, next_epoch
from session_store.ports.tasks import TaskStore
from session_store.ports.timelines import HistoryStore, TimelineStore
from session_store.session import Session
from session_store.token_signing import KeyRing


class EmbeddedBackend(ABC):
    """Keep sessions and state in the `Records` of a subclass, and everything else in memory.

    For bus, leases, rates and flags, memory is enough for one process. A durable backend may set `events`, `audit`,
    `timelines`, `history`, `quotas`, `tasks` and `sealed` to durable parts of its own, after `super().__init__()`.
    Otherwise, after a restart, clients cannot resume earlier streams; audit trail, timelines and history are empty;
    earlier sessions do not count for quotas; earlier tasks are unknown; and people have to connect accounts again.
    """

    is_shared = False
    is_durable = False

    def __init__(self, *, clock: Callable[[], float] = time, sessions: EmbeddedSessionStore | None = None) -> None:
        self.sessions = EmbeddedSessionStore(self, clock) if sessions is None else sessions
        self.state = EmbeddedStateStore(lambda session_id: self, clock)
        self.events: EventLog = MemoryEventLog()
        self.audit: AuditTrail = accounting.MemoryAuditTrail()
        self.timelines: TimelineStore = accounting.MemoryTimelines(clock)
        self.history: HistoryStore = accounting.MemoryHistory()
        self.quotas: Quotas = accounting.MemoryQuotas(clock)
        self.tasks: TaskStore = MemoryTasks(clock)
        self.bus = MemoryBus()
        self.directory = MemoryDirectory(self.sessions, clock=clock)
        self.rates = accounting.MemoryRates(clock)
        self.flags = accounting.MemoryExpiringFlags(clock)
        self.sealed: SealedValues = accounting.MemorySealedValues(clock)

    @abstractmethod
    async def run(self, work: Work[Result]) -> Result:
        """Call `work` with the backend's records in one transaction, and return the result of `work` (see
        `Transactions.run`)."""

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
        """Set the function by which the store knows which sessions are in use. A session for whose id `in_use` returns
        True is never evicted. A backend without a limit of sessions ignores this."""

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


class MemoryBus:
    """Deliver messages to the subscribers in this process. `publish` calls the subscribers itself, before it
    returns."""

    def __init__(self) -> None:
        self._subscribers: defaultdict[str, list[Callable[[bytes | None], None]]] = defaultdict(list)

    async def publish(self, topic: str, data: bytes) -> None:
        for receive in tuple(self._subscribers.get(topic, ())):
            receive(data)

    @asynccontextmanager
    async def subscribed(self, topic: str, receive: Callable[[bytes | None], None]) -> AsyncIterator[None]:
        self._subscribers[topic].append(receive)
        try:
            yield
        finally:
            self._subscribers[topic].remove(receive)
            if not self._subscribers[topic]:
                del self._subscribers[topic]


class MemoryDirectory:
    """Keep the leases of replicas in memory. The owner of a session is a field of the session's record."""

    def __init__(self, sessions: EmbeddedSessionStore, *, clock: Callable[[], float] = time) -> None:
        self._sessions = sessions
        self._clock = clock
        self._leases: dict[str, tuple[str, float]] = {}
        self._lost: defaultdict[str, list[str]] = defaultdict(list)
        self._configurations: dict[str, int] = {}
        self._held: dict[str, tuple[int, float]] = {}

    def when_connected(self, callback: Callable[[], None]) -> None:
        """Do nothing: there is no connection on which a claim could be lost, so `callback` is never called."""

    async def renew_lease(self, replica: str, address: str, lease_s: float, handled: Sequence[str] = ()) -> list[str]:
        self._leases[replica] = (address, self._clock() + lease_s)
        lost = self._lost[replica]
        for told in handled:
            if told in lost:
                lost.remove(told)
        return [*lost]

    async def end_lease(self, replica: str) -> None:
        self._leases.pop(replica, None)

    async def hold_configuration(
        self, replica: str, digest: str, *, number: int, is_edited: bool, hold_s: float
    ) -> ConfigurationNumbers:
        now, known = self._clock(), self._configurations
        self._held = {name: held for name, held in self._held.items() if now < held[1] and name != replica}
        newest = max((its for its, _ in self._held.values()), default=0)
        if digest in known and not (is_edited and number >= newest):
            own = known[digest]
        elif number and digest not in known and not is_edited and number not in known.values():
            own = number
        else:
            own = max([number, *known.values()]) + 1
        if hold_s:
            known[digest] = own
            self._held[replica] = (own, now + hold_s)
            newest = max(newest, own)
        return ConfigurationNumbers(own, newest, tuple(name for name, held in self._held.items() if held[0] == newest))

    async def address(self, replica: str) -> str | None:
        return (await self.replicas()).get(replica)

    async def lease_left(self, replica: str) -> float | None:
        _, until = self._leases.get(replica, ("", 0.0))
        left_s = until - self._clock()
        return left_s if left_s > 0 else None

    async def last_address(self, replica: str) -> str | None:
        return self._leases[replica][0] if replica in self._leases else None

    async def replicas(self) -> dict[str, str]:
        now = self._clock()
        return {name: address for name, (address, until) in self._leases.items() if now < until}

    async def claim(self, session_id: str, replica: str, *, epoch: int) -> int | None:
        before: list[str] = []

        def claimed(session: Session) -> Session | None:
            if session.epoch != epoch:
                return None
            before.append(session.owner)
            return replace(session, owner=replica, epoch=next_epoch(epoch))

        session = await self._sessions.change(session_id, claimed)
        if session is None:
            return None
        if before[0] and before[0] != replica:
            await self.tell_lost(before[0], [session_id])
        return session.epoch

    async def tell_lost(self, replica: str, session_ids: Sequence[str]) -> None:
        self._lost[replica] += session_ids

    async def copied(self, session_id: str) -> bool:
        return True

    async def owners(self, session_ids: Sequence[str]) -> list[tuple[str, int] | None]:
        found = [await self._sessions.peek(session_id) for session_id in session_ids]
        return [None if session is None else (session.owner, session.epoch) for session in found]

    async def acknowledged(self, replica: str, session_id: str) -> bool:
        return session_id not in self._lost.get(replica, ())

    async def release(self, session_id: str, replica: str, *, epoch: int) -> bool:
        def released(session: Session) -> Session | None:
            return replace(session, owner="") if (session.owner, session.epoch) == (replica, epoch) else None

        return await self._sessions.change(session_id, released) is not None
