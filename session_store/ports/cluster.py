"""Define what a backend does for several gateway processes: messages, leases, and ownership of sessions.

Each claim of a session gets an epoch: the count of the session's claims, and a random nonce. A store may forget the
last claims, as when a lagging Redis replica is promoted. The count alone would then be given twice. So two epochs are
compared for equality only. Their counts tell which claim was later, but only while the store has forgotten nothing.
An epoch of an older release is a count without a nonce.
"""

import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol


class Bus(Protocol):
    """Send short messages between the processes that share a store. Only current subscribers get them; nothing is kept.
    Messages may arrive in another order than they were sent, because the nodes of a cluster pass them on."""

    async def publish(self, topic: str, data: bytes) -> None:
        """Send `data` to every subscriber of the topic, in this process too."""

    def subscribed(self, topic: str, receive: Callable[[bytes | None], None]) -> AbstractAsyncContextManager[None]:
        """Call `receive` with each message inside the block. It gets `None` when messages may have been missed."""


class Directory(Protocol):
    """Record which replicas are live, and which of them owns each session."""

    async def renew_lease(self, replica: str, address: str, lease_s: float) -> list[str]:
        """Start a new lease. Return the sessions that others have claimed from this replica since the last call."""

    async def end_lease(self, replica: str) -> None:
        """End the replica's lease at once."""

    async def address(self, replica: str) -> str | None:
        """Return the address of that replica; None when its lease has expired."""

    async def lease_left(self, replica: str) -> float | None:
        """Return the seconds for which that replica's lease is still valid; None when it has expired."""

    async def last_address(self, replica: str) -> str | None:
        """Return the last known address, even of an expired lease; None if there is none. After an outage of the store,
        all leases are gone, but the replicas may still run."""

    async def replicas(self) -> dict[str, str]:
        """Return the addresses of all live replicas, by name."""

    async def claim(self, session_id: str, replica: str, *, epoch: int) -> int | None:
        """Make the replica the owner if the session's epoch is still `epoch`. Return the new epoch, or None."""

    async def tell_lost(self, replica: str, session_ids: Sequence[str]) -> None:
        """Make the next `renew_lease` of that replica report these sessions as lost: the store forgot that it did."""

    async def copied(self, session_id: str) -> bool:
        """Wait a short while until a copy of the store has the last claim of the session, and return True. False: none
        has it, and a failover may forget it. True also if there are no copies."""

    async def owners(self, session_ids: Sequence[str]) -> list[tuple[str, int] | None]:
        """Return owner and epoch of each of these sessions; None for one that is not live."""

    async def acknowledged(self, replica: str, session_id: str) -> bool:
        """Return True if that replica has learned, from `renew_lease`, that the session was claimed from it."""

    async def release(self, session_id: str, replica: str, *, epoch: int) -> bool:
        """Give up ownership, and keep the epoch. Return False if another replica has claimed the session meanwhile."""


_COUNT_BITS: Final = 21
"""Bits of the count. Epochs (with a nonce) and event numbers (with 32 bits more) stay below 2 ** 53: exact in Lua."""
_NONCE_BITS: Final = 31


def next_epoch(epoch: int) -> int:
    """Return a new epoch for the claim after that one. Its nonce makes it unique, even if the store forgets claims."""
    count = count_of(epoch) + 1 & (1 << _COUNT_BITS) - 1
    nonce = secrets.randbelow((1 << _NONCE_BITS) - 1) + 1  # 0 is that of an older release
    return nonce << _COUNT_BITS | count


def count_of(epoch: int) -> int:
    """Return the count in an epoch: the first claim of a session has 1."""
    return epoch & (1 << _COUNT_BITS) - 1


def nonce_of(epoch: int) -> int:
    """Return the nonce of an epoch, which differs between epochs with equal counts; 0 in one of an older release."""
    return epoch >> _COUNT_BITS
