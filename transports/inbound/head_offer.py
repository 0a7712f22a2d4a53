"""How the app that has served a request tells its connection to remember the head."""

from collections.abc import Callable
from typing import Final

from transports.inbound.begun_post import RepeatedHead
from transports.inbound.remembered_heads import HeaderList, RememberedHeads, template_of

__all__ = ["REPEATS", "HeadOffer"]

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
        """The request was served, and its caller was authenticated. A head is remembered when it comes again."""
        if self._heads.is_repeated(self._head) and (template := template_of(self._head, self._headers)) is not None:
            repeated = describe()
            if (held := self._heads.add(template, repeated)) is not None:
                repeated.holds(held.hold)
