"""Limit how many sessions and processes a principal may have, on all replicas together.

Anonymous clients are counted by their network.
"""

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
from transports.background_tasks import Tasks

logger = logging.getLogger(__name__)

_OPENING_S = 5.0
"""Age in seconds below which a session counts even if the store does not have it, because sessions are counted before
they are stored."""

_FULL_S = 2.0
"""Seconds between two searches of a full quota for slots that can be reclaimed, so that not every refused request
searches."""

_MAX_CHECKED = 256
"""Maximum number of slots of a full quota that one search checks."""


class PrincipalQuotas:
    """Apply the operator's quotas of sessions and processes for each principal.

    A session that expires, or a process that dies with its replica, does not release its slot of the quota. Such slots
    are reclaimed when a quota appears exhausted, before a request is refused.

    `kept_s` is the longest life of a session in seconds, after which slots expire. `run` is the id of this gateway
    process. `runs` returns the ids of all running gateway processes.
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
        self.replace(settings, kept_s)
        self._quotas = quotas
        self._sessions = sessions
        self._run = run or secrets.token_urlsafe(9)
        self._runs = runs
        self._rates = rates
        self._full: TTLCache[str, bool] = TTLCache(4_096, _FULL_S)
        self._tasks = Tasks("quotas")

    def replace(self, settings: PolicySettings, kept_s: float) -> None:
        """Apply these quotas from now on. Sessions and processes beyond them stay."""
        self._kept_s = kept_s + _OPENING_S
        self._sessions_most = settings.principal_sessions
        self._processes_most = settings.principal_processes

    async def hold_session(self, session: Session) -> None:
        """Count a session that is about to be opened.

        Raises:
            Refused: 429, the principal has the maximum number of sessions, or opens them too often.
        """
        whose = session.counted_as
        await self._rates.count_opening(whose)
        if self._sessions_most is not None:
            key = f"sessions/{whose}"
            if not await self._hold(key, _named(session), self._sessions_most, self._ended_before(session.created_at)):
                raise too_many("sessions", self._sessions_most, anonymous=session.principal.is_anonymous)

    async def release_session(self, session: Session) -> None:
        """Release a session's slot of the quota. If the store is unreachable, the slot is reclaimed later."""
        if self._sessions_most is not None:
            key = f"sessions/{session.counted_as}"
            self._full.pop(key, None)
            with contextlib.suppress(StoreUnavailable):
                await self._quotas.give_back(key, [_named(session)])

    def _ended_before(self, now: float) -> Callable[[list[str]], Awaitable[list[str]]]:
        """Return a function that gets the names of slots in a quota of sessions, and returns those whose sessions have
        ended. The function asks the store about a random sample of the sessions. Sessions that were opened less than
        `_OPENING_S` seconds before `now` are left out."""

        async def ended(names: list[str]) -> list[str]:
            stored = {
                name.partition("/")[0]: name for name in names if float(name.partition("/")[2]) < now - _OPENING_S
            }
            some = random.sample(sorted(stored), min(len(stored), _MAX_CHECKED))
            return [stored[session_id] for session_id in await self._sessions.gone(some)]

        return ended

    async def hold_process(self, session: Session) -> Callable[[], None]:
        """Count a process that is about to be started. Return a function to call when the process has ended.

        Raises:
            Refused: 429, the principal has the maximum number of processes.
        """
        if self._processes_most is None:
            return _nothing
        key, name = f"processes/{session.counted_as}", f"{self._run}/{secrets.token_urlsafe(9)}"
        if not await self._hold(key, name, self._processes_most, self._ended_with_their_gateway):
            raise too_many("server processes", self._processes_most, anonymous=session.principal.is_anonymous)
        return lambda: self._release_process(key, name)

    async def _hold(
        self, key: str, name: str, most: int, gone: Callable[[list[str]], Awaitable[Collection[str]]]
    ) -> bool:
        """Claim a slot of the quota `key` for `name`. Return False if all `most` slots are in use. `gone` gets the
        names of the used slots, and returns those that can be reclaimed."""
        if key in self._full:
            return False
        try:
            held = await self._quotas.hold(key, name, most, for_s=self._kept_s)
            if held and (ended := await gone(held)):
                await self._quotas.give_back(key, list(ended))
                held = await self._quotas.hold(key, name, most, for_s=self._kept_s)
        except StoreUnavailable:
            return True  # sessions and processes may start while the store is unreachable
        if len(held) > _MAX_CHECKED:
            self._full[key] = True
        return not held

    async def _ended_with_their_gateway(self, names: list[str]) -> list[str]:
        running = {self._run, *await self._runs()}
        return [name for name in names if name.partition("/")[0] not in running]

    def _release_process(self, key: str, name: str) -> None:
        self._full.pop(key, None)
        self._tasks.spawn(self._release_process_now(key, name))

    async def _release_process_now(self, key: str, name: str) -> None:
        try:
            await self._quotas.give_back(key, [name])
        except StoreUnavailable:
            logger.warning(
                "an ended server process counts against its quota until this gateway stops: the store does not answer"
            )

    async def settled(self) -> None:
        """Wait until the quota slots of all ended processes are released."""
        await self._tasks.settled()


def _named(session: Session) -> str:
    return f"{session.id}/{session.created_at}"


def _nothing() -> None:
    """Do nothing. `hold_process` returns this function if there is no quota of processes: then none is counted."""
