"""The part of an exchange that is about streams of notifications (MCP 2026-07-28, `subscriptions/listen`)."""

from gateway.protocol.subscription_filter import ACKNOWLEDGED, Filter

__all__ = ["Listening"]


class Listening:
    """Whether an exchange is such a stream, and what may be on it."""

    # Class attributes, because most calls never need them.
    method: str
    _wanted: Filter | None = None
    is_acknowledged_here = False

    @property
    def is_subscription(self) -> bool:
        """Whether it is a stream of notifications that stays open."""
        return self.method == "subscriptions/listen"

    def listen_for(self, wanted: Filter) -> None:
        """Pass on changes of these kinds only."""
        self._wanted = wanted

    def acknowledged_here(self) -> None:
        """The gateway has acknowledged the stream, so that the client gets no acknowledgement of the server."""
        self.is_acknowledged_here = True

    def listens_for(self, method: str) -> bool:
        """Whether that notification may be on the stream."""
        if method == ACKNOWLEDGED and self.is_acknowledged_here:
            return False
        return self.is_subscription and (self._wanted is None or self._wanted.may_have(method))
