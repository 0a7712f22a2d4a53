"""`Bus` for a store that one process uses."""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

__all__ = ["MemoryBus"]


class MemoryBus:
    """Calls the subscribers of this process, in the call of `publish`."""

    def __init__(self) -> None:
        self._subscribers: defaultdict[str, list[Callable[[bytes | None], None]]] = defaultdict(list)

    async def publish(self, topic: str, data: bytes) -> None:
        for receive in tuple(self._subscribers.get(topic, ())):
            receive(data)

    @asynccontextmanager
    async def subscribed(self, topic: str, receive: Callable[[bytes | None], None]) -> AsyncIterator[None]:
        self._subscribers[topic].append(receive)
        try:
            yield
        finally:
            self._subscribers[topic].remove(receive)
            if not self._subscribers[topic]:
                del self._subscribers[topic]
