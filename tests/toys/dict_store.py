"""A store backend as another package would bring it: `dict://`. Imports only what `session_store` offers to authors."""

from collections.abc import Callable, Iterable
from time import time

from session_store import Session
from session_store.connect import BackendOptions
from session_store.embedded.backend import EmbeddedBackend
from session_store.embedded.records_port import Records, Result, Work
from session_store.ports.sessions import SessionStatus


class DictRecords(Records):
    """Everything in dicts."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.values: dict[str, dict[str, bytes]] = {}
        self.aliases: dict[str, str] = {}
        self.statuses: dict[str, SessionStatus] = {}

    def read(self, session_id: str) -> Session | None:
        return self.sessions.get(session_id)

    def write(self, session: Session) -> None:
        self.sessions[session.id] = session

    def remove(self, session_id: str) -> None:
        del self.sessions[session_id]
        self.values.pop(session_id, None)
        self.aliases = {alias: named for alias, named in self.aliases.items() if named != session_id}

    def scan(self, after: str = "") -> Iterable[Session]:
        return [self.sessions[session_id] for session_id in sorted(self.sessions) if session_id > after]

    def named(self, alias: str) -> str | None:
        return self.aliases.get(alias)

    def set_alias(self, alias: str, session_id: str) -> None:
        self.aliases[alias] = session_id

    def value(self, session_id: str, key: str) -> bytes | None:
        return self.values.get(session_id, {}).get(key)

    def set_value(self, session_id: str, key: str, value: bytes | None) -> None:
        held = self.values.setdefault(session_id, {})
        if value is None:
            held.pop(key, None)
        else:
            held[key] = value

    def keys(self, session_id: str) -> list[str]:
        return sorted(self.values.get(session_id, {}))

    def record_status(self, session_id: str, status: SessionStatus, at: float) -> None:
        self.statuses[session_id] = status

    def status(self, session_id: str) -> SessionStatus:
        return self.statuses.get(session_id, "unknown")


class DictBackend(EmbeddedBackend):
    """`dict://`"""

    def __init__(self, clock: Callable[[], float] = time) -> None:
        super().__init__(clock=clock)
        self._records = DictRecords()

    async def run(self, work: Work[Result]) -> Result:
        return work(self._records)


def dict_backend(url: str, options: BackendOptions) -> DictBackend:
    """The factory that the entry point names."""
    return DictBackend(options.clock or time)
