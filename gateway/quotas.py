"""How many sessions and processes a principal may have, on all replicas together. Those without a name count as one."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection

from gateway.errors import too_many
from gateway.policy_settings import PolicySettings
from session_store import Principal, Quotas, Session, SessionStore, StoreUnavailable

__all__ = ["PrincipalQuotas"]

logger = logging.getLogger(__name__)

_OPENING_S = 5.0
"""A session that began less than this ago may be about to be kept: it counts."""

_KEPT_S = 366 * 86_400.0
"""No session lives longer; what is left of a principal that comes no more is forgotten then."""


class PrincipalQuotas:
    """Applies the operator's quotas. What is gone without a word (a session by its age, a process with its replica) is
    found out when a quota looks full, and never counted against anybody.

    `run` is this gateway process among those that `runs` names; only a process of one of these still runs.
    """

    def __init__(
        self,
        settings: PolicySettings,
        quotas: Quotas,
        sessions: SessionStore,
        *,
        run: str,
        runs: Callable[[], Awaitable[Collection[str]]],
    ) -> None:
        self._sessions_most = settings.principal_sessions
        self._processes_most = settings.principal_processes
        self._quotas = quotas
        self._sessions = sessions
        self._run = run or secrets.token_urlsafe(9)
        self._runs = runs
        self._returning: set[asyncio.Task[None]] = set()

    async def session(self, session: Session) -> None:
        """Count a session that is about to be opened.

        Raises:
            Refused: 429, its principal has as many as it may.
        """
        if self._sessions_most is not None:
            key = f"sessions/{session.principal.key}"
            if not await self._held(key, _named(session), self._sessions_most, self._over(session.created_at)):
                raise too_many("sessions", self._sessions_most)

    async def session_over(self, session: Session) -> None:
        """It has ended, or was never kept. Where the store is silent, that is found out when the quota looks full."""
        if self._sessions_most is not None:
            with contextlib.suppress(StoreUnavailable):
                await self._quotas.give_back(f"sessions/{session.principal.key}", [_named(session)])

    def _over(self, now: float) -> Callable[[list[str]], Awaitable[list[str]]]:
        async def over(names: list[str]) -> list[str]:
            kept = {name.partition("/")[0]: name for name in names if float(name.partition("/")[2]) < now - _OPENING_S}
            return [kept[session_id] for session_id in await self._sessions.gone(list(kept))]

        return over

    async def process(self, principal: Principal) -> Callable[[], None]:
        """Count a process that is about to be started; what is to be called when it has ended.

        Raises:
            Refused: 429, its principal has as many as it may.
        """
        if self._processes_most is None:
            return _nothing
        key, name = f"processes/{principal.key}", f"{self._run}/{secrets.token_urlsafe(9)}"
        if not await self._held(key, name, self._processes_most, self._ended_with_their_gateway):
            raise too_many("server processes", self._processes_most)
        return lambda: self._give_back(key, name)

    async def _held(
        self, key: str, name: str, most: int, gone: Callable[[list[str]], Awaitable[Collection[str]]]
    ) -> bool:
        try:
            held = await self._quotas.hold(key, name, most, for_s=_KEPT_S)
            if held and (over := await gone(held)):
                await self._quotas.give_back(key, list(over))
                held = await self._quotas.hold(key, name, most, for_s=_KEPT_S)
        except StoreUnavailable:
            return True  # its owner goes on while the store is away; so does the session
        return not held

    async def _ended_with_their_gateway(self, names: list[str]) -> list[str]:
        running = {self._run, *await self._runs()}
        return [name for name in names if name.partition("/")[0] not in running]

    def _give_back(self, key: str, name: str) -> None:
        task = asyncio.create_task(self._given_back(key, name))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _given_back(self, key: str, name: str) -> None:
        try:
            await self._quotas.give_back(key, [name])
        except StoreUnavailable:
            logger.warning("a process that ended still counts, until this gateway stops")

    async def settled(self) -> None:
        """Until all that has ended has been given back."""
        await asyncio.gather(*self._returning, return_exceptions=True)


def _named(session: Session) -> str:
    return f"{session.id}/{session.created_at}"


def _nothing() -> None:
    """Nothing was counted."""
