"""`StateStore` on the records of an embedded backend: each operation is one transaction."""

from collections.abc import Callable

from session_store.embedded.records import Records, Result, Transactions, Work, live
from session_store.limits import check_key, check_total, check_value, incremented
from session_store.ports.errors import SessionGone

__all__ = ["EmbeddedStateStore"]


class EmbeddedStateStore:
    """Holds the limits, and refuses what is asked for a session that is not live."""

    def __init__(self, transactions: Transactions, clock: Callable[[], float]) -> None:
        self._transactions = transactions
        self._clock = clock

    async def get(self, session_id: str, key: str) -> bytes | None:
        check_key(key)
        return await self._run(session_id, lambda records: records.value(session_id, key))

    async def set(self, session_id: str, key: str, value: bytes) -> None:
        check_key(key)
        await self._run(session_id, lambda records: _set(records, session_id, key, value))

    async def delete(self, session_id: str, key: str) -> bool:
        check_key(key)

        def work(records: Records) -> bool:
            exists = records.value(session_id, key) is not None
            if exists:
                records.set_value(session_id, key, None)
            return exists

        return await self._run(session_id, work)

    async def increment(self, session_id: str, key: str, by: int) -> int:
        check_key(key)

        def work(records: Records) -> int:
            number = incremented(key, records.value(session_id, key), by)
            _set(records, session_id, key, b"%d" % number)
            return number

        return await self._run(session_id, work)

    async def compare_and_set(self, session_id: str, key: str, expected: bytes | None, value: bytes | None) -> bool:
        check_key(key)

        def work(records: Records) -> bool:
            present = records.value(session_id, key)
            if present != expected:
                return False
            if value is not None:
                _set(records, session_id, key, value)
            elif present is not None:
                records.set_value(session_id, key, None)
            return True

        return await self._run(session_id, work)

    async def keys(self, session_id: str) -> list[str]:
        return await self._run(session_id, lambda records: records.keys(session_id))

    async def size(self, session_id: str) -> int:
        return await self._run(session_id, lambda records: records.size(session_id))

    async def _run(self, session_id: str, work: Work[Result]) -> Result:
        def checked(records: Records) -> Result:
            if live(records, session_id, self._clock()) is None:
                raise SessionGone(session_id)
            return work(records)

        return await self._transactions.run(checked)


def _set(records: Records, session_id: str, key: str, value: bytes) -> None:
    check_value(key, value)
    check_total(key, records.size(session_id, without=key) + len(key.encode()) + len(value))
    records.set_value(session_id, key, value)
