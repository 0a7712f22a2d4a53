"""Define interfaces for limits and values that all processes of a store share: rates, quotas, expiring flags and sealed
(encrypted) values."""

from collections.abc import Sequence
from typing import Protocol


class Rates(Protocol):
    """Limit the rates of events, for all processes of a store together."""

    async def take(self, key: str, per_s: float, burst: int, times: int = 1, within_s: float = 0.0) -> float:
        """Count `times` events under `key`, and return how many seconds the caller has to wait until the last of them
        may happen; 0: none. If it has to wait longer than `within_s`, return these seconds, but count nothing.

        The rate is `per_s` events a second in the long run, and up to `burst` at once. Events that were counted in
        advance keep their turn: events of later calls come after them.
        """


class Quotas(Protocol):
    """Limit how many names (of things in use) are held under a key, across all processes of a store."""

    async def hold(self, key: str, name: str, most: int, *, for_s: float) -> list[str]:
        """Hold `name` under `key`, and return an empty list. If `most` other names are held under the key, do not hold
        `name`, and return those names.

        Each successful call extends the time for all names of the key to at least `for_s` seconds from now, even if
        `name` is held already. When this time has passed without another call, all names of the key are released.
        """

    async def give_back(self, key: str, names: Sequence[str]) -> None:
        """Release these names of the key. Names that are not held are ignored."""


class ExpiringFlags(Protocol):
    """Set named flags for a limited time, for all processes of a store. All methods may raise `StoreUnavailable`."""

    async def set(self, name: str, for_s: float) -> None:
        """Set the flag for `for_s` seconds from now."""

    async def has(self, name: str) -> bool:
        """Return True while the flag is set."""

    async def drop(self, name: str) -> None:
        """Remove the flag, if it is set."""


class SealedValues(Protocol):
    """Keep values by name for a limited time, for all processes of a store. Callers encrypt the values: whoever reads
    the store must learn nothing. All methods may raise `StoreUnavailable`."""

    async def get(self, name: str) -> bytes | None:
        """Return the value; None if there is none."""

    async def replace(self, name: str, before: bytes | None, after: bytes | None, for_s: float = 0.0) -> bool:
        """Replace the value of `name` if it is `before` (None: it has no value). The new value is `after`, kept for
        `for_s` seconds (None: remove the value). Return True if it was replaced, False if its value was not `before`.
        Of several concurrent calls, only the first succeeds. No value is empty."""

    async def names(self) -> list[str]:
        """Return the names of all values, and perhaps some names whose value has expired or was removed."""
