"""Counts the memory of request bodies, from their first bytes until the requests are answered.

A request may wait for its answer for minutes, and in the handshake era it outlives its connection. Bodies of calls in
flight are therefore counted like bodies that are being read. Does not know sessions or methods.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from transports.inbound.limits import Limited, Refusals
from transports.inbound_port import Refused

__all__ = ["SMALL_BODY_BYTES", "Bodies", "HeldBody"]

SMALL_BODY_BYTES: Final = 64 << 10
"""Bodies up to here are not counted: the number of connections and of calls bounds them well enough."""


class Bodies:
    """The bytes that the bodies of one process hold. One network may hold half of `most`, so that none can fill it."""

    __slots__ = ("_by_network", "_held", "_most", "_refusals", "_refuse")

    def __init__(self, most: int, refusals: Refusals, refuse: Callable[[str], Refused]) -> None:
        self._most = most
        self._refusals = refusals
        self._refuse = refuse
        self._held = 0
        self._by_network: Counter[str] = Counter()

    def take(self, network: str, size: int, mine: int) -> None:
        """Count `size` more bytes of a request that holds `mine`. If `network` is empty, only the total is limited.

        Raises:
            Refused: 429. A body is never refused for its own size: where no other is held, one has room.
        """
        if self._held > mine and self._held + size > self._most:
            self._refusals[Limited.IN_FLIGHT] += 1
            raise self._refuse("this gateway")
        theirs = self._by_network[network] if network else 0
        if theirs > mine and theirs + size > self._most // 2:
            self._refusals[Limited.IN_FLIGHT] += 1
            raise self._refuse("your address")
        self._held += size
        if network:
            self._by_network[network] += size

    def give_back(self, network: str, size: int) -> None:
        """Release the bytes of a request that is answered."""
        self._held -= size
        if network:
            self._by_network[network] -= size
            if not self._by_network[network]:
                del self._by_network[network]


class HeldBody:
    """The bytes that one request holds. `network` is called once, when the first bytes are counted."""

    __slots__ = ("_bodies", "_counted_as", "_network", "_taken")

    def __init__(self, bodies: Bodies, network: Callable[[], str]) -> None:
        self._bodies = bodies
        self._network = network
        self._counted_as = ""
        self._taken = 0

    def grows_to(self, size: int) -> None:
        """Record that `size` bytes of the body have been read. Raises `Refused`: 429."""
        if size <= SMALL_BODY_BYTES:
            return
        if not self._taken:
            self._counted_as = self._network()
        self._bodies.take(self._counted_as, size - self._taken, self._taken)
        self._taken = size

    def give_back(self) -> None:
        """Release the bytes: the request is answered, or will not be."""
        if self._taken:
            self._bodies.give_back(self._counted_as, self._taken)
            self._taken = 0
