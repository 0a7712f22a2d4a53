"""Which replica owns a session: the lease of this one, claims, and the fence before an answer leaves.

Invariants: an epoch has one owner (compare-and-set in the store); only an owner holds links of a session; an owner
whose lease may have run out asks the store before it lets an answer out.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

import msgspec
from cachetools import TTLCache

from gateway.errors import not_found_by_others
from gateway.identity.context_rules import CredentialClaims
from session_store import Directory, Principal, Session, SessionStore, StoreUnavailable
from transports.inbound_port import OwnedByPeer

__all__ = ["LEASE_S", "Cluster", "Forwarded", "Route"]

logger = logging.getLogger(__name__)

BEAT_S: Final = 1.0
LEASE_S: Final = 5.0
_KNOWN_S: Final = 0.4
_MARGIN_S: Final = 1.0
_CONTESTED_S: Final = 60.0
_MOST_CONTESTED: Final = 10_000


class Route(msgspec.Struct, frozen=True):
    """Where a request goes: the session, as it was read, who it was read for, and what their credential grants."""

    session: Session
    principal: Principal
    granted: CredentialClaims | None


class Forwarded(msgspec.Struct, frozen=True, kw_only=True):
    """What another replica vouches for, having read the session's record at that epoch and version a moment ago.

    `started` is called before anything of the request is written upstream.
    """

    session_id: str
    principal: Principal
    epoch: int
    version: int
    granted: CredentialClaims | None
    started: Callable[[], Awaitable[None]]


class Cluster:
    """This replica among the others that share its store."""

    def __init__(self, directory: Directory, sessions: SessionStore, *, lost: Callable[[str], None]) -> None:
        self.replica = secrets.token_hex(6)  # operators type it: it must not look like an option
        self.address = ""
        self._directory = directory
        self._sessions = sessions
        self._lost = lost
        self._lease_until = 0.0
        self._reachable_since: float | None = None
        self.is_leaving = False
        self.is_reachable = True
        """Whether others find this replica at its address: one they do not find owns nothing."""
        self.doubted = asyncio.Event()
        """Set when a session was taken from this replica while it lived: perhaps it is not found."""
        self._taken: TTLCache[str, None] = TTLCache(_MOST_CONTESTED, _CONTESTED_S, timer=lambda: monotonic())
        self._refusing: dict[str, tuple[str, float]] = {}
        self._released: set[str] = set()
        self._known: dict[str, tuple[float, tuple[str | None, bool]]] = {}

    # -- this replica's life

    async def live(self) -> None:
        """Beat until cancelled. Sessions that others have claimed are given up at once."""
        while True:
            try:
                await self.beat()
                await self._look_after_the_refusing()
            except StoreUnavailable:
                self._reachable_since = None
            await asyncio.sleep(BEAT_S)

    async def beat(self) -> None:
        """Take the lease anew."""
        began = monotonic()
        lived = began < self._lease_until
        lost = await self._directory.renew_lease(self.replica, self.address if self.is_reachable else "", LEASE_S)
        self._lease_until = began + LEASE_S
        if self._reachable_since is None:
            self._reachable_since = began
        for session_id in lost:
            logger.warning("another replica has taken over a session", extra={"session": session_id[:8]})
            self._lost(session_id)
            if lived:
                self._taken[session_id] = None
                self.doubted.set()

    async def _look_after_the_refusing(self) -> None:
        """Log each replica whose address refused a connection and whose lease is good still: the address is wrong."""
        for replica, (address, since) in tuple(self._refusing.items()):
            if monotonic() - since > LEASE_S + BEAT_S:
                del self._refusing[replica]
                if await self._directory.address(replica) is not None:
                    logger.error(
                        "replica %s lives, and does not answer at %s: its gateway.advertise leads elsewhere, or not at "
                        "all, from here (%s). What it served was taken over",
                        *(replica, address, self.address),
                    )

    def advertise(self, address: str) -> None:
        """Be found at that HOST:PORT from the next beat on."""
        self.address = address

    def set_reachable(self, is_reachable: bool) -> None:
        """Note whether other replicas reach this one at its address. The next beat publishes it."""
        self.is_reachable = is_reachable

    def start_leaving(self) -> None:
        """Claim no session from now on: the gateway drains."""
        self.is_leaving = True

    def stop_leaving(self) -> None:
        """Claim sessions again, the released ones included."""
        self.is_leaving = False
        self._released.clear()

    async def leave(self) -> None:
        """End the lease of this replica."""
        await self._directory.end_lease(self.replica)

    # -- owning

    def check_reachable(self) -> None:
        """Raises `Refused`: others do not find this replica, so it begins nothing."""
        if not self.is_reachable:
            raise not_found_by_others()

    async def own(self, session: Session, principal: Principal, granted: CredentialClaims | None) -> Session:
        """The session, owned by this replica.

        Raises:
            Elsewhere: another replica owns it, or has to, because this one leaves.
        """
        while session.owner != self.replica:
            if session.owner or self.is_leaving or not self.is_reachable:
                raise OwnedByPeer(Route(session, principal, granted))
            claimed = await self.claim(session)
            if claimed is None:
                return session  # it ended meanwhile: who uses it will find out
            session = claimed
        if session.id in self._released:
            raise OwnedByPeer(Route(session, principal, granted))  # read before we let it go
        return session

    async def claim(self, session: Session) -> Session | None:
        """The session after an attempt to become its owner, whoever is now; None when it is gone."""
        epoch = await self._directory.claim(session.id, self.replica, epoch=session.epoch)
        if epoch is not None:
            return msgspec.structs.replace(session, owner=self.replica, epoch=epoch)
        return await self._sessions.peek(session.id)

    def let_go(self, session: Session) -> None:
        """About to be released: from now on it is served elsewhere."""
        self._released.add(session.id)

    def has_released(self, session_id: str) -> bool:
        """True if this replica, which leaves, has released that session."""
        return session_id in self._released

    async def is_contested(self, session: Session) -> bool:
        """Whether a session that is to be taken over was itself taken from this replica while this one was alive. Then
        both replicas live and cannot reach each other, and the session would move back and forth."""
        await self.beat()  # what was taken a moment ago is known from now on
        return session.id in self._taken

    def refused_by(self, replica: str, address: str) -> None:
        """Note that a replica with a valid lease refuses connections: it has just died, or its address is wrong."""
        self._refusing.setdefault(replica, (address, monotonic()))

    def found(self, session_id: str) -> None:
        """Note that the owner of that session has answered: if it is unreachable later, it may be taken over from."""
        if self._taken:
            self._taken.pop(session_id, None)

    async def take(self, session: Session, *, leased: bool) -> Session | None:
        """As `claim`, from an owner that cannot be reached.

        One whose lease is good still answers those who do reach it: it has to hear of its loss first, which its next
        beat tells it, or its lease to run out.
        """
        claimed = await self.claim(session)
        if leased and claimed is not None and claimed.owner == self.replica:
            until = monotonic() + LEASE_S
            while monotonic() < until and not await self._directory.acknowledged(session.owner, session.id):  # noqa: ASYNC110
                await asyncio.sleep(BEAT_S / 10)
        return claimed

    async def release(self, session: Session) -> None:
        """Own it no longer: the next replica that is asked for it claims it. For a replica that leaves."""
        await self._directory.release(session.id, self.replica, epoch=session.epoch)

    # -- the fence

    @property
    def is_fresh(self) -> bool:
        """Whether nobody can have taken a session from us without our knowing."""
        return monotonic() < self._lease_until

    @property
    def is_fresh_for_a_while(self) -> bool:
        """Whether a call that begins now will, as most do, be over before the lease is."""
        return monotonic() < self._lease_until - _MARGIN_S

    async def still_owns(self, session: Session) -> bool:
        """Asked of the store, when the lease does not tell."""
        found = await self._sessions.peek(session.id)
        return found is not None and (found.owner, found.epoch) == (self.replica, session.epoch)

    # -- the others

    async def address_of(self, replica: str) -> tuple[str | None, bool]:
        """Where a replica is, or was last, and whether its lease is good."""
        asked, answer = self._known.get(replica, (0.0, (None, False)))
        if monotonic() - asked < _KNOWN_S and answer[1]:
            return answer
        address = await self._directory.address(replica)
        if address is not None:
            self._known[replica] = (monotonic(), (address, True))
            return address, True
        self._known.pop(replica, None)
        return await self._directory.last_address(replica), False

    async def another(self) -> tuple[str, str] | None:
        """Some other live replica and its address."""
        live = await self._directory.replicas()
        others = [(name, at) for name, at in live.items() if at and name != self.replica]
        return secrets.choice(others) if others else None

    @property
    def may_claim_from_the_silent(self) -> bool:
        """After an outage of the store every lease looks missing: only a full lease later does that mean something."""
        return self._reachable_since is not None and monotonic() - self._reachable_since >= LEASE_S
