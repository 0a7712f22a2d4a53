"""Share the heads that connections remember, decide whether they may be used, and count how requests were served."""

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
"""The ways in which POSTs were served. `fast`: by the decision on an earlier call like this one (the fast path).
`direct`: without parser and ASGI, because the connection remembered the head. The others were served in the usual way.
Their reasons, in order: the head was new; the body was too large, or empty; further bytes came with it; it was not a
single request; the answer was an event stream; it was refused, or belongs to another process; the client did not read
or left, or the process ended."""


class ConnectionMemory:
    """Share remembered heads, and the counts of `OUTCOMES`, between the connections of a listener. `may_serve` returns
    False while the process ends or hands over its work: then each response has to end its connection, so no head is
    used. Bodies beyond `body_bytes` are read in the usual way, where they are counted and their senders known first."""

    def __init__(self, counts: Counter[str], may_serve: Callable[[], bool], limits: Limits) -> None:
        self.counts = counts
        self.may_serve = may_serve
        self.body_bytes = min(limits.body_bytes, SMALL_BODY_BYTES)
        self.heads: SharedHeads[RepeatedHead] = SharedHeads()


REPEATS: Final = "mcp.repeats"
"""The key in the scope of a POST that holds the `HeadOffer` of its connection."""


class HeadOffer:
    """Let the app that serves a POST have the connection remember its head."""

    __slots__ = ("_head", "_headers", "_heads")

    def __init__(self, heads: RememberedHeads[RepeatedHead], head: bytes, headers: HeaderList) -> None:
        self._heads = heads
        self._head = head
        self._headers = headers

    def remember(self, describe: Callable[[], RepeatedHead]) -> None:
        """Remember the head, as `describe` returns it, if it has come before. For served and authenticated requests."""
        if self._heads.is_repeated(self._head) and (template := template_of(self._head, self._headers)) is not None:
            repeated = describe()
            if (held := self._heads.add(template, repeated)) is not None:
                repeated.holds(held.hold)
