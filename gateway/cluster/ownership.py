"""Keep this replica's ownership of sessions: its lease, its claims, and the check before an answer is sent.

Invariants: an epoch of a session belongs to one owner only (compare-and-set in the store, and a nonce). Only an owner
has links of a session. An owner that may have lost a session (`lease_validity.py`) asks the store before it sends an
answer.
"""

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, Final

import msgspec
from cachetools import TTLCache

from gateway.cluster.lease_validity import DOUBT_S, LEASE_S, OwnLease
from gateway.identity.credential_claims import CredentialClaims
from session_store import Bus, Directory, Principal, Session, SessionStore, StoreUnavailable
from transports.background_tasks import Tasks
from transports.inbound_port import OwnedByPeer

logger = logging.getLogger(__name__)

BEAT: Final = "mcp:beat:"
"""Prefix of a bus topic, before a replica's name. A message asks that replica to renew its lease at once, because it
does not answer or has lost sessions."""

_BEAT_EACH_S: Final = 0.25
_KNOWN_S: Final = 0.4
_AGREED_WITHIN_S: Final = 1.0
_ASKED_EACH_S: Final = 0.1
_CONTESTED_S: Final = 60.0
_MOST_CONTESTED: Final = 10_000
_FORGOTTEN: Final = "?"
"""Prefix of a session id in a message to the session's owner: another replica had claimed the session, and the store
has lost that claim."""

_HOLD_S: Final = 60.0
"""Seconds for which a configuration counts as held after its last replica has died: an orchestrator may start it again.
Until then, replicas with an earlier one claim no session."""


class ConfigurationNumber:
    """Compare the configuration of this replica with those of the others.

    The store numbers configurations in the order in which they came. A replica whose configuration is older than that
    of another replica serves the sessions that it has, and claims no others (docs/adr/0044-configuration-numbers.md). A
    replica whose configuration has no file takes no part.
    """

    def __init__(self, directory: Directory, replica: str) -> None:
        self._directory = directory
        self._replica = replica
        self._digest = ""
        self._is_edited = False
        self._was_outdated = False
        self.own = 0
        """The number of this replica's configuration; 0 if it has none yet, or if the configuration has no file."""
        self.newest = 0
        """The number of the newest configuration that any replica holds, as of the last renewal."""
        self.holders: tuple[str, ...] = ()
        """The names of the replicas that have the newest configuration."""

    @property
    def is_outdated(self) -> bool:
        """Return True if another replica has a newer configuration, as of the last renewal."""
        return self.own < self.newest

    def use(self, digest: str) -> None:
        """Set the digest of the configuration that this replica serves from now on; empty if the configuration has no
        file. If the configuration before had a number and another digest, the next renewal tells the store that the
        file was edited."""
        self._is_edited = self._is_edited or (self.own > 0 and digest != self._digest)
        self._digest = digest

    async def renew(self, *, holds: bool) -> None:
        """Read from the store which configuration is the newest. `holds`: also record in the store that this replica
        has its configuration. Otherwise record that this replica holds none: it claims no session, so its configuration
        must not keep other replicas from claiming sessions.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        digest = self._digest
        if not digest:
            return
        found = await self._directory.hold_configuration(
            *(self._replica, digest), number=self.own, is_edited=self._is_edited, hold_s=_HOLD_S if holds else 0.0
        )
        if digest != self._digest:  # edited meanwhile: the next renewal records that
            return
        self._is_edited = self._is_edited and not holds
        if holds or found.own <= found.newest:  # else it is a number that nobody has been given yet
            self.own = found.own
        self.newest, self.holders = found.newest, found.holders
        if self.is_outdated and not self._was_outdated:
            logger.warning(
                "the configuration file of this replica (number %d) is older than that of replica %s (number %d). This "
                "replica goes on with its sessions, and claims no others until it has the newer file",
                *(self.own, self.holders[0], self.newest),
            )
        if self._was_outdated and not self.is_outdated:
            logger.info("no replica has a newer configuration file than this one any more (number %d)", self.own)
        self._was_outdated = self.is_outdated


class RouteMemory:
    """Cache the part of a route to a session's owner that all requests with the same HTTP head share."""

    __slots__ = ("common", "is_stale", "place")

    def __init__(self) -> None:
        self.common = b""
        """The facts that these requests share, encoded for the owner; empty until they are needed."""
        self.place: Any = None
        """Where the owner stores these facts."""
        self.is_stale = False
        """True once the session's owner must be looked up again."""

    def packed(self) -> bytes:
        """Return the encoded facts that all requests on this route share."""
        return self.common

    def keep_common(self, common: bytes) -> None:
        """Set the encoded facts that all requests on this route share. Each request sends or refers to them."""
        self.common = common

    def end(self) -> None:
        """Mark the route as stale: the next request looks up the session's owner again."""
        self.is_stale = True


class Route(msgspec.Struct, frozen=True):
    """The facts by which a request is forwarded to the owner of its session."""

    session: Session
    """The record of the session, which names the owner."""
    principal: Principal
    granted: CredentialClaims | None
    """The claims of the request's credential."""
    memory: RouteMemory | None = None
    """What requests with the same HTTP head share."""
    is_read: bool = True
    """False if the record was read for an earlier request with the same head: then the owner decides by its own
    record."""
    begun: Any = None
    """The pending answer (`ForwardedAnswer`), if the request was already sent to the owner."""
    until: float = 0.0
    """Unix time until which requests with the same head need no new authentication."""


class Forwarded(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a forwarded request that the sending replica has verified."""

    session_id: str
    principal: Principal
    epoch: int
    version: int
    """Epoch and version are those of the session's record, which the sender has just read from the store. Both are -1
    if the sender did not read the record, because it knows the owner from an earlier request."""
    granted: CredentialClaims | None
    """The claims of the request's credential."""
    before_sending: Callable[[], Awaitable[None]]
    """Awaited before the request is sent to a server."""


class _Former(msgspec.Struct):
    """An owner from which this replica has claimed a session, or tried to, although that owner may still run."""

    owner: str
    until: float | None = None
    """The monotonic time at which the owner's lease has ended at the latest; None while the owner may not know of the
    claim."""


class Cluster:
    """Represent this replica among the replicas that share its store.

    `taken_over` is called with the id of each session that another replica has claimed from this one. `claims` counts
    this replica's claims by whether the store soon copied them to a standby: `copied` or `not copied`.
    """

    def __init__(
        self,
        directory: Directory,
        sessions: SessionStore,
        bus: Bus,
        *,
        taken_over: Callable[[str], None],
        claims: Counter[str] | None = None,
    ) -> None:
        self._claims: Counter[str] = Counter() if claims is None else claims
        self.replica = secrets.token_hex(6)  # operators type it in commands, where it must not look like an option
        self.address = ""
        self._directory = directory
        self._sessions = sessions
        self._bus = bus
        self._taken_over = taken_over
        self.lease = OwnLease()
        self.configuration = ConfigurationNumber(directory, self.replica)
        self.store_connected = asyncio.Event()
        """Set when a connection to the store has opened, until the live sessions are compared with its records."""
        directory.when_connected(self._store_connected)
        self._listed_at = -LEASE_S
        self._asked_to_beat: dict[str, float] = {}  # the replica that was asked last, and when
        self.is_leaving = False
        self.is_reachable = True
        """True while peers reach this replica at its address. A replica that peers do not reach owns no session."""
        self.doubted = asyncio.Event()
        """Set when a peer has claimed a session while this replica's lease was valid: peers may not reach it."""
        # By session: claimed by others while this lease was valid; claimed by others, and ended here; the epoch of this
        # replica's last claim; the owners from which it was claimed, and which may still answer.
        self._taken: TTLCache[str, None] = TTLCache(_MOST_CONTESTED, _CONTESTED_S, timer=lambda: monotonic())
        self._lost: TTLCache[str, None] = TTLCache(_MOST_CONTESTED, _CONTESTED_S, timer=lambda: monotonic())
        self._claimed: TTLCache[str, int] = TTLCache(_MOST_CONTESTED, LEASE_S, timer=lambda: monotonic())
        self._formers: TTLCache[str, _Former] = TTLCache(_MOST_CONTESTED, _CONTESTED_S, timer=lambda: monotonic())
        self._refusing: dict[str, tuple[str, float]] = {}  # by replica: its address, and since when it refuses
        self._released: set[str] = set()  # sessions, while this replica drains
        self._tasks = Tasks("cluster")
        self._known: dict[str, tuple[float, tuple[str | None, bool]]] = {}

    # -- this replica's life

    def _store_connected(self) -> None:
        self.lease.store_connected()
        self.store_connected.set()

    async def beat(self) -> None:
        """Renew this replica's lease, and close the sessions that other replicas have claimed. Raises
        `StoreUnavailable`.

        Only when all of these sessions are closed, the store learns that their loss was handled, and the renewal
        counts. From then on, the replicas that have claimed the sessions serve them. A call of `beat` during a renewal
        waits for its end and then renews again, once for all such calls.
        """
        if (under_way := self._tasks.running(BEAT)) is not None:
            await asyncio.wait((under_way,))
        await self._tasks.share(BEAT, self._beat)

    async def _beat(self) -> None:
        began, address = monotonic(), self.address if self.is_reachable else ""
        lived = self.lease.was_trusted(began)
        # Not repeated after a failure: the store may have removed these entries already, and would remove later ones.
        handled: list[str] = []
        while taken := await self._directory.renew_lease(self.replica, address, LEASE_S, handled):
            await self._close_taken(taken, lived=lived)
            handled, began, lived = taken, monotonic(), True
        self.lease.renewed(began)
        await self.renew_configuration()
        if began - self._listed_at >= LEASE_S:
            listed = await self._directory.replicas()
            self.lease.set_peers({name: at for name, at in listed.items() if name != self.replica})
            self._listed_at = began

    async def _close_taken(self, taken: Sequence[str], *, lived: bool) -> None:
        for entry in dict.fromkeys(taken):
            session_id = entry.removeprefix(_FORGOTTEN)
            if entry != session_id and session_id in self._lost:
                # This loss was handled; what is live here now began after it. An entry that is read twice, because the
                # store did not answer in between, ends it: better than to keep what began before.
                del self._lost[session_id]
                continue
            if lived:
                self._taken[session_id] = None
                self.doubted.set()
            if entry != session_id or not await self._has_claimed_again(session_id):
                logger.warning("another replica has taken over a session", extra={"session": session_id[:8]})
                self.lose(session_id)

    async def _has_claimed_again(self, session_id: str) -> bool:
        """Return True if this replica owns a session again that another replica had claimed from it: the store names
        this replica's last claim. Then the live session here belongs to that claim, and must not end. Return False
        otherwise: for example, the store names another claim, has forgotten this one or does not answer. Called when
        the loss of the session is handled."""
        epoch = self._claimed.get(session_id)
        found = None
        if epoch is not None:
            with contextlib.suppress(StoreUnavailable):  # then it counts as lost: the other sessions must be closed too
                found = await self._sessions.peek(session_id)
        return found is not None and (found.owner, found.epoch) == (self.replica, epoch)

    async def log_refusing(self) -> None:
        """Log each replica that advertises a wrong address: it refused a connection, and its lease is still valid after
        a while."""
        for replica, (address, since) in tuple(self._refusing.items()):
            if monotonic() - since > LEASE_S + 1:
                del self._refusing[replica]
                if await self._directory.address(replica) is not None:
                    logger.error(
                        "replica %s is running but refuses connections at %s, its gateway.advertise address. Correct "
                        "that address, or the network between it and this gateway (%s). Its sessions were taken over",
                        *(replica, address, self.address),
                    )

    def advertise(self, address: str) -> None:
        """Set this replica's address (HOST:PORT), which the next renewal of the lease publishes."""
        self.address = address

    def set_reachable(self, is_reachable: bool) -> None:
        """Record if other replicas reach this one at its address. The next renewal of the lease publishes it."""
        self.is_reachable = is_reachable

    def start_leaving(self) -> None:
        """Record that this replica drains: it claims no session from now on, except those of dead owners."""
        self.is_leaving = True

    def stop_leaving(self) -> None:
        """Record that this replica no longer drains: it may claim sessions again, including those that it has
        released."""
        self.is_leaving = False
        self._released.clear()

    async def may_claim(self) -> bool:
        """Return True if this replica may claim sessions: others reach it, and none has a newer configuration. Ask the
        store, because another replica may have got a newer one since the last renewal. Whether this replica drains is
        not checked: while it drains, it may claim only sessions of dead owners."""
        if self.is_reachable:
            await self.renew_configuration()
        return self.is_reachable and not self.configuration.is_outdated

    async def renew_configuration(self) -> None:
        """Tell the store which configuration this replica has, and read which is the newest. If this replica claims no
        session, because it drains or others do not reach it, tell the store that it has no configuration: else it could
        keep all other replicas from claiming sessions. Raises `StoreUnavailable`."""
        await self.configuration.renew(holds=self.is_reachable and not self.is_leaving)

    async def leave(self) -> None:
        """End the lease of this replica and its hold on its configuration, because the process ends."""
        await self._tasks.settled()  # a renewal that comes later would begin it anew
        await self.configuration.renew(holds=False)
        await self._directory.end_lease(self.replica)

    # -- owning

    async def ensure_owner(self, session: Session, principal: Principal, granted: CredentialClaims | None) -> Session:
        """Return the session of a request, which this replica owns then: claim it if it has no owner. Return an ended
        session unclaimed. If a former owner may still run, first wait until that owner answers no client any more, as
        `claim_from_owner` does.

        Raises:
            OwnedByPeer: another replica owns the session, or must own it: this one drains, others do not reach it, or
            its configuration is older than theirs.
            StoreUnavailable: the store does not answer.
        """
        while session.owner != self.replica:
            if session.owner or self.is_leaving or not await self.may_claim():
                raise OwnedByPeer(Route(session, principal, granted))
            claimed = await self.claim(session)
            if claimed is None:
                return session  # it has ended: the next access to the store finds that
            self._formers.pop(session.id, None)  # it was released since
            session = claimed
        if session.id in self._released:
            raise OwnedByPeer(Route(session, principal, granted))  # read before this replica released it
        if session.id not in self._formers:
            return session
        await self._until_no_other_serves(session.id)
        found = await self._sessions.peek(session.id)  # a failover may have forgotten the claim meanwhile
        return session if found is None else await self.ensure_owner(found, principal, granted)

    async def claim(self, session: Session) -> Session | None:
        """Try to become the owner of a session. Return the session with its present owner, which is another replica if
        that was first. Return None if the session has ended."""
        epoch = await self._directory.claim(session.id, self.replica, epoch=session.epoch)
        if epoch is not None:
            self._lost.pop(session.id, None)
            self._claimed[session.id] = epoch
            self._released.discard(session.id)  # its later owner is gone, and nobody else would serve it
            self._claims["copied" if await self._directory.copied(session.id) else "not copied"] += 1
            return msgspec.structs.replace(session, owner=self.replica, epoch=epoch)
        return await self._sessions.peek(session.id)

    def lose(self, session_id: str) -> None:
        """End the live session, with its processes and links here, because another replica has claimed the session."""
        self._lost[session_id] = None
        self._taken_over(session_id)

    async def tell_forgotten(self, owner: str, session_ids: Sequence[str]) -> None:
        """Tell the replica `owner` that it had lost these sessions for a time: this replica had claimed them, but the
        store has lost the claims and names `owner` as the owner again. If `owner` did not notice the claims, it still
        has processes that it started before them."""
        await self._directory.tell_lost(owner, [_FORGOTTEN + session_id for session_id in session_ids])

    def mark_released(self, session: Session) -> None:
        """Record that this replica serves a session no longer, because it is about to release it."""
        self._released.add(session.id)

    def has_released(self, session_id: str) -> bool:
        """Return True if this replica drains and has released the session."""
        return session_id in self._released

    async def is_contested(self, session: Session) -> bool:
        """Return True if another replica has claimed the session from this one while this one ran. Then this replica
        must not claim it back: both run without reaching each other, and the session would move back and forth."""
        await self.beat()  # closes the sessions that were taken since the last beat
        return session.id in self._taken

    def address_refused(self, replica: str, address: str) -> None:
        """Record that the address of a replica with a valid lease refuses connections. The replica has just died, or
        its address is wrong."""
        self._refusing.setdefault(replica, (address, monotonic()))

    def owner_answered(self, session_id: str) -> None:
        """Record that a session's owner has answered. If the owner is unreachable later, this replica may claim the
        session again (`is_contested`)."""
        if session_id in self._taken:
            self._taken.pop(session_id, None)

    async def claim_from_owner(self, session: Session, *, may_run: bool) -> Session | None:
        """Claim a session from an unreachable owner. Return the session as it is stored then, with its present owner;
        None if it has ended.

        An owner that may run (`may_run`: it has not refused a connection) may still answer clients, or have renewed its
        lease just before the claim. So wait until that owner answers no client any more: it has handled the claim, or
        its lease is old or has ended. Other requests for the session wait, too (`ensure_owner`): they find this replica
        as its owner, even if the store's answer to this claim is lost.
        """
        former = _Former(session.owner)
        if may_run:
            self._formers[session.id] = former
        claimed = await self.claim(session)
        if claimed is None or claimed.owner != self.replica:
            if self._formers.get(session.id) is former:
                del self._formers[session.id]
            return claimed
        if may_run:
            if claimed.epoch == self._claimed.get(session.id):
                former.until = monotonic() + LEASE_S  # it was told within the claim
            self._formers[session.id] = former  # again, if another request has ended its own wait meanwhile
        await self._until_no_other_serves(session.id)
        return await self._sessions.peek(session.id)  # a failover may have forgotten the claim meanwhile

    def former_owner_may_answer(self, session_id: str) -> bool:
        """Return True if this replica has claimed the session from an owner that may still answer clients."""
        return session_id in self._formers

    async def _until_no_other_serves(self, session_id: str) -> None:
        while (former := self._formers.get(session_id)) is not None:
            if former.until is None:
                await self._directory.tell_lost(former.owner, [session_id])
                former.until = monotonic() + LEASE_S
            if await self._answers_none(former.owner, former.until, session_id):
                self._formers.pop(session_id, None)
                return
            await self.ask_to_beat(former.owner)  # again: the last beat may have been just before the claim
            await asyncio.sleep(_ASKED_EACH_S)

    async def _answers_none(self, owner: str, until: float, session_id: str) -> bool:
        """Return True if the former owner of a session no longer answers its clients: it has handled this replica's
        claim, or its lease is so old that it asks the store before it answers. `until` (monotonic clock) is when the
        former owner's lease ends at the latest."""
        if monotonic() >= until or await self._directory.acknowledged(owner, session_id):
            return True
        age_s = await self.lease_age(owner)
        if age_s is None:
            return self.lease.trusts_expired
        return age_s >= DOUBT_S and self.lease.treat_as_dead(owner)

    async def release(self, session: Session) -> None:
        """Clear the owner of a session in the store, because this replica drains. The next replica with a request for
        the session claims it."""
        await self._directory.release(session.id, self.replica, epoch=session.epoch)

    # -- whether the lease is valid

    def may_have_lost(self, session_id: str) -> bool:
        """Return True if the store must be asked before an answer of this session is sent, because this replica's lease
        is old, or because another replica has claimed the session in the last minute."""
        return not self.lease.is_fresh or session_id in self._lost

    async def trusts_soon(self, session_id: str) -> bool:
        """Wait until an answer of this session may be sent although the store does not answer, and return True. That is
        the case once all other replicas agree to claim no session of this one, or the lease is renewed. Return False
        after `_AGREED_WITHIN_S`, or if another replica has claimed the session."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AGREED_WITHIN_S):
                while not self.lease.is_fresh and session_id not in self._lost:
                    await self.lease.next_trust()
        return not self.may_have_lost(session_id)

    async def still_owns(self, session: Session) -> bool:
        """Return True if, according to the store, this replica still owns the session with the same epoch. Raises
        `StoreUnavailable`."""
        found = await self._sessions.peek(session.id)
        return found is not None and (found.owner, found.epoch) == (self.replica, session.epoch)

    # -- the others

    async def owned_elsewhere(self, session_id: str) -> Session | None:
        """Return the stored record of the session if another replica owns it now; else None."""
        found = await self._sessions.peek(session_id)
        return found if found is not None and found.owner not in ("", self.replica) else None

    async def address_of(self, replica: str) -> tuple[str | None, bool]:
        """Return a replica's address, and True if its lease is valid. The address is empty if peers do not reach the
        replica. If the lease has expired, the address is the last known one, or None."""
        asked, answer = self._known.get(replica, (0.0, (None, False)))
        if monotonic() - asked < _KNOWN_S and answer[1]:
            return answer
        address = await self._directory.address(replica)
        if address is not None:
            self._known[replica] = (monotonic(), (address, True))
            return address, True
        self._known.pop(replica, None)
        return await self._directory.last_address(replica), False

    async def replicas(self) -> set[str]:
        """Return the names of all replicas with a valid lease."""
        return set(await self._directory.replicas())

    async def random_peer(self, *but: str) -> tuple[str, str] | None:
        """Return the name and address of a random other replica that may claim sessions, except those in `but`; None if
        there is none. Replicas with the newest configuration come first, and only they count if the configuration of
        this replica is older."""
        others = [other for other in await self.reachable_peers() if other[0] not in but]
        newest = [other for other in others if other[0] in self.configuration.holders]
        if newest or self.configuration.is_outdated:
            others = newest
        return secrets.choice(others) if others else None

    async def reachable_peers(self) -> list[tuple[str, str]]:
        """Return the names and addresses of the other replicas with a valid lease that can be reached."""
        live = await self._directory.replicas()
        return [(name, at) for name, at in live.items() if at and name != self.replica]

    async def ask_to_beat(self, replica: str) -> None:
        """Ask a replica, through the bus, to renew its lease at once. Do nothing if this was done a moment ago."""
        now = monotonic()
        if now - self._asked_to_beat.get(replica, -LEASE_S) >= _BEAT_EACH_S:
            self._asked_to_beat = {replica: now}
            await self._bus.publish(BEAT + replica, b"")

    async def lease_age(self, replica: str) -> float | None:
        """Return the seconds since a replica renewed its lease; None if the lease has expired or was ended."""
        left_s = await self._directory.lease_left(replica)
        return None if left_s is None else LEASE_S - left_s
