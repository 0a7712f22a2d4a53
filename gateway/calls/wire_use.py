"""What is to be done once the wire no longer uses an exchange."""

from collections.abc import Callable

__all__ = ["WireUse"]


class WireUse:
    """Callbacks for the end of one exchange on the wire to its client. Knows nothing of the exchange."""

    ended: Callable[[], None] | None = None

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the wire is done with the exchange, before earlier callbacks."""
        earlier = self.ended

        def both() -> None:
            callback()
            if earlier is not None:
                earlier()

        self.ended = both

    def done(self) -> None:
        """The wire is done with the exchange. Idempotent."""
        callback, self.ended = self.ended, None
        if callback is not None:
            callback()
