"""Keep sessions and their state in a store that an app provides, with four methods.

The app's store has one document for each session: its record and its state. The common code of embedded backends
decides everything else: expiry, limits, who may use a session, and operations on its state.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import time
from typing import Final, Protocol, TypeVar
from weakref import WeakValueDictionary

import msgspec

from session_store.embedded.records_port import Records, Result, Work
from session_store.embedded.sessions import EmbeddedSessionStore, EmbeddedStateStore
from session_store.memory import MemoryRecords
from session_store.ports.errors import StoreError, StoreUnavailable
from session_store.ports.sessions import Gone
from session_store.record import from_fields, to_fields
from session_store.session import Session

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ATTEMPTS: Final = 100
"""The most attempts of an operation while other writers change the same session. Each failed attempt means that another
writer has succeeded."""


class DocumentStore(Protocol):
    """Store documents that expire, one for each session id. An app implements these methods to keep sessions in a store
    of its own.

    An exception of a method means that the store is unavailable. Several tasks, threads and processes may call the
    methods at the same time; `save` says what that requires.
    """

    async def get(self, session_id: str) -> bytes | None:
        """Return the document; None if there is none or if it has expired."""

    async def create(self, session_id: str, document: bytes, ttl_s: float) -> None:
        """Store the document of a new session for `ttl_s` seconds."""

    async def save(self, session_id: str, document: bytes, ttl_s: float, replaces: bytes) -> bool:
        """Replace the document if it is still equal to `replaces`, and keep the new one for `ttl_s` seconds from now.
        Return True if it was replaced.

        Comparison and replacement must be one step: this makes all operations on a session atomic. A store that cannot
        compare may replace any existing document. Then, if two processes write to one session at once, one of the two
        writes is lost; within one process nothing is lost. Always return False if there is no document: a session that
        has ended must not come back.
        """

    async def delete(self, session_id: str) -> None:
        """Delete the document, if there is one."""


class _Document(msgspec.Struct):
    """The stored document of a session: the fields of its record, and its state by key."""

    session: dict[str, msgspec.Raw]
    state: dict[str, msgspec.Raw]


_decode = msgspec.json.Decoder(_Document).decode
_encode = msgspec.json.Encoder(order="sorted").encode


class DocumentBackend:
    """Provide the sessions and the state that a `DocumentStore` keeps: the two parts of a backend that an app without a
    gateway needs."""

    needs_keys = True

    def __init__(self, store: DocumentStore, *, clock: Callable[[], float] = time) -> None:
        documents = _Documents(store, clock)
        self.sessions = DocumentSessions(documents, clock, documents.of)
        self.state = EmbeddedStateStore(documents.of, clock)

    async def open(self) -> None:
        """Do nothing: the app opens its store."""

    async def close(self) -> None:
        """Do nothing: the app closes its store."""


class _Documents:
    """Provide transactions on the documents of a store. Within this process, transactions on one document do not
    overlap."""

    def __init__(self, store: DocumentStore, clock: Callable[[], float]) -> None:
        self.store = store
        self.clock = clock
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, session_id: str) -> "_OneSession":
        """Return an object that runs transactions on one session, one after another within this process."""
        return _OneSession(self, session_id, self._locks.setdefault(session_id, asyncio.Lock()))

    async def run(self, work: Work[Result]) -> Result:
        """Raise `StoreError`: such a store cannot run a transaction on several sessions."""
        raise StoreError("an app's session store has no aliases and no list of its sessions")


class _OneSession:
    """Run transactions on the document of one session (`session_store.embedded.records_port.Transactions`)."""

    def __init__(self, documents: _Documents, session_id: str, lock: asyncio.Lock) -> None:
        self._store = documents.store
        self._clock = documents.clock
        self._id = session_id
        self._lock = lock

    async def run(self, work: Work[Result]) -> Result:
        async with self._lock:
            for _ in range(_ATTEMPTS):
                records, before = await self._read()
                result = work(records)
                session = records.read(self._id)
                after = None if session is None else _document(session, records)
                if after == before or await self._changed(session, before, after):
                    return result
        raise StoreUnavailable("too many others change this session at once", may_have_taken_effect=False)

    async def _read(self) -> tuple[Records, bytes | None]:
        """Return the session's records, and the document from which they were read. If there is no document, the
        records are empty, and None is returned in its place."""
        try:
            document = await self._asked(self._store.get(self._id))
            return _records(document), document
        except StoreError as error:
            error.changed_nothing()  # a change is stored later
            raise

    async def _changed(self, session: Session | None, before: bytes | None, after: bytes | None) -> bool:
        """Store the document `after` in place of `before` (None: there was none). Without `after`, delete the document.
        Return False if another writer has changed the document since it was read; the caller then reads it again."""
        if session is None or after is None:
            await self._asked(self._store.delete(self._id))
            return True
        ttl_s = max(session.expires_at - self._clock(), 0.001)
        if before is None:
            await self._asked(self._store.create(self._id, after, ttl_s))
            return True
        return await self._asked(self._store.save(self._id, after, ttl_s, before))

    @staticmethod
    async def _asked(answer: Awaitable[T]) -> T:
        try:
            return await answer
        except StoreError:
            raise
        except Exception as error:  # drivers of stores have no common base class of errors
            logger.warning("the app's session store failed", exc_info=error)
            raise StoreUnavailable(f"the app's session store failed: {type(error).__name__}") from error


def _records(document: bytes | None) -> Records:
    records = MemoryRecords()
    if document is not None:
        try:
            kept = _decode(document)
            session = from_fields(kept.session)
        except ValueError as error:
            raise StoreError(f"the app's session store gave a document that is not a session's: {error}") from error
        records.write(session)
        for key, value in kept.state.items():
            records.set_value(session.id, key, bytes(value))
    return records


def _document(session: Session, records: Records) -> bytes:
    fields = {name: msgspec.Raw(value) for name, value in to_fields(session).items()}
    state = {key: msgspec.Raw(records.value(session.id, key) or b"null") for key in records.keys(session.id)}
    return _encode(_Document(session=fields, state=state))


class DocumentSessions(EmbeddedSessionStore):
    """Keeps session records in the documents of an app's store. A transaction concerns one session only."""

    async def sweep(self) -> list[Gone]:
        """Return an empty list: the app's store deletes expired documents itself."""
        return []
