"""What a backend does for several gateway processes: messages between them, leases, and ownership of sessions.

Each claim of a session has an epoch: the claims of the session, counted, with a nonce for each. A store may forget the
last claims: a Redis replica that lags is promoted. The counter alone would then be given again. So two epochs are
compared for equality only; which claim was the later one is known from the counter as long as the store has forgotten
nothing. An epoch of an older release is a counter without a nonce.
"""

import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

__all__ = [
    "Bus",
    "Directory",
    "count_of",
    "next_epoch",
    "nonce_of",
]


class Bus(Protocol):
    """Short messages between the processes that share a store. Only current subscribers get them; nothing is kept. They
    may arrive in another order than they were sent: the nodes of a cluster pass them on."""

    async def publish(self, topic: str, data: bytes) -> None:
        """Send to every subscriber of that topic, in this process too."""
        ...

    def subscribed(self, topic: str, receive: Callable[[bytes | None], None]) -> AbstractAsyncContextManager[None]:
        """Call `receive` with each message inside the block; `None` means that messages may have been missed."""
        ...


class Directory(Protocol):
    """Which replicas are live, and which of them owns a session."""

    async def renew_lease(self, replica: str, address: str, lease_s: float) -> list[str]:
        """Start a new lease. Returns the sessions that others have claimed from this replica since the last call."""
        ...

    async def end_lease(self, replica: str) -> None:
        """End the lease at once."""
        ...

    async def address(self, replica: str) -> str | None:
        """Return the address of that replica; None when its lease has expired."""
        ...

    async def lease_left(self, replica: str) -> float | None:
        """Return how many seconds that replica's lease is valid for; None when it has expired."""
        ...

    async def last_address(self, replica: str) -> str | None:
        """Return the last known address, even if the lease has expired. After a store outage every lease is gone
        although every replica may be running."""
        ...

    async def replicas(self) -> dict[str, str]:
        """Return the addresses of all live replicas, by name."""
        ...

    async def claim(self, session_id: str, replica: str, *, epoch: int) -> int | None:
        """Make the replica the owner if the session's epoch is still `epoch`. The new epoch (`next_epoch`), or None."""
        ...

    async def tell_lost(self, replica: str, session_ids: Sequence[str]) -> None:
        """Have `renew_lease` tell that replica that it has lost these sessions: the store has forgotten that it did."""
        ...

    async def copied(self, session_id: str) -> bool:
        """Wait a short while until a copy of the store has the last claim of the session. False: none has it, and a
        failover may forget it. True also if there are no copies."""
        ...

    async def owners(self, session_ids: Sequence[str]) -> list[tuple[str, int] | None]:
        """Return owner and epoch of each of these sessions; None for one that is not live."""
        ...

    async def acknowledged(self, replica: str, session_id: str) -> bool:
        """Return True if that replica has learned, from `renew_lease`, that the session was claimed from it."""
        ...

    async def release(self, session_id: str, replica: str, *, epoch: int) -> bool:
        """Give up ownership; False when another replica has claimed the session meanwhile. The epoch stays."""
        ...


_COUNT_BITS: Final = 21
"""With the 2 ** 32 numbers for the events of each, and with the nonce, all stay exact in Lua: below 2 ** 53."""
_NONCE_BITS: Final = 31


def next_epoch(epoch: int) -> int:
    """Return the epoch of the claim after that one. No other claim gets it, even if the store has forgotten some."""
    count = count_of(epoch) + 1 & (1 << _COUNT_BITS) - 1
    nonce = secrets.randbelow((1 << _NONCE_BITS) - 1) + 1  # 0 is that of an older release
    return nonce << _COUNT_BITS | count


def count_of(epoch: int) -> int:
    """Return which claim of the session it is: the first one is 1."""
    return epoch & (1 << _COUNT_BITS) - 1


def nonce_of(epoch: int) -> int:
    """Return what tells it from every other epoch with that count; 0 in one of an older release."""
    return epoch >> _COUNT_BITS
