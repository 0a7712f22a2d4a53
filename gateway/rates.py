"""How often a session and its principal may ask: 429 beyond, the same on every replica."""

import asyncio
import math
from collections import OrderedDict
from time import monotonic
from typing import Final

from gateway.errors import too_often
from gateway.policy_settings import PolicySettings, RateSettings
from session_store import Principal, Rates, Session, StoreUnavailable

__all__ = ["RateLimits"]

_AHEAD_S: Final = 0.1
"""A replica takes from the common account what a rate allows in so long, and spends it without asking again."""

_GOOD_S: Final = 1.0
"""What is not spent by then is lost: it must not make a burst of its own later."""

_HELD: Final = 10_000


class _Account:
    """What this replica has taken for one key and not spent yet."""

    __slots__ = ("asking", "key", "left", "until")

    def __init__(self, key: str) -> None:
        self.key = key
        self.left = 0
        self.until = 0.0
        self.asking: asyncio.Task[float] | None = None

    def spend(self, now: float) -> bool:
        """Once, if there is something left."""
        if self.left == 0 or now > self.until:
            return False
        self.left -= 1
        return True


class RateLimits:
    """Applies the operator's rates. `matter`: there are any."""

    def __init__(self, settings: PolicySettings, rates: Rates) -> None:
        self._session = settings.session_rate
        self._principal = settings.principal_rate
        self._rates = rates
        self._accounts: OrderedDict[str | Principal, _Account] = OrderedDict()
        self.matter = bool(self._session or self._principal)

    async def check(self, session: Session) -> None:
        """Count a request.

        Raises:
            Refused: 429, with the time to wait.
        """
        now = monotonic()
        if self._session is not None:
            account = self._accounts.get(session.id) or self._account(session.id, f"session/{session.id}")
            if not account.spend(now) and (wait := await self._ask(account, self._session)):
                raise too_often("session", math.ceil(wait))
        principal = session.principal
        # Nobody in particular must not use up what others have.
        if self._principal is not None and not principal.is_anonymous:
            account = self._accounts.get(principal) or self._account(principal, f"principal/{principal.key}")
            if not account.spend(now) and (wait := await self._ask(account, self._principal)):
                raise too_often("principal", math.ceil(wait))

    def _account(self, whose: str | Principal, key: str) -> _Account:
        account = self._accounts[whose] = _Account(key)
        if len(self._accounts) > _HELD:
            self._accounts.popitem(last=False)
        return account

    async def _ask(self, account: _Account, rate: RateSettings) -> float:
        """Take from the common account and spend once: 0, or the seconds to wait."""
        while not account.spend(monotonic()):
            # Whoever comes meanwhile waits for the same answer, and asks anew when it was not enough for all.
            if account.asking is None:
                account.asking = asyncio.create_task(self._take(account, rate))
            wait = await asyncio.shield(account.asking)
            if wait > 0:
                return wait
        return 0.0

    async def _take(self, account: _Account, rate: RateSettings) -> float:
        ahead = max(1, min(rate.burst // 4, int(rate.per_s * _AHEAD_S)))
        try:
            wait = await self._rates.take(account.key, rate.per_s, rate.burst, ahead)
            if wait > 0 and ahead > 1:
                ahead, wait = 1, await self._rates.take(account.key, rate.per_s, rate.burst)
        except StoreUnavailable:
            wait = 0.0  # its owner goes on while the store is away; so does the session
        finally:
            account.asking = None
        if wait <= 0:
            account.left, account.until = ahead, monotonic() + _GOOD_S
        return wait
