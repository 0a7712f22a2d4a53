"""The sessions in the store that no running replica serves: their gateway has ended, and no client has come back.

No replica knows them, and to read all records takes a tenth of a second for a thousand of them. So they are read at
most every ten seconds while somebody lists sessions, and a list shows them as they were then.
"""

import asyncio
import heapq
from time import monotonic
from typing import Final

from gateway.admin.replicas import Replicas
from session_store import Backend, Session, StoreUnavailable
from transports.tasks import Tasks
from transports.turns import others_first

__all__ = ["DetachedSessions"]

SEARCHED: Final = 100_000
"""How many records of the store are looked at. Of more sessions, those with the last ids are not found."""

_KEPT: Final = 5_000
"""Of so many the records are kept, those that were used last."""

_FRESH_S: Final = 10.0
_REST: Final = 20
"""A reading is as old as it took, so many times, before the next one begins: calls come first."""

_FIRST_S: Final = 0.5
_READ_AT_ONCE: Final = 500


class DetachedSessions:
    """Reads them in the background. `count` is how many there are, `known` has the records that are kept."""

    def __init__(self, backend: Backend, replicas: Replicas) -> None:
        self._backend = backend
        self._replicas = replicas
        self._tasks = Tasks("detached sessions")
        self._read_at = float("-inf")
        self._took_s = 0.0
        self.known: list[Session] = []

    async def read(self) -> list[Session]:
        """The records, of a reading that is some seconds old. The first one is waited for, for half a second."""
        if not self._backend.is_durable:
            return []  # what the store has, this process has opened
        is_first = self._read_at == float("-inf")
        if monotonic() - self._read_at > max(_FRESH_S, self._took_s * _REST):
            reading = self._tasks.start("read", self._read)
            if is_first:
                await asyncio.wait((reading,), timeout=_FIRST_S)
        return self.known

    async def _read(self) -> None:
        began, place, looked_at = monotonic(), "", 0
        found: list[Session] = []
        try:
            while looked_at < SEARCHED:
                page = await self._backend.sessions.page(after=place, limit=_READ_AT_ONCE)
                if page:
                    held = await self._replicas.held([session.id for session in page])
                    found += [session for session in page if session.id not in held]
                    found = heapq.nlargest(_KEPT, found, key=lambda session: session.used_at)
                    looked_at, place = looked_at + len(page), page[-1].id
                if len(page) < _READ_AT_ONCE:
                    break
                await others_first()
        except StoreUnavailable:
            found = self.known  # the next reading finds out
        self.known, self._read_at, self._took_s = found, monotonic(), monotonic() - began
