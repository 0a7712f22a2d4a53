"""What became of requests at the memories of their connections, and whether memories may be used."""

from collections import Counter
from collections.abc import Callable
from typing import Final

from transports.inbound.begun_post import RepeatedHead
from transports.inbound.limits import SMALL_BODY_BYTES, Limits
from transports.inbound.remembered_heads import RememberedHeads, SharedHeads, template_of
from transports.inbound_port import HeaderList

__all__ = [
    "DIRECT",
    "FAST",
    "INTERRUPTED",
    "NEW_HEAD",
    "NO_REQUEST",
    "OUTCOMES",
    "PIPELINED",
    "REFUSED",
    "REPEATS",
    "SIZE",
    "STREAMED",
    "ConnectionMemory",
    "HeadOffer",
]


FAST: Final = "fast"
DIRECT: Final = "direct"
NEW_HEAD: Final = "new_head"
SIZE: Final = "size"
PIPELINED: Final = "pipelined"
NO_REQUEST: Final = "no_request"
STREAMED: Final = "streamed"
REFUSED: Final = "refused"
INTERRUPTED: Final = "interrupted"
OUTCOMES: Final = (FAST, DIRECT, NEW_HEAD, SIZE, PIPELINED, NO_REQUEST, STREAMED, REFUSED, INTERRUPTED)
"""What became of a POST at the memory of its connection. `fast`: like a call before it, sent and answered with
what was decided on that. `direct`: answered with the memory. Otherwise served in the usual
way, because its head was new, its body is too large (or empty), further bytes came with it, it is no single request,
its answer is an event stream, it was refused or belongs to another process, or its client does not read or leaves, or
the process ends."""


class ConnectionMemory:
    """What all connections of a listener share. `may_serve` is False while the process ends or hands over its work:
    then each response is to end its connection, and nothing is served from memory. Larger bodies than `body_bytes` are
    read in the usual way, where they are counted and their senders are known first."""

    def __init__(self, counts: Counter[str], may_serve: Callable[[], bool], limits: Limits) -> None:
        self.counts = counts
        self.may_serve = may_serve
        self.body_bytes = min(limits.body_bytes, SMALL_BODY_BYTES)
        self.heads: SharedHeads[RepeatedHead] = SharedHeads()


REPEATS: Final = "mcp.repeats"
"""Where the scope of a POST has the `HeadOffer` of its connection to remember its head."""


class HeadOffer:
    """Of a connection to the app that serves a POST: to remember its head."""

    __slots__ = ("_head", "_headers", "_heads")

    def __init__(self, heads: RememberedHeads[RepeatedHead], head: bytes, headers: HeaderList) -> None:
        self._heads = heads
        self._head = head
        self._headers = headers

    def remember(self, describe: Callable[[], RepeatedHead]) -> None:
        """Remember the head of a request that was served, and whose caller was authenticated, when it comes again."""
        if self._heads.is_repeated(self._head) and (template := template_of(self._head, self._headers)) is not None:
            repeated = describe()
            if (held := self._heads.add(template, repeated)) is not None:
                repeated.holds(held.hold)
