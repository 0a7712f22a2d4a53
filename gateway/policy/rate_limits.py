"""How often a session, its principal, and who opens sessions may ask: 429 beyond, the same on every replica.

Whoever has named nobody is counted by the network they come from: strangers must not use up what others have.
"""

import math
from time import monotonic
from typing import Final

from cachetools import FIFOCache

from gateway.config.policy import PolicySettings, RateSettings
from gateway.errors import too_often
from session_store import Principal, Rates, Session, StoreUnavailable
from transports.tasks import Tasks

__all__ = ["RateLimits"]

_AHEAD_S: Final = 0.1
"""A replica takes from the common account what a rate allows in so long, and spends it without asking again; and it
spends as much before it asks, which it settles when it does. So few calls wait for the store."""

_GOOD_S: Final = 1.0
"""What is not spent by then is lost: it must not make a burst of its own later."""

_HELD: Final = 10_000

Key = tuple[str, str | Principal]


class _Account:
    """What this replica has taken for one key and not spent yet; below 0, what it has spent and not taken yet."""

    __slots__ = ("credit", "key", "left", "until")

    def __init__(self, key: str, rate: RateSettings) -> None:
        self.key = key
        self.left = 0
        self.until = 0.0
        ahead = _ahead(rate)
        self.credit = ahead if ahead > 1 else 0

    def add(self, taken: int, until: float) -> None:
        """Put in what was taken from the common account; it is lost after `until`, by the monotonic clock."""
        self.left += taken
        self.until = until

    def spend(self, now: float) -> bool:
        """Spend one. False if nothing is left."""
        if self.left > 0 and now > self.until:
            self.left = 0
        if self.left <= -self.credit:
            return False
        self.left -= 1
        return True


def _ahead(rate: RateSettings) -> int:
    return max(1, min(rate.burst // 4, int(rate.per_s * _AHEAD_S)))


class RateLimits:
    """Applies the operator's rates."""

    def __init__(self, settings: PolicySettings, rates: Rates) -> None:
        self._session = settings.session_rate
        self._principal = settings.principal_rate
        self._opening = settings.opening_rate
        self._rates = rates
        self._accounts: FIFOCache[Key, _Account] = FIFOCache(_HELD)
        self._tasks = Tasks("rate limits")

    async def message(self, principal: Principal, client: str) -> None:
        """Count a message of a client, whatever it is; `client` is the network it comes from.

        Raises:
            Refused: 429, with the time to wait.
        """
        if self._principal is not None:
            if principal.is_anonymous:
                await self._count(("address", client), self._principal, "requests of this address")
            else:
                await self._count(("principal", principal), self._principal, "requests of this principal")

    async def call(self, session: Session) -> None:
        """Count what a session asks for. Raises as `message`."""
        if self._session is not None:
            await self._count(("session", session.id), self._session, "requests of this session")

    async def opening(self, session: Session) -> None:
        """Count a session that is about to be opened. Raises as `message`."""
        if self._opening is not None:
            key = ("opening", session.counted_as)
            await self._count(key, self._opening, "sessions opened: keep one for many calls")

    async def _count(self, key: Key, rate: RateSettings, told: str) -> None:
        account = self._accounts.get(key) or self._account(key, rate)
        if not account.spend(monotonic()) and (wait := await self._ask(account, rate)):
            raise too_often(told, math.ceil(wait))

    def _account(self, key: Key, rate: RateSettings) -> _Account:
        what, whose = key
        text = whose.key if isinstance(whose, Principal) else whose
        account = self._accounts[key] = _Account(f"{what}/{text}", rate)
        return account

    async def _ask(self, account: _Account, rate: RateSettings) -> float:
        """Take from the common account and spend once: 0, or the seconds to wait."""
        while not account.spend(monotonic()):
            # Whoever comes meanwhile waits for the same answer, and asks anew when it was not enough for all.
            wait = await self._tasks.share(account, lambda: self._take(account, rate))
            if wait > 0:
                return wait
        return 0.0

    async def _take(self, account: _Account, rate: RateSettings) -> float:
        ahead, owed = _ahead(rate), max(0, -account.left)
        try:
            wait = await self._rates.take(account.key, rate.per_s, rate.burst, ahead + owed)
            if wait > 0 and ahead > 1:
                ahead, wait = 1, await self._rates.take(account.key, rate.per_s, rate.burst, 1 + owed)
        except StoreUnavailable:
            wait = 0.0  # sessions go on while the store is away
        if wait <= 0:
            account.add(owed + ahead, monotonic() + _GOOD_S)
        return wait
