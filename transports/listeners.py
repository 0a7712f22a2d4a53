"""An event with listeners: for parts that are built before those they notify."""

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Listeners"]

T = TypeVar("T")


class Listeners(Generic[T]):
    """Calls its listeners in the order in which they were added."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[T], object]] = []

    def add(self, listener: Callable[[T], object]) -> None:
        """Notify that listener from now on."""
        self._listeners.append(listener)

    def notify(self, what: T) -> None:
        """Call every listener. An exception of one reaches the caller, and the listeners after it are not called."""
        for listener in self._listeners:
            listener(what)
