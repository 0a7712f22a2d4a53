"""The embedded backend: everything in this process. Also what other embedded backends share: bus, directory, audit."""

from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from time import time
from typing import Final

from session_store.audit import PARTS, by_part, newest
from session_store.marks import MemoryMarks
from session_store.memory.directory import MemoryDirectory
from session_store.memory.events import MAX_LOG_BYTES, MAX_LOG_EVENTS, MemoryEventLog
from session_store.memory.sessions import MAX_SESSIONS, MemorySessionStore, MemoryStateStore
from session_store.ports.audit import AuditEvent
from session_store.ports.backend import Observation
from session_store.quotas import MemoryQuotas
from session_store.rates import MemoryRates
from session_store.tokens import KeyRing

__all__ = [
    "MAX_LOG_BYTES",
    "MAX_LOG_EVENTS",
    "MAX_SESSIONS",
    "MemoryAuditTrail",
    "MemoryBackend",
    "MemoryBus",
    "MemoryEventLog",
    "MemorySessionStore",
    "MemoryStateStore",
]


_AUDIT_HELD: Final = 2_000
"""Events of each part of the audit trail: they take memory of this process, and are gone with it."""


class MemoryBus:
    """Calls the listeners of this process."""

    def __init__(self) -> None:
        self._listeners: defaultdict[str, list[Callable[[bytes | None], None]]] = defaultdict(list)

    async def publish(self, topic: str, data: bytes) -> None:
        for hear in tuple(self._listeners.get(topic, ())):
            hear(data)

    @asynccontextmanager
    async def subscribed(self, topic: str, receive: Callable[[bytes | None], None]) -> AsyncIterator[None]:
        self._listeners[topic].append(receive)
        try:
            yield
        finally:
            self._listeners[topic].remove(receive)
            if not self._listeners[topic]:
                del self._listeners[topic]


class MemoryAuditTrail:
    """The newest events in this process."""

    def __init__(self, max_events: int = _AUDIT_HELD) -> None:
        self._parts = {part: deque[AuditEvent](maxlen=max_events) for part in PARTS}

    async def record(self, events: Sequence[AuditEvent]) -> None:
        for part, found in by_part(events).items():
            self._parts[part].extend(found)

    async def recent(self, limit: int = 100) -> list[AuditEvent]:
        return newest((list(part)[-limit:][::-1] for part in self._parts.values()), limit)


class MemoryBackend:
    """`memory://`"""

    is_durable = False
    is_shared = False
    needs_keys = False

    def __init__(self, *, clock: Callable[[], float] = time, max_sessions: int = MAX_SESSIONS) -> None:
        self.sessions = MemorySessionStore(clock=clock, max_sessions=max_sessions)
        self.state = MemoryStateStore(self.sessions)
        self.events = MemoryEventLog()
        self.bus = MemoryBus()
        self.directory = MemoryDirectory(self.sessions, clock=clock)
        self.audit = MemoryAuditTrail()
        self.rates = MemoryRates(clock)
        self.quotas = MemoryQuotas()
        self.marks = MemoryMarks(clock)

    def own_keys(self) -> KeyRing:
        return KeyRing.ephemeral()

    def protect(self, in_use: Callable[[str], bool]) -> None:
        self.sessions.protect(in_use)

    async def inspect(self) -> Sequence[Observation]:
        return [Observation(subject="store", state="ok", text="in memory: sessions end with the gateway")]

    async def open(self) -> None:
        """There is nothing to open."""

    async def ping(self) -> None:
        """It is always there."""

    async def try_write(self) -> None:
        """It takes what there is room for."""

    async def close(self) -> None:
        """It goes with the process."""
