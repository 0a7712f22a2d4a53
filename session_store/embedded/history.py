"""`HistoryStore` in this process."""

from session_store.ports.history import STEPS, HistoryRecord

__all__ = ["MemoryHistory"]


class MemoryHistory:
    """The records of the last day: one process writes, so their number is bounded by time."""

    def __init__(self) -> None:
        self._of: dict[int, dict[tuple[int, str], bytes]] = {step_s: {} for step_s in STEPS}

    async def write(self, step_s: int, record: HistoryRecord) -> None:
        records = self._of[step_s]
        records[record.at, record.replica] = record.body
        oldest = record.at - STEPS[step_s]
        while (first := next(iter(records)))[0] < oldest:
            del records[first]

    async def read(self, step_s: int, since: int, until: int) -> list[HistoryRecord]:
        found = [HistoryRecord(at, by, body) for (at, by), body in self._of[step_s].items() if since <= at < until]
        return sorted(found)
