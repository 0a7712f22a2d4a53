"""The embedded store: sessions and events in this process. Bounded; gone when the process ends."""

import asyncio
import secrets
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from time import time
from typing import Final

from session_store.base import Event, Gone, StoreFull, UnknownEvent
from session_store.session import Principal, Session

__all__ = ["MAX_LOG_BYTES", "MAX_LOG_EVENTS", "MAX_SESSIONS", "MemoryEventLog", "MemorySessionStore"]

MAX_SESSIONS: Final = 1_000
MAX_LOG_EVENTS: Final = 256
MAX_LOG_BYTES: Final = 1 << 20


class MemorySessionStore:
    """Sessions in a dict, least recently used first.

    `in_use` says whether a session has an exchange in flight or an open stream: such a session is never evicted.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time,
        max_sessions: int = MAX_SESSIONS,
        in_use: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._clock = clock
        self._max_sessions = max_sessions
        self._in_use = in_use
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._aliases: dict[str, str] = {}
        self._alias_of: dict[str, str] = {}
        self._evicted: list[Gone] = []

    async def create(self, session: Session, *, alias: str | None = None) -> Session:
        if alias is not None and (existing := self._named(alias)) is not None:
            return self._use(existing)
        if len(self._sessions) >= self._max_sessions:
            self._make_room()
        self._sessions[session.id] = session
        if alias is not None:
            self._aliases[alias] = session.id
            self._alias_of[session.id] = alias
        return session

    async def resume(self, session_id: str, principal: Principal) -> Session | None:
        session = self._live(session_id)
        return None if session is None or session.principal != principal else self._use(session)

    async def resume_alias(self, alias: str) -> Session | None:
        session = self._named(alias)
        return None if session is None else self._use(session)

    async def peek(self, session_id: str) -> Session | None:
        return self._live(session_id)

    async def touch(self, session_id: str) -> bool:
        session = self._live(session_id)
        if session is None:
            return False
        self._put(session.used(self._clock()))
        return True

    async def update(self, session_id: str, **fields: object) -> Session | None:
        session = self._live(session_id)
        if session is None:
            return None
        session = replace(session, **fields)  # type: ignore[arg-type]  # dataclass fields by name
        self._sessions[session_id] = session
        return session

    async def end(self, session_id: str) -> bool:
        live = self._live(session_id) is not None
        if live:
            self._forget(session_id)
        return live

    async def page(self, *, after: str = "", limit: int = 100) -> list[Session]:
        now = self._clock()
        live = (s for s in self._sessions.values() if s.id > after and not s.is_expired(now))
        return nsmallest(limit, live, key=lambda s: s.id)

    async def sweep(self) -> list[Gone]:
        now = self._clock()
        expired = [s for s in self._sessions.values() if s.is_expired(now)]
        for session in expired:
            self._forget(session.id)
        gone, self._evicted = self._evicted, []
        return gone + [Gone(session=s, reason="expired") for s in expired]

    def _live(self, session_id: str) -> Session | None:
        session = self._sessions.get(session_id)
        return None if session is None or session.is_expired(self._clock()) else session

    def _named(self, alias: str) -> Session | None:
        return self._live(self._aliases.get(alias, ""))

    def _use(self, session: Session) -> Session:
        session = session.used(self._clock(), confirm=True)
        self._put(session)
        return session

    def _put(self, session: Session) -> None:
        self._sessions[session.id] = session
        self._sessions.move_to_end(session.id)

    def _forget(self, session_id: str) -> None:
        del self._sessions[session_id]
        alias = self._alias_of.pop(session_id, None)
        if alias is not None and self._aliases.get(alias) == session_id:
            del self._aliases[alias]

    def _make_room(self) -> None:
        victim = next((s for s in self._sessions.values() if not self._in_use(s.id)), None)
        if victim is None:
            raise StoreFull(f"all {self._max_sessions} sessions of the memory store are in use")
        self._forget(victim.id)
        expired = victim.is_expired(self._clock())
        self._evicted.append(Gone(session=victim, reason="expired" if expired else "evicted"))


@dataclass(slots=True)
class _Log:
    """One session's events. The nonce keeps another session's event ids from being found here."""

    nonce: str = field(default_factory=lambda: secrets.token_hex(4))
    last: int = 0
    size: int = 0
    events: deque[tuple[int, str, bytes]] = field(default_factory=deque)
    finished: set[str] = field(default_factory=set)
    delivered: dict[str, int] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    dropped: bool = False

    def wake(self) -> None:
        self.news.set()
        self.news = asyncio.Event()


class MemoryEventLog:
    """Event streams in this process, capped per session."""

    def __init__(self, *, max_events: int = MAX_LOG_EVENTS, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._logs: dict[str, _Log] = {}

    async def append(self, session_id: str, stream: str, frame: bytes) -> str:
        log = self._log(session_id)
        log.last += 1
        log.events.append((log.last, stream, frame))
        log.size += len(frame)
        while len(log.events) > self._max_events or (log.size > self._max_bytes and len(log.events) > 1):
            log.size -= len(log.events.popleft()[2])
        streams = {name for _, name, _ in log.events}
        log.finished &= streams
        log.wake()
        return f"{log.nonce}-{log.last}"

    async def finish(self, session_id: str, stream: str) -> None:
        log = self._log(session_id)
        log.finished.add(stream)
        log.wake()

    async def follow(self, session_id: str, stream: str, after: str | None) -> AsyncIterator[Event]:
        log = self._log(session_id)
        position = log.delivered.get(stream, 0) if after is None else self._sequence(log, after)
        while True:
            news = log.news
            for sequence, name, frame in tuple(log.events):
                if sequence > position and name == stream:
                    position = sequence
                    yield Event(id=f"{log.nonce}-{sequence}", frame=frame)
            if news is not log.news:
                continue  # something came while the reader was busy
            if log.dropped or stream in log.finished:
                return
            await news.wait()

    async def stream_of(self, session_id: str, event_id: str) -> str:
        log = self._logs.get(session_id)
        if log is not None:
            sequence = self._sequence(log, event_id)
            for number, stream, _ in log.events:
                if number == sequence:
                    return stream
        raise UnknownEvent(event_id)

    async def delivered(self, session_id: str, stream: str, event_id: str) -> None:
        log = self._log(session_id)
        log.delivered[stream] = max(log.delivered.get(stream, 0), self._sequence(log, event_id))

    async def drop(self, session_id: str) -> None:
        log = self._logs.pop(session_id, None)
        if log is not None:
            log.dropped = True
            log.wake()

    def _log(self, session_id: str) -> _Log:
        return self._logs.setdefault(session_id, _Log())

    @staticmethod
    def _sequence(log: _Log, event_id: str) -> int:
        nonce, _, number = event_id.partition("-")
        if nonce != log.nonce or not (number.isascii() and number.isdigit() and len(number) < 16):
            raise UnknownEvent(event_id)
        return int(number)
