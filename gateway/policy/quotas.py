"""How many sessions and processes a principal may have, on all replicas together; who has no name, by address."""

import contextlib
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Collection

from cachetools import TTLCache

from gateway.config.policy import PolicySettings
from gateway.errors import too_many
from gateway.policy.rate_limits import RateLimits
from session_store import Quotas, Session, SessionStore, StoreUnavailable
from transports.tasks import Tasks

__all__ = ["PrincipalQuotas"]

logger = logging.getLogger(__name__)

_OPENING_S = 5.0
"""A session that began less than this ago may be about to be kept: it counts."""

_FULL_FOR_S = 2.0
"""A quota that was full is not looked through again so soon: those who are refused must not cost a search each."""

_LOOKED_THROUGH = 256
"""Names of a full quota that are looked up at a time: the rest has its turn with the next who is refused."""


class PrincipalQuotas:
    """Applies the operator's quotas. What is gone without a word (a session by its age, a process with its replica) is
    found out when a quota looks full, and never counted against anybody.

    `kept_s`: no session lives longer; what is left of a principal that comes no more is forgotten then.
    `run` is this gateway process among those that `runs` names; only a process of one of these still runs.
    """

    def __init__(
        self,
        settings: PolicySettings,
        quotas: Quotas,
        sessions: SessionStore,
        *,
        rates: RateLimits,
        kept_s: float,
        run: str,
        runs: Callable[[], Awaitable[Collection[str]]],
    ) -> None:
        self._sessions_most = settings.principal_sessions
        self._processes_most = settings.principal_processes
        self._quotas = quotas
        self._sessions = sessions
        self._run = run or secrets.token_urlsafe(9)
        self._runs = runs
        self._rates = rates
        self._kept_s = kept_s + _OPENING_S
        self._full: TTLCache[str, bool] = TTLCache(4_096, _FULL_FOR_S)
        self._tasks = Tasks("quotas")

    async def session(self, session: Session) -> None:
        """Count a session that is about to be opened.

        Raises:
            Refused: 429, its principal has as many as it may, or opens them too often.
        """
        await self._rates.opening(session)
        if self._sessions_most is not None:
            key = f"sessions/{session.counted_as}"
            if not await self._held(key, _named(session), self._sessions_most, self._over(session.created_at)):
                raise too_many("sessions", self._sessions_most, anonymous=session.principal.is_anonymous)

    async def session_over(self, session: Session) -> None:
        """It has ended, or was never kept. Where the store is silent, that is found out when the quota looks full."""
        if self._sessions_most is not None:
            key = f"sessions/{session.counted_as}"
            self._full.pop(key, None)
            with contextlib.suppress(StoreUnavailable):
                await self._quotas.give_back(key, [_named(session)])

    def _over(self, now: float) -> Callable[[list[str]], Awaitable[list[str]]]:
        async def over(names: list[str]) -> list[str]:
            kept = {name.partition("/")[0]: name for name in names if float(name.partition("/")[2]) < now - _OPENING_S}
            some = random.sample(sorted(kept), min(len(kept), _LOOKED_THROUGH))
            return [kept[session_id] for session_id in await self._sessions.gone(some)]

        return over

    async def process(self, session: Session) -> Callable[[], None]:
        """Count a process that is about to be started; what is to be called when it has ended.

        Raises:
            Refused: 429, its principal has as many as it may.
        """
        if self._processes_most is None:
            return _nothing
        key, name = f"processes/{session.counted_as}", f"{self._run}/{secrets.token_urlsafe(9)}"
        if not await self._held(key, name, self._processes_most, self._ended_with_their_gateway):
            raise too_many("server processes", self._processes_most, anonymous=session.principal.is_anonymous)
        return lambda: self._give_back(key, name)

    async def _held(
        self, key: str, name: str, most: int, gone: Callable[[list[str]], Awaitable[Collection[str]]]
    ) -> bool:
        if key in self._full:
            return False
        try:
            held = await self._quotas.hold(key, name, most, for_s=self._kept_s)
            if held and (over := await gone(held)):
                await self._quotas.give_back(key, list(over))
                held = await self._quotas.hold(key, name, most, for_s=self._kept_s)
        except StoreUnavailable:
            return True  # its owner goes on while the store is away; so does the session
        if len(held) > _LOOKED_THROUGH:
            self._full[key] = True
        return not held

    async def _ended_with_their_gateway(self, names: list[str]) -> list[str]:
        running = {self._run, *await self._runs()}
        return [name for name in names if name.partition("/")[0] not in running]

    def _give_back(self, key: str, name: str) -> None:
        self._full.pop(key, None)
        self._tasks.spawn(self._given_back(key, name))

    async def _given_back(self, key: str, name: str) -> None:
        try:
            await self._quotas.give_back(key, [name])
        except StoreUnavailable:
            logger.warning("a server process that ended still counts against its quota until this gateway stops")

    async def settled(self) -> None:
        """Wait until everything that has ended is given back."""
        await self._tasks.settled()


def _named(session: Session) -> str:
    return f"{session.id}/{session.created_at}"


def _nothing() -> None:
    """Nothing was counted."""
