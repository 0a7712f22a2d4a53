"""Limits the rate of a session's calls, a principal's messages and new sessions, on all replicas together.

A message beyond the rate waits for its turn, first come, first served. It is refused with 429 if too many wait already,
or if its turn would come too late. It counts once, and once more for each further 64 KiB of its body that are begun,
because a large body costs as much as many small ones. Anonymous clients are counted by the network that they come from,
so that they do not use up one common rate.
"""

import asyncio
import contextlib
import math
from collections import OrderedDict
from time import monotonic
from typing import Final

from gateway.config.policy import PolicySettings, RateSettings
from gateway.errors import too_often
from session_store import ANONYMOUS, Principal, Rates, Session, StoreUnavailable
from transports.inbound_port import Refused
from transports.tasks import Tasks

__all__ = ["RateLimits"]

_AHEAD_S: Final = 0.1
"""A replica takes the tokens of this many seconds from the store at once, and spends them without asking again. It may
also spend as many before it asks, and takes them later. So few calls wait for the store."""

_TOKENS_EXPIRE_S: Final = 1.0
"""Tokens that are not spent by then expire: they must not allow a burst later."""

_LONGEST_WAIT_S: Final = 1.0
"""A client that sends its next call once the last is answered never waits so long at a rate of one a second or more. A
call that waits longer looks like a server that hangs, and its client is told when to come back."""

_WAIT_OF_ONE: Final = 32
"""How many messages of a session, or openings of a principal, wait at the same time. Agents have a few calls in flight;
what has dozens beyond its rate does not slow down by itself, and each that waits holds a connection and a body."""

_WAIT_OF_MANY: Final = 256
"""How many messages of a principal or an address wait at the same time: one of each of many agents."""

_MOST_QUEUED: Final = 4_096
"""How many messages of an account wait for the store at the same time, which says how long they have to wait."""

_WEIGHED_BYTES: Final = 64 << 10

_MAX_ACCOUNTS: Final = 10_000

_NEVER: Final = -math.inf


class _Account:
    """Holds the tokens of one key on this replica. `left`: taken from the store and not spent; negative: spent in
    advance.

    Beyond the rate, the store gives tokens for later: one every `every` seconds, the last of them at `last_at`. Who is
    in `queue` has none yet, and `waiting` is how many have one that is not due. All times are of the monotonic clock.
    """

    __slots__ = ("ahead", "credit", "every", "key", "kind", "last_at", "left", "low", "queue", "until", "waiting")

    def __init__(self, key: str, kind: "_Accounts") -> None:
        rate = kind.rate
        self.key = key
        self.kind = kind
        self.left = 0
        self.until = 0.0
        self.every = 1 / rate.per_s
        self.last_at = _NEVER
        self.ahead = max(1, min(rate.at_once // 4, int(rate.per_s * _AHEAD_S)))
        self.credit = self.ahead if self.ahead > 1 else 0
        self.low = -(self.credit // 2)
        self.queue: list[asyncio.Future[float]] = []
        self.waiting = 0

    def add(self, taken: int, wait: float, now: float) -> None:
        """Add tokens from the store, the last of which may be spent in `wait` seconds. All expire later."""
        self.left += taken
        self.last_at = now + wait if wait > 0 else _NEVER
        self.until = now + wait + _TOKENS_EXPIRE_S

    def spend(self, now: float) -> bool:
        """Spend one token. False if none is at hand: none is left, it is not due, or others wait for it."""
        if self.waiting or self.queue:
            return False
        if self.left > 0 and now > self.until:
            self.left = 0
        if self.left <= -self.credit or now < self.last_at - (self.left - 1) * self.every:
            return False
        self.left -= 1
        return True

    def serve(self, now: float) -> None:
        """Give the tokens that are left to those in the queue. Each is told how many seconds to wait. If as many wait
        already as may, the rest of the queue is refused."""
        while self.queue and self.left > 0:
            wait = max(0.0, self.last_at - (self.left - 1) * self.every - now)
            if wait > 0 and self.waiting >= self.kind.most:
                return self.refuse(wait)
            turn = self.queue.pop(0)
            if not turn.done():  # else it was cancelled
                self.left -= 1
                self.waiting += wait > 0
                turn.set_result(wait)
        return None

    def refuse(self, wait: float) -> None:
        """Refuse all in the queue: tell them, as a negative number, in how many seconds to come back."""
        while self.queue:
            turn = self.queue.pop(0)
            if not turn.done():
                turn.set_result(-wait)

    def leave(self, turn: asyncio.Future[float]) -> None:
        """Take back a turn that nobody waits for any more."""
        if turn in self.queue:
            self.queue.remove(turn)
        elif not turn.cancelled():
            self.waiting -= turn.result() > 0


class _Accounts(OrderedDict[str | Principal, _Account]):
    """Holds the accounts of one kind, of a session, an address or a principal each, which have one rate. `what` names
    the rate for a client that is beyond it. `most` messages of each account may wait."""

    # A dict and not a `FIFOCache`: each request looks two accounts up, which takes four calls each there.

    def __init__(self, kind: str, rate: RateSettings, what: str, most: int) -> None:
        super().__init__()
        self.rate = rate
        self.what = what
        self.most = most
        self._kind = kind

    def __missing__(self, whose: str | Principal) -> _Account:
        text = whose.key if isinstance(whose, Principal) else whose
        account = self[whose] = _Account(f"{self._kind}/{text}", self)
        if len(self) > _MAX_ACCOUNTS:
            self.popitem(last=False)
        return account

    def refusal(self, wait: float) -> Refused:
        """Return the refusal of a message that may come back in so many seconds."""
        return too_often(self.what, max(1, math.ceil(wait)))


def _accounts(kind: str, rate: RateSettings | None, what: str, most: int = _WAIT_OF_ONE) -> _Accounts | None:
    return None if rate is None else _Accounts(kind, rate, what, most)


class RateLimits:
    """Applies the operator's rates."""

    def __init__(self, settings: PolicySettings, rates: Rates) -> None:
        of_many = settings.principal_rate
        self._sessions = _accounts("session", settings.session_rate, "requests of this session")
        self._addresses = _accounts("address", of_many, "requests of this address", _WAIT_OF_MANY)
        self._principals = _accounts("principal", of_many, "requests of this principal", _WAIT_OF_MANY)
        self._openings = _accounts("opening", settings.opening_rate, "sessions opened: keep one for many calls")
        self._rates = rates
        self._tasks = Tasks("rate limits")
        self._go_on = asyncio.Event()

    async def message(self, principal: Principal, client: str) -> None:
        """Count a message of a client, which waits if it is beyond the rate. `client` is the network that it comes
        from.

        Raises:
            Refused: 429, with the time to wait.
        """
        if principal == ANONYMOUS:
            await self._count(self._addresses, client)
        else:
            await self._count(self._principals, principal)

    async def body(self, principal: Principal, client: str, size: int) -> None:
        """Count the bytes of a body, beside the message that it is. Raises as `message`."""
        accounts, whose = (self._addresses, client) if principal == ANONYMOUS else (self._principals, principal)
        await self._count_bytes(accounts, whose, size)

    async def call(self, session_id: str, size: int = 0) -> None:
        """Count a request of a session, whose body has that size. Waits and raises as `message`."""
        await self._count(self._sessions, session_id)
        await self._count_bytes(self._sessions, session_id, size)

    async def opening(self, session: Session) -> None:
        """Count a session that is about to be opened. Waits and raises as `message`."""
        await self._count(self._openings, session.counted_as)

    def spend_at_hand(self, principal: Principal | None, client: str, session_id: str) -> bool:
        """Count a message that is a call, if that needs neither the store nor a wait. False: nothing was counted.
        `principal` None: the replica that has forwarded the call has counted it as a message. `session_id` empty: the
        owner of the session counts it as a call."""
        senders, whose = (self._addresses, client) if principal == ANONYMOUS else (self._principals, principal)
        sender = None if senders is None or whose is None else senders[whose]
        session = None if self._sessions is None or not session_id else self._sessions[session_id]
        now = monotonic()
        if sender is not None and not sender.spend(now):
            return False
        if session is not None and not session.spend(now):
            if sender is not None:
                sender.left += 1
            return False
        if sender is not None and sender.left < sender.low:
            self._start_refill(sender)
        if session is not None and session.left < session.low:
            self._start_refill(session)
        return True

    def give_back(self, principal: Principal | None, client: str, session_id: str) -> None:
        """Undo what `spend_at_hand` has counted."""
        senders, whose = (self._addresses, client) if principal == ANONYMOUS else (self._principals, principal)
        if senders is not None and whose is not None:
            senders[whose].left += 1
        if self._sessions is not None:
            self._sessions[session_id].left += 1

    def let_go(self) -> None:
        """Let everything that waits go on: the process drains, or nobody knows any more what the rates are."""
        self._go_on.set()
        self._go_on.clear()

    async def _count(self, accounts: _Accounts | None, whose: str | Principal) -> None:
        if accounts is None:
            return
        account = accounts[whose]
        if not account.spend(monotonic()):
            await self._wait(account)
        elif account.left < account.low:  # so that a later message need not wait for the store
            self._start_refill(account)

    async def _wait(self, account: _Account) -> None:
        """Wait for a token. Raises as `message`."""
        if account.waiting >= account.kind.most or len(account.queue) >= _MOST_QUEUED:
            raise account.kind.refusal(0)
        turn = asyncio.get_running_loop().create_future()
        account.queue.append(turn)
        account.serve(monotonic())
        if account.queue:
            self._start_refill(account)
        try:
            await self._pause(account, await turn)
        finally:
            account.leave(turn)

    async def _pause(self, account: _Account, wait: float) -> None:
        """Wait so many seconds. Raises as `message`, if they are too many or negative."""
        if not 0 <= wait <= _LONGEST_WAIT_S:
            raise account.kind.refusal(abs(wait))
        if wait:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._go_on.wait()

    async def _count_bytes(self, accounts: _Accounts | None, whose: str | Principal, size: int) -> None:
        if accounts is not None and size > _WEIGHED_BYTES:
            # A body is never refused for its own size: it costs the burst at most.
            account, tokens = accounts[whose], min((size - 1) // _WEIGHED_BYTES, accounts.rate.at_once)
            await self._pause(account, await self._ask(account, tokens))

    def _start_refill(self, account: _Account) -> None:
        self._tasks.start(account, lambda: self._refill(account))

    async def _refill(self, account: _Account) -> None:
        """Take tokens for what was spent in advance and for the queue, and some ahead."""
        while True:
            try:
                wait = await self._take(account)
            except Exception as error:
                for turn in account.queue:
                    if not turn.done():
                        turn.set_exception(error)
                raise
            if wait > _LONGEST_WAIT_S:
                account.refuse(wait)
            account.serve(monotonic())
            if not account.queue:
                return

    async def _take(self, account: _Account) -> float:
        """Take the tokens for one step of `_refill`. Returns as `_ask`."""
        owed, ahead = max(0, -account.left), account.ahead
        wait = await self._ask(account, owed + ahead)
        if wait > _LONGEST_WAIT_S and ahead > 1:
            ahead, wait = 1, await self._ask(account, owed + 1)
        if wait <= _LONGEST_WAIT_S:
            account.add(owed + ahead, wait, monotonic())
        return wait

    async def _ask(self, account: _Account, tokens: int) -> float:
        """Take tokens from the store. Returns the seconds until the last of them may be spent; if that is more than
        `_LONGEST_WAIT_S`, none was taken."""
        rate = account.kind.rate
        try:
            return await self._rates.take(account.key, rate.per_s, rate.at_once, tokens, _LONGEST_WAIT_S)
        except StoreUnavailable:
            self.let_go()  # requests are served while the store is unreachable
            return 0.0
