"""Start processes before a session needs them (setting `warm` of a server).

A prestarted set is made for one future session. It has a session id, and a process of each server with the setting,
started in the environment of the session. A session may use the set only if its endpoint, principal, context, client,
credential and secrets are those for which the set was made. When a session opens, a set is made for the next session
with the same environment."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from time import monotonic
from typing import Final

from msgspec.structs import replace

from gateway.upstreams.configured_upstream import ConfiguredUpstream
from gateway.upstreams.link_env_and_headers import PrestartedProcess
from session_store import Context, Session
from session_store.session import new_session_id, redact
from transports.background_tasks import Tasks
from transports.upstream_port import UpstreamUnavailable

logger = logging.getLogger(__name__)

MAX_ENVIRONMENTS: Final = 32
AT_ONCE: Final = 2
"""Maximum number of sets that are made at the same time. More would slow down sessions that open meanwhile."""

UNUSED_S: Final = 600.0


class _PrestartedSet:
    """The prestarted processes for one future session, by server."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.processes: dict[str, PrestartedProcess] = {}

    @property
    def is_good(self) -> bool:
        return all(process.is_good for process in self.processes.values())

    async def close(self) -> None:
        await asyncio.gather(*(process.close() for process in self.processes.values()), return_exceptions=True)


class PrestartedProcesses:
    """Hold the prestarted processes that are assigned to sessions and not used yet."""

    def __init__(self) -> None:
        self._given: dict[str, _PrestartedSet] = {}
        self._tasks = Tasks("prestarted processes")

    def give(self, prestarted: _PrestartedSet) -> None:
        """Assign a prestarted set to the session whose id the set has, for `take`."""
        self._given[prestarted.session.id] = prestarted

    def take(self, session: Session, server: str) -> PrestartedProcess | None:
        """Remove and return the session's process of this server; None if there is none. The caller must close it."""
        prestarted = self._given.get(session.id)
        if prestarted is None:
            return None
        process = prestarted.processes.pop(server, None)
        if not prestarted.processes:
            del self._given[session.id]
        return process

    def forget(self, session_id: str) -> None:
        """Close the processes that an ended session has not used."""
        prestarted = self._given.pop(session_id, None)
        if prestarted is not None:
            self.close_soon(prestarted)

    def forget_server(self, server: str) -> None:
        """Close the unused processes of a server whose configuration has changed."""
        for session_id, prestarted in [*self._given.items()]:
            if (process := prestarted.processes.pop(server, None)) is not None:
                self._tasks.spawn(process.close())
            if not prestarted.processes:
                del self._given[session_id]

    def close_soon(self, prestarted: _PrestartedSet) -> None:
        self._tasks.spawn(prestarted.close())

    async def close(self) -> None:
        """Close all unused processes, and wait until every set is closed."""
        for session_id in list(self._given):
            self.forget(session_id)
        await self._tasks.settled()


def _environment_of(session: Session) -> Hashable:
    """Return all facts of a session that its processes get, except its id. Sessions with equal facts can use each
    other's prestarted processes."""
    return session.endpoint, session.principal, session.context, session.client.name, session.token_hash


class _Pool:
    """The prestarted sets that no session has got yet, for sessions with the same environment as the session `like`."""

    def __init__(self, like: Session) -> None:
        self.like = like
        self.ready: list[_PrestartedSet] = []
        self.used_at = monotonic()  # when a session of the environment was last opened


class PrestartPool:
    """Make and store prestarted sets, in one pool for each environment.

    `given` holds the sets that are assigned to sessions. `servers_of` gets an endpoint and a session's context, and
    returns the servers whose processes are prestarted. `clock` returns the Unix time: the time at which a set is made
    is what its processes get as the creation time of their session.
    """

    def __init__(
        self,
        given: PrestartedProcesses,
        servers_of: Callable[[str, Context], Sequence[ConfiguredUpstream]],
        clock: Callable[[], float],
    ) -> None:
        self._given = given
        self._servers_of = servers_of
        self._clock = clock
        self._pools: dict[Hashable, _Pool] = {}
        self._opened: set[str] = set()
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._tasks = Tasks("prestart pool")

    @contextlib.contextmanager
    def beginning(self, session: Session) -> Iterator[Session]:
        """Let a session that is about to be opened use a prestarted set. If one fits, assign the set to the session,
        and yield the session with the id of the set; otherwise yield the session unchanged. The block opens the yielded
        session. If `opened` was not called by the end of the block, the set is closed."""
        begun = self._begin(session)
        try:
            yield begun
        finally:
            if begun.id not in self._opened:
                self._given.forget(begun.id)
            self._opened.discard(begun.id)

    def _begin(self, session: Session) -> Session:
        if not self._servers_of(session.endpoint, session.context):
            return session
        environment = _environment_of(session)
        pool = self._pools.get(environment)
        if pool is None:
            if len(self._pools) == MAX_ENVIRONMENTS:
                self._drop(self._pools.pop(min(self._pools, key=lambda each: self._pools[each].used_at)))
            pool = self._pools[environment] = _Pool(session)
        pool.used_at = monotonic()
        while pool.ready:
            prestarted = pool.ready.pop(0)
            if prestarted.is_good:
                self._given.give(prestarted)
                return replace(session, id=prestarted.session.id)
            self._given.close_soon(prestarted)
        return session

    def opened(self, session: Session) -> None:
        """Record that a session is open, and start the processes for the next session with the same environment."""
        self._opened.add(session.id)
        pool = self._pools.get(_environment_of(session))
        if pool is not None:
            self._tasks.start(pool, lambda: self._fill(pool))

    def sweep(self) -> None:
        """Close the pools that no session has used for `UNUSED_S` seconds, with their processes."""
        for environment, pool in list(self._pools.items()):
            if monotonic() - pool.used_at > UNUSED_S:
                del self._pools[environment]
                self._drop(pool)

    def drop(self) -> None:
        """End, in the background, all prestarted processes that are not assigned to a session."""
        for pool in self._pools.values():
            self._drop(pool)
        self._pools.clear()

    async def close(self) -> None:
        self.drop()
        await self._tasks.settled()  # first, because the task that makes a set closes it
        await self._given.close()

    # -- making and closing sets

    async def _fill(self, pool: _Pool) -> None:
        try:
            servers = self._servers_of(pool.like.endpoint, pool.like.context)
            while servers and len(pool.ready) < max(server.settings.warm for server in servers):
                async with self._at_once:
                    await self._make(pool, servers)
        except UpstreamUnavailable as error:
            logger.info("no process could be prestarted: %s", error)

    async def _make(self, pool: _Pool, servers: Sequence[ConfiguredUpstream]) -> None:
        prestarted = _PrestartedSet(replace(pool.like, id=new_session_id(), created_at=self._clock()))
        try:
            for server in servers:
                prestarted.processes[server.name] = await server.prestart(prestarted.session)
        except BaseException:
            self._given.close_soon(prestarted)
            raise
        pool.ready.append(prestarted)
        logger.debug("processes were prestarted", extra={"session": redact(prestarted.session.id)})

    def _drop(self, pool: _Pool) -> None:
        filling = self._tasks.running(pool)
        if filling is not None:
            filling.cancel()
        for prestarted in pool.ready:
            self._given.close_soon(prestarted)
        pool.ready.clear()
