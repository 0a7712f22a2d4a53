"""The part of an exchange that is about streams of notifications (MCP 2026-07-28, `subscriptions/listen`)."""

from collections.abc import Callable

from gateway.protocol.subscription_filter import Filter

__all__ = ["Listening"]


class Listening:
    """Whether an exchange is such a stream, and what may be on it."""

    # Class attributes, because most calls never need them.
    method: str
    _wanted: Filter | None = None
    _on_acknowledged: Callable[[], None] | None = None

    @property
    def is_subscription(self) -> bool:
        """Whether it is a stream of notifications that stays open."""
        return self.method == "subscriptions/listen"

    def listen_for(self, wanted: Filter) -> None:
        """Pass on changes of these kinds only."""
        self._wanted = wanted

    def acknowledged_here(self, then: Callable[[], None]) -> None:
        """The gateway acknowledges the stream, so that the client gets no acknowledgement of the server. `then` is
        called when that comes: the server has the subscription."""
        self._on_acknowledged = then

    def takes_acknowledgement(self) -> bool:
        """The server has acknowledged the stream. False if that is for the client."""
        if self._on_acknowledged is None:
            return False
        self._on_acknowledged()
        return True

    def listens_for(self, method: str) -> bool:
        """Whether that notification may be on the stream."""
        return self.is_subscription and (self._wanted is None or self._wanted.may_have(method))
