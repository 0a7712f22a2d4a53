"""Provide the bus and the directory for gateways in one process. Leases are in a dict, owners in the session
records."""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from time import time

from msgspec.structs import replace

from session_store.embedded.sessions import EmbeddedSessionStore
from session_store.ports.cluster import ConfigurationEpochs, next_epoch
from session_store.session import Session


class MemoryBus:
    """Deliver messages to the subscribers in this process, inside the call of `publish`."""

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


class MemoryDirectory:
    """Keep the leases of replicas in memory, and the owners of sessions in their records."""

    def __init__(self, sessions: EmbeddedSessionStore, *, clock: Callable[[], float] = time) -> None:
        self._sessions = sessions
        self._clock = clock
        self._leases: dict[str, tuple[str, float]] = {}
        self._lost: defaultdict[str, list[str]] = defaultdict(list)
        self._configurations: dict[str, int] = {}
        self._held: dict[str, tuple[int, float]] = {}

    async def renew_lease(self, replica: str, address: str, lease_s: float) -> list[str]:
        self._leases[replica] = (address, self._clock() + lease_s)
        return self._lost.pop(replica, [])

    async def end_lease(self, replica: str) -> None:
        self._leases.pop(replica, None)

    async def hold_configuration(
        self, replica: str, digest: str, *, number: int, is_edited: bool, hold_s: float
    ) -> ConfigurationEpochs:
        now, known = self._clock(), self._configurations
        self._held = {name: held for name, held in self._held.items() if now < held[1] and name != replica}
        newest = max((its for its, _ in self._held.values()), default=0)
        if digest in known and not (is_edited and number >= newest):
            own = known[digest]
        elif number and digest not in known and not is_edited and number not in known.values():
            own = number
        else:
            own = max([number, *known.values()]) + 1
        if hold_s:
            known[digest] = own
            self._held[replica] = (own, now + hold_s)
            newest = max(newest, own)
        return ConfigurationEpochs(own, newest, tuple(name for name, held in self._held.items() if held[0] == newest))

    async def address(self, replica: str) -> str | None:
        return (await self.replicas()).get(replica)

    async def lease_left(self, replica: str) -> float | None:
        _, until = self._leases.get(replica, ("", 0.0))
        left_s = until - self._clock()
        return left_s if left_s > 0 else None

    async def last_address(self, replica: str) -> str | None:
        return self._leases[replica][0] if replica in self._leases else None

    async def replicas(self) -> dict[str, str]:
        now = self._clock()
        return {name: address for name, (address, until) in self._leases.items() if now < until}

    async def claim(self, session_id: str, replica: str, *, epoch: int) -> int | None:
        before: list[str] = []

        def claimed(session: Session) -> Session | None:
            if session.epoch != epoch:
                return None
            before.append(session.owner)
            return replace(session, owner=replica, epoch=next_epoch(epoch))

        session = await self._sessions.change(session_id, claimed)
        if session is None:
            return None
        if before[0] and before[0] != replica:
            await self.tell_lost(before[0], [session_id])
        return session.epoch

    async def tell_lost(self, replica: str, session_ids: Sequence[str]) -> None:
        self._lost[replica] += session_ids

    async def copied(self, session_id: str) -> bool:
        return True

    async def owners(self, session_ids: Sequence[str]) -> list[tuple[str, int] | None]:
        found = [await self._sessions.peek(session_id) for session_id in session_ids]
        return [None if session is None else (session.owner, session.epoch) for session in found]

    async def acknowledged(self, replica: str, session_id: str) -> bool:
        return session_id not in self._lost.get(replica, ())

    async def release(self, session_id: str, replica: str, *, epoch: int) -> bool:
        def released(session: Session) -> Session | None:
            return replace(session, owner="") if (session.owner, session.epoch) == (replica, epoch) else None

        return await self._sessions.change(session_id, released) is not None
