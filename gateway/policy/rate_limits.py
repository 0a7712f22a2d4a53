"""Limits the rate of a session's calls, a principal's messages and new sessions, on all replicas together.

A message beyond the rate is refused with 429. It counts once, and once more for each further 64 KiB of its body that
are begun, because a large body costs as much as many small ones. Anonymous clients are counted by the network that they
come from, so that they do not use up one common rate.
"""

import math
from collections import OrderedDict
from time import monotonic
from typing import Final

from gateway.config.policy import PolicySettings, RateSettings
from gateway.errors import too_often
from session_store import Principal, Rates, Session, StoreUnavailable
from transports.soon import Soon, arrived
from transports.tasks import Tasks

__all__ = ["RateLimits"]

_AHEAD_S: Final = 0.1
"""A replica takes the tokens of this many seconds from the store at once, and spends them without asking again. It may
also spend as many before it asks, and takes them later. So few calls wait for the store."""

_TOKENS_EXPIRE_S: Final = 1.0
"""Tokens that are not spent by then expire: they must not allow a burst later."""

_WEIGHED_BYTES: Final = 64 << 10

_MAX_ACCOUNTS: Final = 10_000


class _Account:
    """The tokens of one key on this replica. `left`: taken from the store and not spent; negative: spent in advance."""

    __slots__ = ("credit", "key", "left", "low", "until")

    def __init__(self, key: str, rate: RateSettings) -> None:
        self.key = key
        self.left = 0
        self.until = 0.0
        ahead = _ahead(rate)
        self.credit = ahead if ahead > 1 else 0
        self.low = -(self.credit // 2)

    def add(self, taken: int, until: float) -> None:
        """Add tokens from the store. All expire at `until`, by the monotonic clock."""
        self.left += taken
        self.until = until

    def spend(self, now: float) -> bool:
        """Spend one token. False if none is left."""
        if self.left > 0 and now > self.until:
            self.left = 0
        if self.left <= -self.credit:
            return False
        self.left -= 1
        return True


def _ahead(rate: RateSettings) -> int:
    return max(1, min(rate.burst // 4, int(rate.per_s * _AHEAD_S)))


class _Accounts:
    """The accounts of one kind, which have one rate. `what` names the rate for a client that is beyond it."""

    def __init__(self, kind: str, rate: RateSettings, what: str) -> None:
        self.rate = rate
        self.what = what
        self._kind = kind
        # A dict and not a `FIFOCache`: each request looks two accounts up, which takes four calls each there.
        self._accounts: OrderedDict[str | Principal, _Account] = OrderedDict()

    def of(self, whose: str | Principal) -> _Account:
        """The account of a session, an address or a principal."""
        return self._accounts.get(whose) or self._new(whose)

    def _new(self, whose: str | Principal) -> _Account:
        text = whose.key if isinstance(whose, Principal) else whose
        account = self._accounts[whose] = _Account(f"{self._kind}/{text}", self.rate)
        if len(self._accounts) > _MAX_ACCOUNTS:
            self._accounts.popitem(last=False)
        return account


def _accounts(kind: str, rate: RateSettings | None, what: str) -> _Accounts | None:
    return None if rate is None else _Accounts(kind, rate, what)


class RateLimits:
    """Applies the operator's rates."""

    def __init__(self, settings: PolicySettings, rates: Rates) -> None:
        self._sessions = _accounts("session", settings.session_rate, "requests of this session")
        self._addresses = _accounts("address", settings.principal_rate, "requests of this address")
        self._principals = _accounts("principal", settings.principal_rate, "requests of this principal")
        self._openings = _accounts("opening", settings.opening_rate, "sessions opened: keep one for many calls")
        self._rates = rates
        self._tasks = Tasks("rate limits")

    def message(self, principal: Principal, client: str) -> Soon[None]:
        """Count a message of a client. `client` is the network that it comes from.

        Raises:
            Refused: 429, with the time to wait.
        """
        if self._principals is None:  # and none of addresses: they have one setting
            return None
        if principal.is_anonymous:
            return self._count(self._addresses, client)
        return self._count(self._principals, principal)

    def body(self, principal: Principal, client: str, size: int) -> Soon[None]:
        """Count the bytes of a body, beside the message that it is. Raises as `message`."""
        if size <= _WEIGHED_BYTES:
            return None
        accounts, whose = (self._addresses, client) if principal.is_anonymous else (self._principals, principal)
        return self._count_bytes(accounts, whose, size)

    def call(self, session: Session, size: int = 0) -> Soon[None]:
        """Count a request of a session, whose body has that size. Raises as `message`."""
        if size > _WEIGHED_BYTES:
            return self._count_weighed(session.id, size)
        return self._count(self._sessions, session.id)

    async def _count_weighed(self, session_id: str, size: int) -> None:
        await arrived(self._count(self._sessions, session_id))
        await arrived(self._count_bytes(self._sessions, session_id, size))

    def of_session(self, session_id: str) -> Soon[None]:
        """As `call`, for a request about a session whose record is not at hand."""
        return self._count(self._sessions, session_id)

    def opening(self, session: Session) -> Soon[None]:
        """Count a session that is about to be opened. Raises as `message`."""
        return self._count(self._openings, session.counted_as)

    def _count(self, accounts: _Accounts | None, whose: str | Principal) -> Soon[None]:
        if accounts is None:
            return None
        account = accounts.of(whose)
        if not account.spend(monotonic()):
            return self._count_in_store(account, accounts)
        if account.left < account.low:  # so that a later message need not wait for the store
            self._tasks.start(account, lambda: self._take(account, accounts.rate))
        return None

    def _count_bytes(self, accounts: _Accounts | None, whose: str | Principal, size: int) -> Soon[None]:
        return None if accounts is None else self._take_for_bytes(accounts, accounts.of(whose), size)

    async def _take_for_bytes(self, accounts: _Accounts, account: _Account, size: int) -> None:
        rate = accounts.rate
        # A body is never refused for its own size: it costs the burst at most.
        tokens = min((size - 1) // _WEIGHED_BYTES, rate.burst)
        try:
            wait = await self._rates.take(account.key, rate.per_s, rate.burst, tokens)
        except StoreUnavailable:
            return  # requests are served while the store is unreachable
        if wait > 0:
            raise too_often(accounts.what, math.ceil(wait))

    async def _count_in_store(self, account: _Account, accounts: _Accounts) -> None:
        if wait := await self._ask(account, accounts.rate):
            raise too_often(accounts.what, math.ceil(wait))

    async def _ask(self, account: _Account, rate: RateSettings) -> float:
        """Take tokens from the store and spend one. Returns 0, or the seconds to wait."""
        while not account.spend(monotonic()):
            # Concurrent callers share one request to the store, and ask again if it brought too few tokens for all.
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
            wait = 0.0  # requests are served while the store is unreachable
        if wait <= 0:
            account.add(owed + ahead, monotonic() + _TOKENS_EXPIRE_S)
        return wait
