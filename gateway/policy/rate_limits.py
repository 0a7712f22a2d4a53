"""Limit the rates of a session's calls, a principal's messages and new sessions, on all replicas together.

Rates are token buckets in the store. A message beyond the rate waits in a queue, first come, first served. It is
refused with 429 if too many messages wait, or if it would wait too long. A message costs one token, and one more for
each further 64 KiB of its body or part of that: a large body costs as much as many small ones. Anonymous clients are
counted by their network, so that they do not share one rate.
"""

import asyncio
import contextlib
import math
from collections import OrderedDict
from time import monotonic
from typing import Final

from gateway.config.policy import PolicySettings, RateSettings
from gateway.errors import too_often
from session_store import ANONYMOUS, Principal, Rates, StoreUnavailable
from transports.background_tasks import Tasks
from transports.inbound_port import Refused

_AHEAD_S: Final = 0.1
"""Seconds for which a replica takes tokens from the store in advance, to spend them without asking again. It may also
spend as many tokens before it takes them. So few calls wait for the store."""

_TOKENS_EXPIRE_S: Final = 1.0
"""Seconds after which unspent tokens of a replica expire, so that they do not allow a burst later."""

_LONGEST_WAIT_S: Final = 1.0
"""Longest wait in seconds for a token. At a rate of one call a second or more, a client that sends one call at a time
never waits longer. A longer wait would look like a server that hangs: the call is refused, with the time to retry."""

_WAIT_OF_ONE: Final = 32
"""Maximum number of waiting messages of a session, or waiting openings of a principal. Agents have only a few calls in
flight. Each waiting message uses a connection and memory for its body."""

_WAIT_OF_MANY: Final = 256
"""Maximum number of waiting messages of a principal or an address, which may be shared by many agents."""

_MOST_QUEUED: Final = 4_096
"""Maximum number of messages of an account that wait for the store's answer, which tells how long they must wait."""

OPENING_RATE: Final = RateSettings(per_s=10, burst=200)
"""How fast one principal, or one address of anonymous clients, opens sessions where the number of its sessions has a
limit. Clients that open a session for every call open a few per second. Because unconfirmed sessions live for a minute,
one address has at most 800 of them, less than the memory store holds."""

_WEIGHED_BYTES: Final = 64 << 10

_MAX_ACCOUNTS: Final = 10_000

_NEVER: Final = -math.inf


class _Account:
    """The tokens that this replica has taken from the store for one session, address or principal, for its messages.

    `left`: the number of unspent tokens; negative if tokens were spent before they were taken.
    `queue`: a future for each message that has no token yet.
    `waiting`: the number of messages that have a token which is not valid yet.
    `every`, `last_at`: beyond the rate, the store grants tokens that become valid later: one every `every` seconds, the
    last one at `last_at` (by the monotonic clock).
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
        """Add tokens that were taken from the store. The last one may be spent in `wait` seconds; unspent tokens expire
        a second after that."""
        self.left += taken
        self.last_at = now + wait if wait > 0 else _NEVER
        self.until = now + wait + _TOKENS_EXPIRE_S

    def spend(self, now: float) -> bool:
        """Spend one token. Return False if no token is left or valid yet, or if other messages wait for one."""
        if self.waiting or self.queue:
            return False
        if self.left > 0 and now > self.until:
            self.left = 0
        if self.left <= -self.credit or now < self.last_at - (self.left - 1) * self.every:
            return False
        self.left -= 1
        return True

    def serve(self, now: float) -> None:
        """Give the unspent tokens to the first messages in the queue: set each message's future to the seconds that it
        still has to wait. If too many messages wait already, refuse the rest of the queue."""
        while self.queue and self.left > 0:
            wait = max(0.0, self.last_at - (self.left - 1) * self.every - now)
            if wait > 0 and self.waiting >= self.kind.most:
                return self.refuse(wait)
            turn = self.queue.pop(0)
            if not turn.done():  # it was not cancelled
                self.left -= 1
                self.waiting += wait > 0
                turn.set_result(wait)
        return None

    def refuse(self, wait: float) -> None:
        """Refuse all messages in the queue: set each message's future to `-wait`, the negated seconds until a retry."""
        while self.queue:
            turn = self.queue.pop(0)
            if not turn.done():
                turn.set_result(-wait)

    def leave(self, turn: asyncio.Future[float]) -> None:
        """Remove the future of a message that no longer waits, because it goes on or was cancelled."""
        if turn in self.queue:
            self.queue.remove(turn)
        elif not turn.cancelled():
            self.waiting -= turn.result() > 0


class _Accounts(OrderedDict[str | Principal, _Account]):
    """The token accounts for one rate, by session, address or principal. `what` names the rate in the error for a
    client beyond it. `most` messages of each account may wait."""

    # A dict and not a `FIFOCache`, in which a lookup takes four calls: each request looks up two accounts.

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
        """Return the error for a message that the client may send again in `wait` seconds."""
        return too_often(self.what, max(1, math.ceil(wait)))


def _accounts(kind: str, rate: RateSettings | None, what: str, most: int = _WAIT_OF_ONE) -> _Accounts | None:
    return None if rate is None else _Accounts(kind, rate, what, most)


class RateLimits:
    """Apply the operator's rates to messages, calls and new sessions."""

    def __init__(self, settings: PolicySettings, rates: Rates) -> None:
        self.replace(settings)
        self._rates = rates
        self._tasks = Tasks("rate limits")
        self._go_on = asyncio.Event()

    def replace(self, settings: PolicySettings) -> None:
        """Count by these rates from now on. Waiting messages still wait by the former rates."""
        of_many = settings.principal_rate
        self._sessions = _accounts("session", settings.session_rate, "requests of this session")
        self._addresses = _accounts("address", of_many, "requests of this address", _WAIT_OF_MANY)
        self._principals = _accounts("principal", of_many, "requests of this principal", _WAIT_OF_MANY)
        of_openings = None if settings.principal_sessions is None else OPENING_RATE
        self._openings = _accounts("opening", of_openings, "sessions opened: use one for many calls")

    async def count_message(self, principal: Principal, client: str) -> None:
        """Count a message of a client. Beyond the rate, wait until the rate allows the message. `client` is the
        client's network. Raises `Refused`: 429, with the time to wait before a retry."""
        accounts, whose = (self._addresses, client) if principal == ANONYMOUS else (self._principals, principal)
        await self._count(accounts, whose)

    async def count_body(self, principal: Principal, client: str, size: int) -> None:
        """Count the size in bytes of a large message's body against the sender's rate. Beyond the rate, wait. Raises
        `Refused` (429)."""
        accounts, whose = (self._addresses, client) if principal == ANONYMOUS else (self._principals, principal)
        await self._count_bytes(accounts, whose, size)

    async def count_call(self, session_id: str, size: int = 0) -> None:
        """Count a request of a session, and its `size` in bytes, against the session's rate. Beyond the rate, wait.
        Raises `Refused` (429)."""
        await self._count(self._sessions, session_id)
        await self._count_bytes(self._sessions, session_id, size)

    async def count_opening(self, whose: str) -> None:
        """Count a session that is about to be opened against its principal's rate (`whose`: `Session.counted_as`).
        Beyond the rate, wait. Raises `Refused`: 429, the wait would be too long, or too many wait."""
        await self._count(self._openings, whose)

    def spend_at_hand(self, principal: Principal | None, client: str, session_id: str) -> bool:
        """Count a call against the rates of its sender and its session, with tokens that this replica has at hand.
        Never wait for the store: if a token is missing, return False and count nothing. `principal` is None if the
        replica that forwarded the call has counted the sender. `session_id` is empty if the session's owner counts the
        call."""
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
        """Undo `spend_at_hand` for a call that was not sent."""
        senders, whose = (self._addresses, client) if principal == ANONYMOUS else (self._principals, principal)
        if senders is not None and whose is not None:
            senders[whose].left += 1
        if self._sessions is not None:
            self._sessions[session_id].left += 1

    def release_waiting(self) -> None:
        """Let all waiting messages continue at once: this replica is shutting down, or the store, which counts the
        rates, does not answer."""
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
        """Wait until the account has a token for one message. Raises `Refused` (429) if too many messages wait, or the
        wait is too long."""
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
        """Wait for `wait` seconds. Raises `Refused` (429) if `wait` is more than `_LONGEST_WAIT_S`, or negative."""
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
        """Take tokens from the store, and serve the queue with them, until no message is left in it. Tokens are also
        taken for those that were spent in advance, and for the next calls."""
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
        """Take the tokens for one step of `_refill`. Return the seconds until the last of them may be spent."""
        owed, ahead = max(0, -account.left), account.ahead
        wait = await self._ask(account, owed + ahead)
        if wait > _LONGEST_WAIT_S and ahead > 1:
            ahead, wait = 1, await self._ask(account, owed + 1)
        if wait <= _LONGEST_WAIT_S:
            account.add(owed + ahead, wait, monotonic())
        return wait

    async def _ask(self, account: _Account, tokens: int) -> float:
        """Take `tokens` tokens from the store. Return the seconds until the last of them may be spent. If these are
        more than `_LONGEST_WAIT_S`, no token was taken. If the store is unreachable, let all waiting messages continue
        and return 0."""
        rate = account.kind.rate
        try:
            return await self._rates.take(account.key, rate.per_s, rate.at_once, tokens, _LONGEST_WAIT_S)
        except StoreUnavailable:
            self.release_waiting()  # requests are served while the store is unreachable
            return 0.0
