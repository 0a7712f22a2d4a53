"""The sessions in the store that no running replica serves: their gateway has ended, and no client has come back.

No replica knows them, and to read all records takes a tenth of a second for a thousand of them. So they are read in the
background, a few at a time, while somebody lists sessions, and a list shows them as they were then.
"""

import asyncio
import heapq
from time import monotonic
from typing import Final

from gateway.admin.replica import Replica
from gateway.admin.replicas import Replicas
from session_store import Backend, Session, StoreUnavailable
from transports.tasks import Tasks

__all__ = ["DetachedSessions"]

SEARCHED: Final = 100_000
"""How many records of the store are looked at. Of more sessions, those with the last ids are not found."""

_KEPT: Final = 5_000
"""Of so many the records are kept, those that were used last."""

_FRESH_S: Final = 10.0
_REST: Final = 10
"""A reading rests this many times as long as each of its steps takes, because calls come first."""

_FIRST_S: Final = 0.05
"""How long the first list waits for the first reading, which is enough for a small store."""

_READ_AT_ONCE: Final = 100


class DetachedSessions:
    """Reads them. `known` has the records that are kept."""

    def __init__(self, backend: Backend, replicas: Replicas) -> None:
        self._backend = backend
        self._replicas = replicas
        self._tasks = Tasks("detached sessions")
        self._tried_at = float("-inf")
        self._was_read = False
        self.known: list[Session] = []

    @property
    def is_reading(self) -> bool:
        """True until a reading has come to its end: some sessions may be missing."""
        return self._backend.is_durable and not self._was_read

    async def read(self) -> list[Session]:
        """The records, as the last reading has found them. The first one is waited for, for a short time. What it has
        found then is returned."""
        if not self._backend.is_durable:
            return []  # what the store has, this process has opened
        if monotonic() - self._tried_at > _FRESH_S:
            reading = self._tasks.start("read", self._read)
            if self.is_reading:
                await asyncio.wait((reading,), timeout=_FIRST_S)
        return self.known

    async def _read(self) -> None:
        place, looked_at = "", 0
        found: list[Session] = []
        try:
            while looked_at < SEARCHED:
                began = monotonic()
                page = await self._backend.sessions.page(after=place, limit=_READ_AT_ONCE)
                if page:
                    answers = await self._replicas.ask(Replica.serves, [session.id for session in page])
                    if answers.unanswered:  # what a silent replica serves is not detached
                        return
                    held = {session_id for some in answers.by.values() for session_id in some}
                    found += [session for session in page if session.id not in held]
                    found = heapq.nlargest(_KEPT, found, key=lambda session: session.used_at)
                    looked_at, place = looked_at + len(page), page[-1].id
                    if self.is_reading:
                        self.known = found
                if len(page) < _READ_AT_ONCE:
                    break
                await asyncio.sleep((monotonic() - began) * _REST)
            self.known, self._was_read = found, True
        except StoreUnavailable:
            return  # the next reading finds out
        finally:
            self._tried_at = monotonic()
