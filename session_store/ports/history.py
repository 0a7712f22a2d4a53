"""What gateways have counted in the last day, in records of a fixed length of time, one for each replica."""

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

__all__ = ["STEPS", "HistoryRecord", "HistoryStore"]

STEPS: Final[Mapping[int, float]] = {60: 7_200.0, 600: 90_000.0}
"""Length of a record → how long it is kept, in seconds. A day in records of a minute would be long to read."""


class HistoryRecord(NamedTuple):
    """What one replica counted from `at` (Unix time, a multiple of the step) for one step. The store knows nothing of
    the `body`."""

    at: int
    replica: str
    body: bytes


class HistoryStore(Protocol):
    """Records by length, time and replica. Every method may raise `StoreUnavailable`."""

    async def write(self, step_s: int, record: HistoryRecord) -> None:
        """Keep a record of one of the `STEPS`, in place of the one that the replica has written for that time."""
        ...

    async def read(self, step_s: int, since: int, until: int) -> list[HistoryRecord]:
        """The records of all replicas with `since` <= `at` < `until`, in order of time and replica."""
        ...
