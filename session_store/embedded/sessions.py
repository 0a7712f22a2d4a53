"""Implement `SessionStore` and `StateStore` on the records of an embedded backend, one transaction per operation."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from session_store.embedded.records_port import Records, Result, Transactions, Work, live
from session_store.ports.errors import SessionGone
from session_store.ports.sessions import Gone, SessionStatus, SetField
from session_store.ports.tool_state import check_key, check_total, check_value, incremented
from session_store.session import Principal, Session, merged_metadata


class EmbeddedSessionStore:
    """Store sessions in the records of a backend. This class decides which sessions are live, what counts as use, and
    what ends a session.

    `of_session` returns an object that runs transactions on the session with a given id. Without `of_session`,
    `transactions` runs all of them.
    """

    def __init__(
        self,
        transactions: Transactions,
        clock: Callable[[], float],
        of_session: Callable[[str], Transactions] | None = None,
    ) -> None:
        self._transactions = transactions
        self._clock = clock
        self._of = of_session or (lambda session_id: self._transactions)

    async def create(self, session: Session, *, alias: str | None = None) -> Session:
        def work(records: Records) -> Session:
            if alias is not None and (existing := self._named(records, alias)) is not None:
                return self._use(records, existing)
            self.make_room(session)
            records.write(session)
            if alias is not None:
                records.set_alias(alias, session.id)
            return session

        return await self._of(session.id).run(work)

    async def resume(self, session_id: str, principal: Principal, known: Session | None = None) -> Session | None:
        def work(records: Records) -> Session | None:
            session = live(records, session_id, self._clock())
            return None if session is None or session.principal != principal else self._use(records, session)

        return await self._of(session_id).run(work)

    async def resume_alias(self, alias: str) -> Session | None:
        def work(records: Records) -> Session | None:
            session = self._named(records, alias)
            return None if session is None else self._use(records, session)

        return await self._transactions.run(work)

    async def named(self, alias: str) -> Session | None:
        return await self._transactions.run(lambda records: self._named(records, alias))

    async def peek(self, session_id: str) -> Session | None:
        return await self._of(session_id).run(lambda records: live(records, session_id, self._clock()))

    async def touch(self, session_id: str) -> bool:
        def work(records: Records) -> bool:
            session = live(records, session_id, self._clock())
            if session is not None:
                records.use(session.used(self._clock()))
            return session is not None

        return await self._of(session_id).run(work)

    async def update(self, session_id: str, *, if_version: int | None = None, **fields: object) -> Session | None:
        def changed(session: Session) -> Session | None:
            return replace(session, **fields) if if_version in (None, session.version) else None

        return await self.change(session_id, changed)

    async def change_set(self, session_id: str, field: SetField, *, add: str = "", remove: str = "") -> Session | None:
        return await self.change(session_id, lambda session: session.with_set(field, add=add, remove=remove))

    async def annotate(self, session_id: str, changes: Mapping[str, str | None]) -> Session | None:
        return await self.change(session_id, lambda s: replace(s, metadata=merged_metadata(s.metadata, changes)))

    async def change(self, session_id: str, changed: Callable[[Session], Session | None]) -> Session | None:
        """Replace the live session's record by `changed(record)`, with the next version. Return the new record. Return
        None, and write nothing, if the session is not live or `changed` returns None."""

        def work(records: Records) -> Session | None:
            session = live(records, session_id, self._clock())
            session = None if session is None else changed(session)
            if session is not None:
                session = replace(session, version=session.version + 1)
                records.write(session)
            return session

        return await self._of(session_id).run(work)

    async def end(self, session_id: str) -> bool:
        def work(records: Records) -> bool:
            is_live = live(records, session_id, self._clock()) is not None
            if is_live:
                self._remove(records, session_id, "ended")
            return is_live

        return await self._of(session_id).run(work)

    async def page(self, *, after: str = "", limit: int = 100) -> list[Session]:
        def work(records: Records) -> list[Session]:
            now = self._clock()
            return list(islice((s for s in records.scan(after) if not s.is_expired(now)), limit))

        return await self._transactions.run(work)

    async def gone(self, session_ids: Sequence[str]) -> list[str]:
        def work(records: Records) -> list[str]:
            now = self._clock()
            return [session_id for session_id in session_ids if live(records, session_id, now) is None]

        return await self._transactions.run(work)

    async def status(self, session_id: str) -> SessionStatus:
        def work(records: Records) -> SessionStatus:
            session = records.read(session_id)
            if session is not None:
                return "expired" if session.is_expired(self._clock()) else "live"
            return records.status(session_id)

        return await self._transactions.run(work)

    async def sweep(self) -> list[Gone]:
        def work(records: Records) -> list[Gone]:
            now = self._clock()
            expired = records.expired(now)
            for session_id in expired:
                self._remove(records, session_id, "expired")
            records.prune(now)
            return [Gone(session_id=session_id, reason="expired") for session_id in expired]

        return await self._transactions.run(work)

    def make_room(self, newcomer: Session) -> None:
        """Remove another session if the store is full, so that `newcomer` can be added. Called in the transaction that
        adds it. Does nothing by default.

        Raises:
            StoreFull: every session in the store is in use.
        """

    def _named(self, records: Records, alias: str) -> Session | None:
        session_id = records.named(alias)
        return None if session_id is None else live(records, session_id, self._clock())

    def _use(self, records: Records, session: Session) -> Session:
        session = session.used(self._clock(), confirm=True)
        records.use(session)
        return session

    def _remove(self, records: Records, session_id: str, status: SessionStatus) -> None:
        records.remove(session_id)
        records.record_status(session_id, status, self._clock())


class EmbeddedStateStore:
    """Store the values that tools keep in their sessions. This class checks the limits, and refuses operations for a
    session that is not live. `of_session` returns an object that runs transactions on the session with a given id."""

    def __init__(self, of_session: Callable[[str], Transactions], clock: Callable[[], float]) -> None:
        self._of = of_session
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

        return await self._of(session_id).run(checked)


def _set(records: Records, session_id: str, key: str, value: bytes) -> None:
    check_value(key, value)
    check_total(key, records.size(session_id, without=key) + len(key.encode()) + len(value))
    records.set_value(session_id, key, value)
