"""The backend of `memory://`: everything is in this process, bounded, and lost when it ends."""

from collections.abc import Callable, Sequence
from time import time

from session_store.embedded.backend import EmbeddedBackend
from session_store.embedded.records import Result, Work
from session_store.memory.sessions import MAX_SESSIONS, MemorySessionStore
from session_store.ports.backend import Observation

__all__ = ["MAX_SESSIONS", "MemoryBackend", "MemorySessionStore"]


class MemoryBackend(EmbeddedBackend):
    """`memory://`"""

    sessions: MemorySessionStore

    def __init__(self, *, clock: Callable[[], float] = time, max_sessions: int = MAX_SESSIONS) -> None:
        super().__init__(clock=clock, sessions=MemorySessionStore(clock=clock, max_sessions=max_sessions))

    async def run(self, work: Work[Result]) -> Result:
        return work(self.sessions.records)

    def protect(self, in_use: Callable[[str], bool]) -> None:
        self.sessions.protect(in_use)

    async def inspect(self) -> Sequence[Observation]:
        return [Observation(subject="store", state="ok", text="in memory: sessions end with the gateway")]
