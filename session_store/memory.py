"""Provide the backend of `memory://`: dicts of limited size in this process, lost when it ends."""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from time import time
from typing import Final, Literal

from cachetools import FIFOCache

from session_store.embedded.backend import EmbeddedBackend
from session_store.embedded.records_port import Records, Result, Work
from session_store.embedded.sessions import EmbeddedSessionStore
from session_store.ports.backend import Observation
from session_store.ports.errors import StoreFull
from session_store.ports.sessions import Gone, SessionStatus
from session_store.session import Session

_STATUSES_KEPT: Final = 10_000


class MemoryRecords(Records):
    """Keep records of sessions in a dict, least recently used first. A transaction is a plain call, because it never
    awaits."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._values: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
        self._aliases: dict[str, str] = {}
        self._alias_of: dict[str, str] = {}
        self._statuses: FIFOCache[str, SessionStatus] = FIFOCache(_STATUSES_KEPT)

    async def run(self, work: Work[Result]) -> Result:
        """Call `work` with these records, and return its result."""
        return work(self)

    def __len__(self) -> int:
        return len(self._sessions)

    def by_last_use(self) -> Iterable[Session]:
        """Return all session records, least recently used first."""
        return self._sessions.values()

    def read(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def write(self, session: Session) -> None:
        self._sessions[session.id] = session

    def use(self, session: Session) -> None:
        self._sessions[session.id] = session
        self._sessions.move_to_end(session.id)

    def remove(self, session_id: str) -> None:
        del self._sessions[session_id]
        self._values.pop(session_id, None)
        alias = self._alias_of.pop(session_id, None)
        if alias is not None and self._aliases.get(alias) == session_id:
            del self._aliases[alias]

    def scan(self, after: str = "") -> Iterable[Session]:
        return sorted((s for s in self._sessions.values() if s.id > after), key=lambda s: s.id)

    def expired(self, now: float) -> list[str]:
        return [session.id for session in self._sessions.values() if session.is_expired(now)]

    def named(self, alias: str) -> str | None:
        return self._aliases.get(alias)

    def set_alias(self, alias: str, session_id: str) -> None:
        self._aliases[alias] = session_id
        self._alias_of[session_id] = alias

    def value(self, session_id: str, key: str) -> bytes | None:
        return self._values[session_id].get(key)

    def set_value(self, session_id: str, key: str, value: bytes | None) -> None:
        if value is None:
            self._values[session_id].pop(key, None)
        else:
            self._values[session_id][key] = value

    def keys(self, session_id: str) -> list[str]:
        return sorted(self._values[session_id])

    def record_status(self, session_id: str, status: SessionStatus, at: float) -> None:
        self._statuses[session_id] = status

    def status(self, session_id: str) -> SessionStatus:
        return self._statuses.get(session_id, "unknown")


MAX_SESSIONS: Final = 1_000


class MemorySessionStore(EmbeddedSessionStore):
    """Keep at most `max_sessions` sessions in this process. To make room for a new one, evict a session that is not in
    use."""

    def __init__(self, *, clock: Callable[[], float] = time, max_sessions: int = MAX_SESSIONS) -> None:
        self.records = MemoryRecords()
        super().__init__(self.records, clock)
        self._max_sessions = max_sessions
        self._in_use: Callable[[str], bool] = lambda _: False
        self._evicted: list[Gone] = []

    def protect(self, in_use: Callable[[str], bool]) -> None:
        """Set the function by which the store knows which sessions are in use: those with an exchange in flight or an
        open stream. A session for whose id `in_use` returns True is never evicted."""
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
        self.records.record_status(victim.id, reason, now)
        self._evicted.append(Gone(session_id=victim.id, reason=reason))


def _victim(idle: Sequence[Session], newcomer: Session) -> Session | None:
    """Return the session to evict for `newcomer`; None if there is none. `idle`: the sessions that are not in use,
    least recently used first. Unconfirmed sessions of anonymous clients are evicted first, then other anonymous
    sessions. Sessions of named principals come last, and only a named newcomer may evict them. Within such a class,
    choose the client with the most idle sessions, and its least recently used session."""
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


class MemoryBackend(EmbeddedBackend):
    """Keep everything in the memory of this process: the backend of `memory://`."""

    sessions: MemorySessionStore

    def __init__(self, *, clock: Callable[[], float] = time, max_sessions: int = MAX_SESSIONS) -> None:
        super().__init__(clock=clock, sessions=MemorySessionStore(clock=clock, max_sessions=max_sessions))

    async def run(self, work: Work[Result]) -> Result:
        return work(self.sessions.records)

    def protect(self, in_use: Callable[[str], bool]) -> None:
        self.sessions.protect(in_use)

    async def inspect(self) -> Sequence[Observation]:
        return [Observation(subject="store", state="ok", text="in memory: sessions end with the gateway")]
