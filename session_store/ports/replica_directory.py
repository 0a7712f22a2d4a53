"""Define what a backend does for several gateway processes: messages, leases, and ownership of sessions.

Each claim of a session creates an epoch: a count of the session's claims, and a random nonce. A store may lose the
latest claims, as when a lagging Redis replica is promoted. The same count could then be used twice. So epochs are only
compared for equality. Their counts show which claim was later only if the store has lost none. An epoch of an older
release is a count without a nonce.
"""

import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol


class Bus(Protocol):
    """Send short messages between the processes that share a store. Only current subscribers get a message; none is
    stored. Messages may arrive in another order than they were sent, because the nodes of a cluster forward them."""

    async def publish(self, topic: str, data: bytes) -> None:
        """Send `data` to every subscriber of the topic, in this process too."""

    def subscribed(self, topic: str, receive: Callable[[bytes | None], None]) -> AbstractAsyncContextManager[None]:
        """Subscribe to a topic during an `async with` block. `receive` is called with the data of each message, and
        with None if messages may have been missed."""


class ConfigurationNumbers(NamedTuple):
    """The answer of `Directory.hold_configuration`: the number of the replica's own configuration, the highest number
    that any replica holds (`newest`), and the names of the replicas that hold it."""

    own: int
    newest: int
    holders: tuple[str, ...]


class Directory(Protocol):
    """Record which replicas are live, which of them owns each session, and which configuration each has."""

    async def hold_configuration(
        self, replica: str, digest: str, *, number: int, is_edited: bool, hold_s: float
    ) -> ConfigurationNumbers:
        """Record for `hold_s` seconds that the replica has the configuration with this digest. Return the numbers of
        this and of the newest configuration. Configurations are numbered in the order in which replicas first had them.
        `hold_s` 0: the replica no longer holds any; record nothing else.

        `number` is the replica's present number; 0: it has just started. `is_edited`: its configuration has changed
        since it got that number. A known configuration keeps its number, unless the newest configuration was edited
        back to it: then it gets the next number. A number that the store has lost is recorded again.
        """

    def when_connected(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time a connection to the store has opened, before the first reply to a command on it.
        The store may then be a copy that lacks the last claims. A store that cannot lose a claim never calls it."""

    async def renew_lease(self, replica: str, address: str, lease_s: float, handled: Sequence[str] = ()) -> list[str]:
        """Renew the replica's lease for `lease_s` seconds. Return the ids of sessions that other replicas have claimed
        from this one. Answers can be lost, so each id is returned again until a call has it in `handled`.

        `handled`: the ids of the last answer, unchanged, with duplicates, when the replica has closed these sessions.
        If the call fails, do not pass these ids again: the call may have been executed, and the ids would now remove
        later claims.
        """

    async def end_lease(self, replica: str) -> None:
        """End the replica's lease at once."""

    async def address(self, replica: str) -> str | None:
        """Return the address of the replica; None if its lease has expired."""

    async def lease_left(self, replica: str) -> float | None:
        """Return the seconds until the replica's lease expires; None if it has expired."""

    async def last_address(self, replica: str) -> str | None:
        """Return the last known address of the replica, even if its lease has expired; None if none is known. After an
        outage of the store, all leases have expired, but the replicas may still run."""

    async def replicas(self) -> dict[str, str]:
        """Return the addresses of all live replicas, by name."""

    async def claim(self, session_id: str, replica: str, *, epoch: int) -> int | None:
        """Make the replica the owner of the session, if the session's epoch is still `epoch`. Return the new epoch;
        None if the session has another epoch, or is not live."""

    async def tell_lost(self, replica: str, session_ids: Sequence[str]) -> None:
        """Record that other replicas have claimed these sessions from the replica: its next `renew_lease` returns them.
        `claim` does this itself; call it if the store may have lost that record."""

    async def copied(self, session_id: str) -> bool:
        """Wait a short while until a copy of the store (a Redis replica) has the session's last claim. Return True if a
        copy has it, or if the store has no copies. Return False if no copy has it by then, so that a failover may lose
        the claim."""

    async def owners(self, session_ids: Sequence[str]) -> list[tuple[str, int] | None]:
        """Return for each of these sessions the name of its owner (empty: none) and its epoch, in order; None for a
        session that is not live."""

    async def acknowledged(self, replica: str, session_id: str) -> bool:
        """Return True if the replica knows that another replica has claimed the session from it: it has passed the
        session's id as `handled` of `renew_lease`."""

    async def release(self, session_id: str, replica: str, *, epoch: int) -> bool:
        """Give up the replica's ownership of the session, without changing the epoch. Return False if another replica
        has claimed the session meanwhile."""


_COUNT_BITS: Final = 21
"""Bits of an epoch's count. Epochs (with a nonce) and event numbers (with 32 more bits) stay below 2 ** 53, so that Lua
represents them exactly."""
_NONCE_BITS: Final = 31


def next_epoch(epoch: int) -> int:
    """Return a new epoch for the claim that follows `epoch`. Its nonce makes it unique, even if the store loses
    claims."""
    count = count_of(epoch) + 1 & (1 << _COUNT_BITS) - 1
    nonce = secrets.randbelow((1 << _NONCE_BITS) - 1) + 1  # 0 is that of an older release
    return nonce << _COUNT_BITS | count


def count_of(epoch: int) -> int:
    """Return the count of claims that an epoch contains; 1 for a session's first claim."""
    return epoch & (1 << _COUNT_BITS) - 1


def nonce_of(epoch: int) -> int:
    """Return the nonce in an epoch, which differs between epochs with equal counts; 0 in an epoch of an older
    release."""
    return epoch >> _COUNT_BITS
