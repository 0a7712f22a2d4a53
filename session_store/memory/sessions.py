"""The bound of the memory store: which session is evicted when there is no room for another."""

from collections import Counter
from collections.abc import Callable, Sequence
from time import time
from typing import Final, Literal

from session_store.embedded.sessions import EmbeddedSessionStore
from session_store.memory.records import MemoryRecords
from session_store.ports.errors import StoreFull
from session_store.ports.sessions import Gone
from session_store.session import Session

__all__ = ["MAX_SESSIONS", "MemorySessionStore"]

MAX_SESSIONS: Final = 1_000


class MemorySessionStore(EmbeddedSessionStore):
    """At most `max_sessions` sessions in this process. An idle session is evicted for a new one."""

    def __init__(self, *, clock: Callable[[], float] = time, max_sessions: int = MAX_SESSIONS) -> None:
        self.records = MemoryRecords()
        super().__init__(self.records, clock)
        self._max_sessions = max_sessions
        self._in_use: Callable[[str], bool] = lambda _: False
        self._evicted: list[Gone] = []

    def protect(self, in_use: Callable[[str], bool]) -> None:
        """Evict no session for whose id `in_use` returns True: it has an exchange in flight or an open stream."""
        self._in_use = in_use

    async def sweep(self) -> list[Gone]:
        evicted, self._evicted = self._evicted, []
        return evicted + await super().sweep()

    def make_room(self, newcomer: Session) -> None:
        if len(self.records) < self._max_sessions:
            return
        victim = _victim([s for s in self.records.by_last_use() if not self._in_use(s.id)], newcomer)
        if victim is None:
            raise StoreFull(f"all {self._max_sessions} sessions of the memory store are in use")
        now = self._clock()
        reason: Literal["expired", "evicted"] = "expired" if victim.is_expired(now) else "evicted"
        self.records.remove(victim.id)
        self.records.record_fate(victim.id, reason, now)
        self._evicted.append(Gone(session_id=victim.id, reason=reason))


def _victim(idle: Sequence[Session], newcomer: Session) -> Session | None:
    """The idle session to evict: an unconfirmed one of an anonymous client, else any of an anonymous client, else one
    of a named principal. Within a class: one of the client that has most, the least recently used first. A newcomer of
    an anonymous client never evicts a named principal's session."""
    held = Counter(session.counted_as for session in idle)
    classes: tuple[Callable[[Session], bool], ...] = (
        lambda s: s.principal.is_anonymous and not s.confirmed,
        lambda s: s.principal.is_anonymous,
        lambda s: not newcomer.principal.is_anonymous,
    )
    for belongs in classes:
        found = [session for session in idle if belongs(session)]
        if found:
            most = max(held[session.counted_as] for session in found)
            return next(session for session in found if held[session.counted_as] == most)
    return None
