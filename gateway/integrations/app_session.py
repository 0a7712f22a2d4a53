"""The session of one request of an app. It is read or opened when the app first uses it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final, Self, TypeVar

from gateway.integrations.app_session_id_carriers import AppCarriers
from gateway.integrations.app_session_store import AppSessions
from session_store import (
    ANONYMOUS,
    InvalidMetadata,
    InvalidState,
    NoSession,
    Principal,
    Session,
    SessionGone,
    SessionState,
    StateStore,
    StoreError,
    ToolSession,
)
from session_store.current_tool_session import tool_session
from session_store.session import checked_metadata
from session_store.tool_session import READABLE_BY_CALLERS
from transports.inbound.http_requests_and_responses import Scope, peer_of

T = TypeVar("T")

_NO_SCOPE: Final[Scope] = {}
_TOO_LATE: Final = (
    "this request came without a session, and its response has begun, so that a new session could not be given to the "
    "client: write to the session, or read its id, before the response"
)


APP_ISSUER: Final = "app"
"""The issuer of principals that the app passes as strings."""

Named = Principal | str | None
WhoIs = Callable[[Scope], Named | Awaitable[Named]]


class Client:
    """Find out for an app which client sends a request: its principal, and the session ids that it carries.
    `principal`: the app's function that returns the principal; None if all clients are anonymous."""

    def __init__(self, carriers: AppCarriers, principal: WhoIs | None) -> None:
        self._principal = principal
        self.session_ids = carriers.session_ids

    def principal(self, scope: Scope) -> Principal | asyncio.Future[Principal]:
        """Return the principal of the client that sends the request `scope`. If the app's function is asynchronous,
        return a future of it."""
        if self._principal is None:
            return ANONYMOUS
        named = self._principal(scope)
        return asyncio.ensure_future(_awaited(named)) if isawaitable(named) else _principal(named)


def _principal(named: Named) -> Principal:
    if isinstance(named, Principal):
        return named
    if named is not None and not isinstance(named, str):
        raise TypeError(f"SessionMiddleware(principal=…) gave {type(named).__name__}: give a text, a Principal or None")
    return Principal(issuer=APP_ISSUER, subject=named) if named else ANONYMOUS


async def _awaited(named: Awaitable[Named]) -> Principal:
    return _principal(await named)


class SessionNotLoaded(RuntimeError):
    """The app has read a fact of the session before `await session.load()`."""


class AppSession(ToolSession):
    """The session of a request. It is looked up when the app first uses it, and opened when the app first writes to it.

    - **State and metadata** can be used at once. For a client without a session, reading returns nothing, and opens no
      session.
    - **Writing**, and reading `id`, open a session for a client without one. The response sends its id to the client.
    - **Facts** (`principal`, `context`, …) can be read after `await session.load()`, and `id` after any awaited
      operation. Before that they raise `SessionNotLoaded`, because the id that a client sends is not checked yet.

    All operations raise `StoreUnavailable` if the store does not answer, and `SessionGone` if the session ends
    meanwhile. After the response has begun, operations that would open a session raise `NoSession`.
    """

    # Class attributes, because most requests never use their session: they pay for no attribute that they do not set.
    is_used = False
    """Set once the app has used the session."""
    is_new = False
    """Set if this request has opened the session, or given it a new id."""
    ended_id = ""
    """The id of the session that this request has ended."""
    known_id = ""
    """The id of the client's session; empty if there is none, or if it was not looked up yet. Unlike reading `id`,
    reading this opens no session."""
    has_failed = False
    """Set if an operation of this request has failed because of the store."""
    writes = 0
    """The number of changes that this request has made, or may have made, to its session. The opening of a session
    is not counted: nobody can use the session without its id, which the response gives to the client."""
    _record: Session | None = None
    _facts: ToolSession | None = None
    _who: Principal | asyncio.Future[Principal] | None = None
    _lock: asyncio.Lock | None = None
    _ids: Sequence[str] | None = None
    _is_loaded = False
    _is_checked = False
    _is_wanted = False
    _is_sealed = False

    __setattr__ = object.__setattr__  # the base class is a frozen dataclass, and this object changes

    def __init__(self, sessions: AppSessions, client: Client, scope: Scope) -> None:
        self._sessions = sessions
        self._client = client
        self._scope = scope

    def __getattr__(self, name: str) -> Any:
        """Return a fact of the session, such as `principal`. Reading `id` without a session makes the response open
        one. Raises `SessionNotLoaded` if the fact is not known yet, and `NoSession` if `id` would open a session after
        the response has begun."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name == "id" and self._is_checked and self.known_id:
            return self.known_id
        if self._record is None or not (self._is_loaded or name == "id"):
            after = ", or after any other operation that was awaited" if name == "id" else ""
            raise SessionNotLoaded(f"session.{name} is known after `await session.load()`{after}")
        if name == "id" and not self.known_id:
            if self._is_sealed:
                raise NoSession(_TOO_LATE)
            self.is_used = self._is_wanted = True
        if self._facts is None or self._facts.id != self._record.id:
            records: Any = self._sessions.records
            self._facts = tool_session(self._record, sessions=records, state=self._sessions.state)
        return getattr(self._facts, name)

    def __repr__(self) -> str:
        return f"<session of a request, {'loaded' if self._is_loaded else 'not loaded'}>"

    @property
    def state(self) -> SessionState:
        """Return the state of the session."""
        return SessionState(_LazyState(self))

    @property
    def store(self) -> StateStore:
        """Return the store that keeps the state of sessions."""
        return self._sessions.state

    async def load(self) -> Self:
        """Look up the session, and restart its idle time. Return this object. Does not open a session: reading `id`
        does."""
        self.is_used = True
        if not self._is_loaded:
            async with self._locked():
                await self._look_up()
            self._is_loaded = True
        return self

    async def metadata(self) -> Mapping[str, str]:
        """Return the session's current metadata."""
        return await self.read(self._sessions.metadata, {})

    async def annotate(self, changes: Mapping[str, str | None]) -> None:
        """Set metadata by name; the value None removes a name. Values that look like credentials are redacted.

        Raises:
            InvalidMetadata: a value is not text, or the metadata would be too large.
        """
        with READABLE_BY_CALLERS:
            await self.write(self._sessions.annotate, checked_metadata(changes))

    async def end(self) -> None:
        """End the session, as at sign-out. Later writes open a new one."""
        self.ended_id = await self.change(self._sessions.end, "")
        self.is_new = self._is_wanted = self._is_checked = False
        self.known_id, self._ids = "", ()
        self._record = None
        async with self._locked():
            await self._look_up()

    async def rotate(self, principal: Named = None) -> None:
        """Give the session a new id, and end the old id, which others may know. Call this at sign-in. State, metadata
        and age stay; writes of concurrent requests may be lost. Does nothing without a session.

        `principal`: the session's new principal, such as the user who has just signed in; None to keep the current one.

        Raises:
            NoSession: the response has begun, so the new id could not be given to the client.
        """
        if self._is_sealed:
            raise NoSession("the response has begun, so that a new session id could not be given to the client")
        to = None if principal is None else _principal(principal)

        async def rotated(session_id: str) -> Session | None:
            who = to or self._who
            assert isinstance(who, Principal)  # the session was found with it
            return await self._sessions.rotate(session_id, who, peer_of(self._scope))

        fresh = await self.change(rotated, None)
        if fresh is not None:
            self._record, self._who, self.known_id, self._ids = fresh, fresh.principal, fresh.id, ()
            self.is_new = True

    @property
    def is_settled(self) -> bool:
        """Return True if the response can be sent as it is: it need not set or delete the client's session, and no
        operation has failed because of the store."""
        return not (self.is_new or self.ended_id or self.has_failed or (self._is_wanted and not self.known_id))

    async def settle(self) -> None:
        """Open the session if the app has read its id. Open none from now on (`seal`). Called before the response
        begins, which sends the id to the client."""
        if self._is_wanted and not self.known_id:
            await self.open()
        self.seal()

    def seal(self) -> None:
        """Open no session from now on: the response has begun, so a new id can no longer be sent to the client."""
        self._is_sealed = True

    def finish(self) -> None:
        """Drop the reference to the request, because the app has answered it. A session that was looked up can still be
        used."""
        if self._who is None:
            self._who, self._ids = ANONYMOUS, ()
        # The scope refers to this object, and only a garbage collection would free such a circle.
        self._scope = _NO_SCOPE

    async def open(self) -> None:
        """Open a session if the client has none."""
        await self._called(_nothing, (), None, opens=True, writes=False)

    # -- operations

    def read(self, operation: Callable[..., Awaitable[T]], default: T, *arguments: Any) -> Coroutine[Any, Any, T]:
        """Call `operation`, which reads from the session, with the session's id and `arguments`. Return its result; if
        the client has no session, return `default`."""
        return self._called(operation, arguments, default, opens=False, writes=False)

    def change(self, operation: Callable[..., Awaitable[T]], default: T, *arguments: Any) -> Coroutine[Any, Any, T]:
        """Call `operation`, which changes an existing session, with the session's id and `arguments`. Return its
        result; if the client has no session, return `default`."""
        return self._called(operation, arguments, default, opens=False, writes=True)

    def write(self, operation: Callable[..., Awaitable[T]], *arguments: Any) -> Coroutine[Any, Any, T]:
        """Call `operation`, which changes the session, with the session's id and `arguments`, and return its result. If
        the client has no session, open one first."""
        return self._called(operation, arguments, None, opens=True, writes=True)

    async def _called(
        self,
        operation: Callable[..., Awaitable[T]],
        arguments: tuple[Any, ...],
        default: Any,
        *,
        opens: bool,
        writes: bool,
    ) -> T:
        self.is_used = True
        self.writes += writes  # before it begins: the app may stop waiting for it, and it goes on
        may_have_changed = False
        try:
            while True:
                session_id = self.known_id or self._known() or await self._found()
                if not session_id:
                    if not opens:
                        return default  # type: ignore[no-any-return]  # that of `read`
                    session_id = await self._opened()
                may_have_changed = True
                try:
                    result = await operation(session_id, *arguments)
                except SessionGone:
                    may_have_changed = False
                    self._lost(session_id)
                else:
                    self._is_checked = True
                    return result
        except StoreError as error:
            self.has_failed = True
            may_have_changed = may_have_changed and error.may_have_taken_effect
            raise
        except (InvalidState, InvalidMetadata):
            may_have_changed = False
            raise
        finally:
            if not may_have_changed:
                self.writes -= writes

    def _known(self) -> str:
        """Return the id of the client's session if this process has read the session before; else an empty string.

        The store is not asked: if the session has ended since, the next operation on it fails.
        """
        if self._record is not None:
            return ""
        ids = self._ids
        if ids is None:
            ids = self._ids = self._client.session_ids(self._scope)
        who = self._who
        if who is None:
            who = self._who = self._client.principal(self._scope)
        if ids and isinstance(who, Principal) and self._sessions.is_known(ids[0], who):
            self.known_id = ids[0]
        return self.known_id

    async def _found(self) -> str:
        """Look up the session in the store if that is needed. Return its id; empty if the client has none."""
        if isinstance(self._who, asyncio.Future):
            self._who = await self._who
            if self._known():
                return self.known_id
        async with self._locked():
            await self._look_up()
        return self.known_id

    async def _look_up(self) -> None:
        """Find the client's session in the store. If there is none, make the record of a new one, which is not stored
        yet. Does nothing if this was done before. Raises `SessionGone` if this request has used the session before, and
        it has ended."""
        if self._record is not None:
            return
        who = self._who or self._client.principal(self._scope)
        principal = self._who = who if isinstance(who, Principal) else await who
        try:
            for session_id in self._client.session_ids(self._scope) if self._ids is None else self._ids:
                found = await self._sessions.resume(session_id, principal)
                if found is not None:
                    self.known_id, self._record, self._is_checked = found.id, found, True
                    return
        except StoreError:
            self.has_failed = True
            raise
        if self._is_checked:
            raise SessionGone(self.known_id)
        self.known_id, self._ids = "", ()
        self._record = self._sessions.new(principal, peer_of(self._scope))

    async def _opened(self) -> str:
        """Return the id of the client's session. Store a new session first if the client has none. Raises `NoSession`
        if the response has begun."""
        async with self._locked():
            await self._look_up()
            if not self.known_id and self._record is not None:
                if self._is_sealed:
                    raise NoSession(_TOO_LATE)
                try:
                    await self._sessions.open(self._record)
                except StoreError:
                    self.has_failed = True
                    raise
                self.known_id, self._is_checked, self.is_new = self._record.id, True, True
        return self.known_id

    def _lost(self, session_id: str) -> None:
        """Forget the session with this id, because an operation has found that it has ended. Raises `SessionGone` if
        this request has used it successfully before; otherwise, the caller goes on without it."""
        self._sessions.forget(session_id)
        if session_id != self.known_id:
            return
        if self._is_checked:
            raise SessionGone(session_id)
        self.known_id = ""
        self._ids = [other for other in self._ids or () if other != session_id]

    def _locked(self) -> asyncio.Lock:
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock


async def _nothing(_: str) -> None:
    """Do nothing. This is the operation of `AppSession.open`, which only opens the session."""


class _LazyState:
    """The state of a request's session, as `session_store.tool_session.StatePort` demands. Each operation looks the
    session up first. Operations that can make a value open a session if there is none."""

    def __init__(self, session: AppSession) -> None:
        self._session = session

    # Plain functions that return the coroutine of the session: one more coroutine around it would only cost time.

    def get(self, key: str) -> Coroutine[Any, Any, bytes | None]:
        return self._session.read(self._store.get, None, key)

    def set(self, key: str, value: bytes) -> Coroutine[Any, Any, None]:
        return self._session.write(self._store.set, key, value)

    def delete(self, key: str) -> Coroutine[Any, Any, bool]:
        return self._session.change(self._store.delete, False, key)

    def increment(self, key: str, by: int) -> Coroutine[Any, Any, int]:
        return self._session.write(self._store.increment, key, by)

    def compare_and_set(self, key: str, expected: bytes | None, value: bytes | None) -> Coroutine[Any, Any, bool]:
        operation = self._store.compare_and_set
        if expected is None:
            return self._session.write(operation, key, expected, value)
        return self._session.change(operation, False, key, expected, value)  # without a session there is no value

    def keys(self) -> Coroutine[Any, Any, list[str]]:
        return self._session.read(self._store.keys, [])

    @property
    def _store(self) -> StateStore:
        return self._session.store
