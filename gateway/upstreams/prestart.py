"""Processes started before anybody asks for them, with the id of the session they will serve (`warm` of a server).

A kit is what one session to come will need: an id, and a process of each warm server with that session's environment.
It is used only by a session that is what the kit was made for: same endpoint, principal, context and client, and the
same secrets. Environments are learned: when a session opens, kits are made for the next one like it.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Final, NamedTuple

from msgspec.structs import replace

from gateway.upstreams.session_resources import Prepared
from gateway.upstreams.upstream import ConfiguredUpstream
from session_store import Context, Principal, Session
from session_store.session import new_session_id, redact
from transports.upstream_port import UpstreamUnavailable

__all__ = ["PrestartPool", "PrestartShelf"]

logger = logging.getLogger(__name__)

MAX_ENVIRONMENTS: Final = 32
AT_ONCE: Final = 2
"""Kits that are made at the same time: sessions that open meanwhile need the machine more."""

UNUSED_S: Final = 600.0


class _Environment(NamedTuple):
    """All that a process is told of its session, but for the session's id."""

    endpoint: str
    principal: Principal
    context: Context
    agent: str


class _Pool:
    def __init__(self, like: Session) -> None:
        self.like = like
        self.kits: list[_Kit] = []
        self.used_at = monotonic()
        self.filling: asyncio.Task[None] | None = None


class _Kit:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.parts: dict[str, Prepared] = {}

    @property
    def is_good(self) -> bool:
        return all(part.is_good for part in self.parts.values())

    async def close(self) -> None:
        await asyncio.gather(*(part.close() for part in self.parts.values()), return_exceptions=True)


class PrestartShelf:
    """The kits of sessions that are open: each process is taken once, by the server it was started for."""

    def __init__(self) -> None:
        self._kits: dict[str, _Kit] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def put(self, kit: _Kit) -> None:
        """Keep the kit for its session."""
        self._kits[kit.session.id] = kit

    def part(self, session: Session, server: str) -> Prepared | None:
        """The process of that server that was started for the session, once."""
        kit = self._kits.get(session.id)
        part = None if kit is None else kit.parts.pop(server, None)
        if kit is not None and not kit.parts:
            del self._kits[session.id]
        return part

    def forget(self, session_id: str) -> None:
        """That session is over: what it has not used of its kit ends."""
        kit = self._kits.pop(session_id, None)
        if kit is not None:
            self.close_soon(kit)

    def close_soon(self, kit: _Kit) -> None:
        """End the processes of a kit in the background."""
        self.finish(asyncio.create_task(kit.close()))

    def finish(self, task: asyncio.Task[None]) -> None:
        """Wait for that task in `close`."""
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End everything."""
        for session_id in list(self._kits):
            self.forget(session_id)
        while self._closing:  # what is being made when it is cancelled has something to end as well
            await asyncio.gather(*self._closing, return_exceptions=True)


class PrestartPool:
    """Pools of kits, one for each environment. `servers_of` gives the servers of a path that are started ahead."""

    def __init__(
        self, shelf: PrestartShelf, servers_of: Callable[[str, Context], Sequence[ConfiguredUpstream]]
    ) -> None:
        self._shelf = shelf
        self._servers_of = servers_of
        self._pools: OrderedDict[_Environment, _Pool] = OrderedDict()
        self._open: set[str] = set()
        self._at_once = asyncio.Semaphore(AT_ONCE)

    @contextlib.contextmanager
    def beginning(self, session: Session) -> Iterator[Session]:
        """A session that is about to be opened: with the id of a kit, if there is one for it. Unless it is `opened`
        inside the block, the kit is of no use.
        """
        begun = self._begin(session)
        try:
            yield begun
        finally:
            if begun.id not in self._open:
                self._shelf.forget(begun.id)
            self._open.discard(begun.id)

    def _begin(self, session: Session) -> Session:
        if not self._servers_of(session.endpoint, session.context):
            return session
        environment = _Environment(session.endpoint, session.principal, session.context, session.client.name)
        pool = self._pools.get(environment)
        if pool is None:
            pool = self._pools[environment] = _Pool(session)
            if len(self._pools) > MAX_ENVIRONMENTS:
                self._drop(self._pools.popitem(last=False)[1])
        self._pools.move_to_end(environment)
        pool.used_at = monotonic()
        while pool.kits:
            kit = pool.kits.pop(0)
            if kit.is_good:
                self._shelf.put(kit)
                return replace(session, id=kit.session.id)
            self._shelf.close_soon(kit)
        return session

    def opened(self, session: Session) -> None:
        """It is open: make kits for the next one like it."""
        self._open.add(session.id)
        environment = _Environment(session.endpoint, session.principal, session.context, session.client.name)
        pool = self._pools.get(environment)
        if pool is not None and pool.filling is None:
            pool.filling = asyncio.create_task(self._fill(pool))

    def sweep(self) -> None:
        """End kits that nobody has wanted for long."""
        for environment, pool in list(self._pools.items()):
            if monotonic() - pool.used_at > UNUSED_S:
                del self._pools[environment]
                self._drop(pool)

    async def close(self) -> None:
        """End everything."""
        for pool in self._pools.values():
            self._drop(pool)
        self._pools.clear()
        await self._shelf.close()

    # -- making and ending kits

    async def _fill(self, pool: _Pool) -> None:
        try:
            servers = self._servers_of(pool.like.endpoint, pool.like.context)
            while servers and len(pool.kits) < max(server.settings.warm for server in servers):
                async with self._at_once:
                    await self._make(pool, servers)
        except UpstreamUnavailable as error:
            logger.info("no process could be prestarted: %s", error)
        finally:
            pool.filling = None

    async def _make(self, pool: _Pool, servers: Sequence[ConfiguredUpstream]) -> None:
        kit = _Kit(replace(pool.like, id=new_session_id()))
        try:
            for server in servers:
                kit.parts[server.name] = await server.prepare(kit.session)
        except BaseException:
            self._shelf.close_soon(kit)
            raise
        pool.kits.append(kit)
        logger.debug("processes were prestarted", extra={"session": redact(kit.session.id)})

    def _drop(self, pool: _Pool) -> None:
        if pool.filling is not None:
            pool.filling.cancel()
            self._shelf.finish(pool.filling)
        for kit in pool.kits:
            self._shelf.close_soon(kit)
        pool.kits.clear()
