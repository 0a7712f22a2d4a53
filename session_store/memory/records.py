"""Session records in dicts of this process."""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Final

from cachetools import FIFOCache

from session_store.embedded.records import Records, Result, Work
from session_store.ports.sessions import Fate
from session_store.session import Session

__all__ = ["MemoryRecords"]

_FATES_KEPT: Final = 10_000


class MemoryRecords(Records):
    """Sessions in a dict, least recently used first. A transaction is a plain call: nothing awaits inside it."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._values: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
        self._aliases: dict[str, str] = {}
        self._alias_of: dict[str, str] = {}
        self._fates: FIFOCache[str, Fate] = FIFOCache(_FATES_KEPT)

    async def run(self, work: Work[Result]) -> Result:
        """Call `work` with these records."""
        return work(self)

    def __len__(self) -> int:
        return len(self._sessions)

    def by_last_use(self) -> Iterable[Session]:
        """All records, least recently used first."""
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

    def record_fate(self, session_id: str, fate: Fate, at: float) -> None:
        self._fates[session_id] = fate

    def fate(self, session_id: str) -> Fate:
        return self._fates.get(session_id, "unknown")
