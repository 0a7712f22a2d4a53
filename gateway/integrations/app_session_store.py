"""Find, open and end the sessions of an app in its store. Callers have already verified the session ids."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from time import monotonic, time
from typing import Final, Protocol
from weakref import WeakKeyDictionary, WeakSet

import msgspec

from gateway.config.sessions import SessionSettings
from session_store import Gone, Principal, Session, SessionGone, StateStore, StoreError
from session_store.session import new_session_id, origin_of
from transports.background_tasks import Tasks
from transports.era import Era
from transports.inbound.unauthenticated_limits import network_of

SLIDE_SHARE: Final = 0.05
"""The share of `idle_ttl_s` that must have passed before a use restarts a session's idle time: otherwise every read
would cause a write. So a session ends after 95 % to 100 % of `idle_ttl_s` without use."""

_KNOWN_HELD: Final = 20_000
_SWEEP_S: Final = 30.0


class AppRecords(Protocol):
    """The store of session records: the part of `session_store.SessionStore` that apps need."""

    async def create(self, session: Session) -> Session: ...
    async def resume(self, session_id: str, principal: Principal) -> Session | None: ...
    async def peek(self, session_id: str) -> Session | None: ...
    async def touch(self, session_id: str) -> bool: ...
    async def annotate(self, session_id: str, changes: Mapping[str, str | None]) -> Session | None: ...
    async def end(self, session_id: str) -> bool: ...
    async def sweep(self) -> Sequence[Gone]: ...


class AppStore(Protocol):
    """The store of an app: the part of `session_store.Backend` that apps need."""

    @property
    def sessions(self) -> AppRecords: ...

    @property
    def state(self) -> StateStore: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class StorePerLoop:
    """An app's store that uses a separate backend in each event loop, because connections belong to the loop that has
    opened them. `make`: returns a new backend.

    An app has several loops in tests: `TestClient(app)` without `with` runs each request in a new loop, and two clients
    at the same time have one loop each.
    """

    def __init__(self, make: Callable[[], AppStore]) -> None:
        self._make = make
        self._stores: WeakKeyDictionary[asyncio.AbstractEventLoop, AppStore] = WeakKeyDictionary()
        self._last: tuple[asyncio.AbstractEventLoop, AppStore] | None = None

    def _here(self) -> AppStore:
        loop, last = asyncio.get_running_loop(), self._last
        if last is not None and last[0] is loop:
            return last[1]
        store = self._stores.get(loop)
        if store is None:
            store = self._stores[loop] = self._make()
        self._last = loop, store
        return store

    @property
    def sessions(self) -> AppRecords:
        return self._here().sessions

    @property
    def state(self) -> StateStore:
        return self._here().state

    async def open(self) -> None:
        """Open the backend of the current loop. The backends of other loops open with their first command."""
        await self._here().open()

    async def close(self) -> None:
        """Close the backend of the current loop. The connections of loops that have ended are closed already."""
        store, self._last = self._here(), None
        self._stores.pop(asyncio.get_running_loop(), None)
        await store.close()


class _Known(msgspec.Struct):
    """What a process keeps of a session that it has read: its principal, and when its idle time has to be restarted."""

    principal: Principal
    slide_s: float
    """The seconds after which a use restarts the session's idle time again."""
    due: float
    """The monotonic time from which on the next use restarts the session's idle time."""


@dataclass(eq=False, repr=False)
class AppSessions:
    """Find, open and change the sessions of one app. They are in `own`, the app's store, unless a test has set another
    one (`use`).

    No process owns a session. A process caches only the principal of a session, which never changes. All other facts
    are read from the store, whose operations are atomic.
    """

    own: AppStore
    settings: SessionSettings
    _: KW_ONLY
    clock: Callable[[], float] = time
    timer: Callable[[], float] = monotonic

    def __post_init__(self) -> None:
        self._store: AppStore = _STORES_OF_TESTS[-1] if _STORES_OF_TESTS else self.own
        self._known: dict[str, _Known] = {}
        self._tasks = Tasks("sessions of the app")
        self._swept = self.timer()
        self._is_open = False
        _SESSIONS.add(self)

    @property
    def records(self) -> AppRecords:
        return self._store.sessions

    @property
    def state(self) -> StateStore:
        return self._store.state

    def use(self, store: AppStore | None) -> None:
        """Use `store`, which is open, from now on; None to use the app's own store again."""
        self._store = store or self.own
        self._known.clear()

    async def open_store(self) -> None:
        """Open the app's own store if it is in use and not open yet. Raises `StoreError`."""
        if self._store is self.own and not self._is_open:
            await self._tasks.share("open", self.own.open)
            self._is_open = True

    def is_known(self, session_id: str, principal: Principal) -> bool:
        """Return True if this process has read a session with this id and principal before. The session may have ended
        since.

        If enough time has passed (`SLIDE_SHARE`), restart the session's idle time in the background.
        """
        known = self._known.get(session_id)
        if known is None or known.principal != principal:
            return False
        if self.timer() >= known.due:
            known.due = self.timer() + known.slide_s
            self._tasks.spawn(self._slide(session_id))
        return True

    async def _slide(self, session_id: str) -> None:
        with contextlib.suppress(StoreError):  # the operation that has called it reports that too
            await self.records.touch(session_id)

    async def resume(self, session_id: str, principal: Principal) -> Session | None:
        """Restart the idle time of a session, and return its record; None if there is no such session, or if it belongs
        to another principal."""
        if not self._is_open:
            await self.open_store()
        session = await self.records.resume(session_id, principal)
        if session is None:
            self._known.pop(session_id, None)
        else:
            self._remember(session)
        return session

    def forget(self, session_id: str) -> None:
        """Drop a session that has ended from the cache."""
        self._known.pop(session_id, None)

    def new(self, principal: Principal, peer: str) -> Session:
        """Return the record of a new session, which is not stored yet. `peer`: the network address of its client."""
        now = self.clock()
        return Session(
            id=new_session_id(),
            principal=principal,
            endpoint="",
            era=Era.MODERN,
            created_at=now,
            used_at=now,
            idle_ttl_s=self.settings.idle_ttl_s,
            max_age_s=self.settings.max_age_s,
            origin=origin_of(network_of(peer)) if principal.is_anonymous else "",
        )

    async def open(self, session: Session) -> None:
        """Store a new session. Every `_SWEEP_S` seconds at most, also delete expired sessions from the store's
        index."""
        if not self._is_open:
            await self.open_store()
        await self.records.create(session)
        self._remember(session)
        if self.timer() - self._swept >= _SWEEP_S:
            self._swept = self.timer()
            self._tasks.spawn(self._sweep())

    async def _sweep(self) -> None:
        with contextlib.suppress(StoreError):  # the next sweep deletes them
            await self.records.sweep()

    async def metadata(self, session_id: str) -> Mapping[str, str]:
        """Return the metadata of a session. Raises `SessionGone`."""
        found = await self.records.peek(session_id)
        if found is None:
            raise SessionGone(session_id)
        return found.metadata

    async def annotate(self, session_id: str, changes: Mapping[str, str | None]) -> None:
        """Change the metadata of a session by name; the value None removes a name. The caller has checked the changes.
        Raises `SessionGone`."""
        if await self.records.annotate(session_id, changes) is None:
            raise SessionGone(session_id)

    async def end(self, session_id: str) -> str:
        """End the session for all processes. Return its id, also if it had ended already."""
        self.forget(session_id)
        await self.records.end(session_id)
        return session_id

    async def rotate(self, session_id: str, principal: Principal, peer: str) -> Session:
        """Replace a session by a new one with another id, the principal `principal`, and the same age, metadata and
        state. Return the new record. `peer`: the network address of the client. Raises `SessionGone`."""
        old = await self.records.peek(session_id)
        if old is None:
            raise SessionGone(session_id)
        fresh = msgspec.structs.replace(self.new(principal, peer), created_at=old.created_at, metadata=old.metadata)
        if principal == old.principal:  # what a context grants is for nobody else
            fresh = msgspec.structs.replace(fresh, context=old.context)
        await self.open(fresh)
        try:
            for key in await self.state.keys(session_id):
                if (value := await self.state.get(session_id, key)) is not None:
                    await self.state.set(fresh.id, key, value)
            try:
                await self.end(session_id)
            except StoreError:
                # If only the answer was lost, the old session is over, and so would be the new one below. A look at the
                # old one could come before its end takes effect.
                await self.end(session_id)
        except BaseException:
            with contextlib.suppress(StoreError):  # nobody has its id
                await self.end(fresh.id)
            raise
        return fresh

    async def close(self) -> None:
        """Wait until all background tasks have ended, and close the store."""
        await self._tasks.settled()
        if self._is_open:
            self._is_open = False
            await self.own.close()

    def _remember(self, session: Session) -> None:
        slide_s = SLIDE_SHARE * session.idle_ttl_s
        self._known.pop(session.id, None)
        self._known[session.id] = _Known(session.principal, slide_s, self.timer() + slide_s)
        if len(self._known) > _KNOWN_HELD:
            del self._known[next(iter(self._known))]


_SESSIONS: Final["WeakSet[AppSessions]"] = WeakSet()
"""All `AppSessions` in this process."""
_STORES_OF_TESTS: Final[list[AppStore]] = []


@contextlib.contextmanager
def kept_in(store: AppStore) -> Iterator[None]:
    """Let all apps in this process use `store`, which is open, inside the block. For tests."""
    _STORES_OF_TESTS.append(store)
    for sessions in _SESSIONS:
        sessions.use(store)
    try:
        yield
    finally:
        _STORES_OF_TESTS.remove(store)
        for sessions in _SESSIONS:
            sessions.use(_STORES_OF_TESTS[-1] if _STORES_OF_TESTS else None)
