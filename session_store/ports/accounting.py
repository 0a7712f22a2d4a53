"""What a backend counts for all processes that share it: rates, quotas, and marks that expire."""

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Marks", "Quotas", "Rates"]


class Rates(Protocol):
    """Rate limits that all processes of a store share."""

    async def take(self, key: str, per_s: float, burst: int, times: int = 1, within_s: float = 0.0) -> float:
        """Count `times` events under `key`, and return in how many seconds the last of them may happen: 0 if all may at
        once. If that is later than `within_s`, count nothing.

        The rate is `per_s` events a second in the long run, and up to `burst` at once. What is counted for later has
        its turn: whoever asks next comes behind it.
        """
        ...


class Quotas(Protocol):
    """Quotas: the number of things that one key holds at once, counted across all processes of a store."""

    async def hold(self, key: str, name: str, most: int, *, for_s: float) -> list[str]:
        """Hold one under that name and return an empty list. If `most` are held already, return all their names.

        Holding a name again is harmless. The names of a key are kept until the longest time has passed that one of its
        calls has asked for (`for_s`, in seconds from that call), those of calls included whose name was held already.
        Then all are released.
        """
        ...

    async def give_back(self, key: str, names: Sequence[str]) -> None:
        """Release these names."""
        ...


class Marks(Protocol):
    """Names that are set for a limited time, for all processes of a store. All may raise `StoreUnavailable`."""

    async def set(self, name: str, for_s: float) -> None:
        """Set the mark for that many seconds from now."""
        ...

    async def has(self, name: str) -> bool:
        """True while the mark is set."""
        ...

    async def drop(self, name: str) -> None:
        """Remove the mark. Harmless if it is not set."""
        ...
