"""Would a request be served? Told from memory for a second, so that probes, which anybody may send, cost nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

from session_store import StoreError

__all__ = ["Readiness"]

KNOWN_S: Final = 1.0
"""How long an answer of the store's is good for: load balancers ask every few seconds."""

ANSWER_S: Final = 2.0
"""When a store that has not answered counts as gone: probes are commonly given up after some seconds."""


class Readiness:
    """`may_serve` says whether this process takes requests at all; `try_write` writes to the store.

    A store that answers is not enough: a full one, or a replica of it, answers and takes nothing, and neither can a
    session be opened then nor one be kept alive.
    """

    def __init__(self, may_serve: Callable[[], bool], try_write: Callable[[], Awaitable[None]]) -> None:
        self._may_serve = may_serve
        self._try_write = try_write
        self._asking: asyncio.Task[None] | None = None
        self._known_until = 0.0
        self._writable = False

    async def is_ready(self) -> bool:
        """Whether new requests can be served. Any number of askers cost one write a second."""
        if not self._may_serve():
            return False
        if monotonic() >= self._known_until:
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask())
            await asyncio.shield(self._asking)
        return self._writable and self._may_serve()

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._try_write()
            self._writable = True
        except (StoreError, TimeoutError):
            self._writable = False
        finally:
            self._known_until = monotonic() + KNOWN_S
            self._asking = None
