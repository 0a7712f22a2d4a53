"""The part of an exchange that turns its server's result into what its client gets."""

from collections.abc import Callable
from typing import Any

from transports.jsonrpc import Object

__all__ = ["ResultShape"]


class ResultShape:
    """`shape` gets the exchange and the server's result, and returns the client's. None keeps it as it is."""

    shape: Callable[[Any, Object], Object] | None = None
    keeps_complete = False  # whether `shape` leaves complete results as they are

    def shape_with(self, shape: Callable[[Any, Object], Object] | None) -> None:
        """Replace the shape."""
        self.shape, self.keeps_complete = shape, False

    def filter_result(self, shape: Callable[[Any, Object], Object]) -> None:
        """Apply `shape` to the server's result, before the shape that the exchange has already."""
        later = self.shape
        self.shape_with(shape if later is None else lambda exchange, result: later(exchange, shape(exchange, result)))

    def keep_complete(self) -> None:
        """The shape changes only results that ask for input and those that are tasks. No other is read for it."""
        self.keeps_complete = True
