"""Sessions and their state in this process. Bounded; gone when the process ends."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from time import time
from typing import Final, Literal

from msgspec.structs import replace

from session_store.limits import check_key, check_total, check_value, incremented
from session_store.metadata import merged_metadata
from session_store.ports.errors import SessionGone, StoreFull
from session_store.ports.sessions import Fate, Gone
from session_store.session import Principal, Session

__all__ = ["MAX_SESSIONS", "MemorySessionStore", "MemoryStateStore"]

MAX_SESSIONS: Final = 1_000
_FATES_KEPT: Final = 10_000


class MemorySessionStore:
    """Sessions in a dict, least recently used first."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time,
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        self._in_use: Callable[[str], bool] = lambda _: False
        self._clock = clock
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._states: dict[str, dict[str, bytes]] = {}
        self._aliases: dict[str, str] = {}
        self._alias_of: dict[str, str] = {}
        self._evicted: list[Gone] = []
        self._fates: OrderedDict[str, Fate] = OrderedDict()

    async def create(self, session: Session, *, alias: str | None = None) -> Session:
        if alias is not None and (existing := self._named(alias)) is not None:
            return self._use(existing)
        if len(self._sessions) >= self._max_sessions:
            self._make_room(session)
        self._sessions[session.id] = session
        if alias is not None:
            self._aliases[alias] = session.id
            self._alias_of[session.id] = alias
        return session

    async def resume(self, session_id: str, principal: Principal, known: Session | None = None) -> Session | None:
        session = self.live(session_id)
        return None if session is None or session.principal != principal else self._use(session)

    async def resume_alias(self, alias: str) -> Session | None:
        session = self._named(alias)
        return None if session is None else self._use(session)

    async def named(self, alias: str) -> Session | None:
        return self._named(alias)

    async def peek(self, session_id: str) -> Session | None:
        return self.live(session_id)

    async def touch(self, session_id: str) -> bool:
        session = self.live(session_id)
        if session is None:
            return False
        self._put(session.used(self._clock()))
        return True

    async def update(self, session_id: str, **fields: object) -> Session | None:
        return await self.change(session_id, lambda session: replace(session, **fields))

    async def change_set(
        self,
        session_id: str,
        field: Literal["children", "links", "remote", "subscriptions"],
        *,
        add: str = "",
        remove: str = "",
    ) -> Session | None:
        return await self.change(session_id, lambda session: session.with_set(field, add=add, remove=remove))

    async def annotate(self, session_id: str, changes: Mapping[str, str | None]) -> Session | None:
        return await self.change(session_id, lambda s: replace(s, metadata=merged_metadata(s.metadata, changes)))

    async def change(self, session_id: str, changed: Callable[[Session], Session | None]) -> Session | None:
        """The live session as `changed` makes it; None, and unchanged, when there is none or `changed` says so."""
        session = self.live(session_id)
        session = None if session is None else changed(session)
        if session is not None:
            self._sessions[session_id] = session
        return session

    async def end(self, session_id: str) -> bool:
        is_live = self.live(session_id) is not None
        if is_live:
            self._forget(session_id, "ended")
        return is_live

    async def page(self, *, after: str = "", limit: int = 100) -> list[Session]:
        now = self._clock()
        found = (s for s in self._sessions.values() if s.id > after and not s.is_expired(now))
        return nsmallest(limit, found, key=lambda s: s.id)

    async def gone(self, session_ids: Sequence[str]) -> list[str]:
        return [session_id for session_id in session_ids if self.live(session_id) is None]

    async def fate(self, session_id: str) -> Fate:
        session = self._sessions.get(session_id)
        if session is not None:
            return "expired" if session.is_expired(self._clock()) else "live"
        return self._fates.get(session_id, "unknown")

    async def sweep(self) -> list[Gone]:
        now = self._clock()
        expired = [s for s in self._sessions.values() if s.is_expired(now)]
        for session in expired:
            self._forget(session.id, "expired")
        gone, self._evicted = self._evicted, []
        return gone + [Gone(session_id=s.id, reason="expired") for s in expired]

    # -- for the other parts of this backend

    def protect(self, in_use: Callable[[str], bool]) -> None:
        """Evict no session for whose id `in_use` returns True: it has an exchange in flight or an open stream."""
        self._in_use = in_use

    def live(self, session_id: str) -> Session | None:
        """The session, if it is one."""
        session = self._sessions.get(session_id)
        return None if session is None or session.is_expired(self._clock()) else session

    def state_of(self, session_id: str) -> dict[str, bytes]:
        """The state of a live session. Raises `SessionGone`."""
        if self.live(session_id) is None:
            raise SessionGone(session_id)
        return self._states.setdefault(session_id, {})

    def _named(self, alias: str) -> Session | None:
        return self.live(self._aliases.get(alias, ""))

    def _use(self, session: Session) -> Session:
        session = session.used(self._clock(), confirm=True)
        self._put(session)
        return session

    def _put(self, session: Session) -> None:
        self._sessions[session.id] = session
        self._sessions.move_to_end(session.id)

    def _forget(self, session_id: str, fate: Fate) -> None:
        del self._sessions[session_id]
        self._states.pop(session_id, None)
        alias = self._alias_of.pop(session_id, None)
        if alias is not None and self._aliases.get(alias) == session_id:
            del self._aliases[alias]
        self._fates[session_id] = fate
        if len(self._fates) > _FATES_KEPT:
            self._fates.popitem(last=False)

    def _make_room(self, newcomer: Session) -> None:
        victim = _least_missed([s for s in self._sessions.values() if not self._in_use(s.id)], newcomer)
        if victim is None:
            raise StoreFull(f"all {self._max_sessions} sessions of the memory store are in use")
        reason: Literal["expired", "evicted"] = "expired" if victim.is_expired(self._clock()) else "evicted"
        self._forget(victim.id, reason)
        self._evicted.append(Gone(session_id=victim.id, reason=reason))


def _least_missed(idle: Sequence[Session], newcomer: Session) -> Session | None:
    """Which idle session makes room, from the least recently used on: one that nobody came back to before one of an
    anonymous client, that before one of a named principal, and among those one of whoever has most. A session of a
    stranger's never makes a named principal's go."""
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


class MemoryStateStore:
    """State in dicts that live and die with their sessions."""

    def __init__(self, sessions: MemorySessionStore) -> None:
        self._sessions = sessions

    async def get(self, session_id: str, key: str) -> bytes | None:
        check_key(key)
        return self._sessions.state_of(session_id).get(key)

    async def set(self, session_id: str, key: str, value: bytes) -> None:
        self._put(key, self._sessions.state_of(session_id), value)

    async def delete(self, session_id: str, key: str) -> bool:
        check_key(key)
        return self._sessions.state_of(session_id).pop(key, None) is not None

    async def increment(self, session_id: str, key: str, by: int) -> int:
        check_key(key)
        state = self._sessions.state_of(session_id)
        number = incremented(key, state.get(key), by)
        self._put(key, state, b"%d" % number)
        return number

    async def compare_and_set(self, session_id: str, key: str, expected: bytes | None, value: bytes | None) -> bool:
        check_key(key)
        state = self._sessions.state_of(session_id)
        if state.get(key) != expected:
            return False
        if value is None:
            state.pop(key, None)
        else:
            self._put(key, state, value)
        return True

    async def keys(self, session_id: str) -> list[str]:
        return sorted(self._sessions.state_of(session_id))

    async def size(self, session_id: str) -> int:
        state = self._sessions.state_of(session_id)
        return sum(len(key.encode()) + len(value) for key, value in state.items())

    @staticmethod
    def _put(key: str, state: dict[str, bytes], value: bytes) -> None:
        check_key(key)
        check_value(key, value)
        others = sum(len(k.encode()) + len(v) for k, v in state.items() if k != key)
        check_total(key, others + len(key.encode()) + len(value))
        state[key] = value
