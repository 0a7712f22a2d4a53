"""What a backend of the session store must do, and how it fails. `session_store.testing` is the contract as tests."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from session_store.session import Principal, Session

__all__ = [
    "AuditEvent",
    "AuditTrail",
    "Backend",
    "Bus",
    "Directory",
    "Event",
    "EventLog",
    "Fate",
    "Gone",
    "Marks",
    "Quotas",
    "Rates",
    "SessionGone",
    "SessionStore",
    "SetField",
    "StateStore",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "UnknownEvent",
]

Fate = Literal["live", "ended", "expired", "evicted", "unknown"]
"""What became of a session id. `unknown` as well once it is too long ago."""


class StoreError(Exception):
    """Something is wrong with the store itself, never with what a client sent."""


class StoreUnavailable(StoreError):
    """The store did not answer in time. Nothing is known about the session: never answer as if it were gone."""


class StoreFull(StoreError):
    """No room for one more session, and none that is idle could make room."""


class UnknownEvent(LookupError):
    """The event id is not one of this session's, or is older than what the log still holds."""


class SessionGone(LookupError):
    """The session has expired or ended; nothing can be read from or written to it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A session that ended by itself, and why."""

    session_id: str
    reason: Literal["expired", "evicted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a stream: its id, and the frame (empty for a priming event)."""

    id: str
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """Something that happened to a session, or in it: `session` is its id as logs may show it, `at` seconds since the
    epoch. Of a call: which `tool` (server/name), how long it took, and its `outcome`: ok, tool error, or an error code.
    `client` is the network address of who was refused; `count` how many alike stand together in one event.
    """

    at: float
    event: Literal["created", "resumed", "expired", "evicted", "ended", "refused", "called", "operated"]
    session: str = ""
    principal: str = ""
    endpoint: str = ""
    era: str = ""
    reason: str = ""
    correlation: str = ""
    tool: str = ""
    outcome: str = ""
    took_s: float = 0.0
    client: str = ""
    count: int = 1


SetField = Literal["children", "links", "remote", "subscriptions"]
"""Fields of a record that are sets of names."""


class SessionStore(Protocol):
    """Sessions by id, and by alias.

    Missing, expired and ended are one answer, None. Every method may raise `StoreUnavailable`. Concurrent calls are
    safe: of two that create under one alias both get the same session, and no update of a field is lost.
    """

    async def create(self, session: Session, *, alias: str | None = None) -> Session:
        """Keep `session`. With an alias that already names a live session, return that one instead, used and confirmed.

        Raises:
            StoreFull: the store is bounded and every session in it is in use.
        """
        ...

    async def resume(self, session_id: str, principal: Principal, known: Session | None = None) -> Session | None:
        """The live session of that id, its idle time starting anew, and confirmed: a client came back with it.

        Somebody else's session is None as well, and is left untouched. `known` is the caller's copy of that session:
        while its `version` is current, a store need not send the record again.
        """
        ...

    async def named(self, alias: str) -> Session | None:
        """The live session that alias names, unchanged."""
        ...

    async def resume_alias(self, alias: str) -> Session | None:
        """The live session that alias names, as `resume` returns it; it names the principal as well."""
        ...

    async def peek(self, session_id: str) -> Session | None:
        """The live session of that id, unchanged."""
        ...

    async def touch(self, session_id: str) -> bool:
        """Start the idle time anew; False when the session is gone."""
        ...

    async def update(self, session_id: str, **fields: object) -> Session | None:
        """Set these fields of the record and no others. Not for times, metadata, owner and epoch."""
        ...

    async def change_set(
        self,
        session_id: str,
        field: Literal["children", "links", "remote", "subscriptions"],
        *,
        add: str = "",
        remove: str = "",
    ) -> Session | None:
        """Put one name into a field that is a set of names, or take one out, whatever others do to it meanwhile."""
        ...

    async def annotate(self, session_id: str, changes: Mapping[str, str | None]) -> Session | None:
        """Change the metadata, name by name; None removes one.

        Raises:
            InvalidMetadata: it would be too large; nothing changes.
        """
        ...

    async def end(self, session_id: str) -> bool:
        """Forget the session and its state at once. True for the one caller that ended it; again is harmless."""
        ...

    async def page(self, *, after: str = "", limit: int = 100) -> list[Session]:
        """Live sessions in order of id, from the first id beyond `after`."""
        ...

    async def gone(self, session_ids: Sequence[str]) -> list[str]:
        """Those of these ids that are not live sessions (any more)."""
        ...

    async def fate(self, session_id: str) -> Fate:
        """What became of that id: for logs, never for clients."""
        ...

    async def sweep(self) -> list[Gone]:
        """Forget and return what ended by itself. Each such session is returned exactly once, to one caller."""
        ...


class StateStore(Protocol):
    """The state of sessions, key by key. Values are compact JSON; equal values are equal bytes.

    Every operation is atomic. Every method may raise `SessionGone`, `StoreUnavailable`, and `InvalidState` for a key or
    a value beyond the limits, when nothing changes.
    """

    async def get(self, session_id: str, key: str) -> bytes | None:
        """The value, or None."""
        ...

    async def set(self, session_id: str, key: str, value: bytes) -> None:
        """Keep the value."""
        ...

    async def delete(self, session_id: str, key: str) -> bool:
        """Forget the key; whether it was there."""
        ...

    async def increment(self, session_id: str, key: str, by: int) -> int:
        """Add to an integer, 0 when it is missing; the sum. `InvalidState` when it is no integer of 64 bits."""
        ...

    async def compare_and_set(self, session_id: str, key: str, expected: bytes | None, value: bytes | None) -> bool:
        """Set (or, with None, delete) the key if its value is `expected` (None: if it is missing); whether it was."""
        ...

    async def keys(self, session_id: str) -> list[str]:
        """All keys, in order."""
        ...

    async def size(self, session_id: str) -> int:
        """Bytes of all keys and values."""
        ...


class EventLog(Protocol):
    """What went out on the event streams of a session, so that a client can read on after a break.

    A session has many streams; ids are unique to the session, and another session's id is never found. The log is
    capped per session; the oldest events go first.
    """

    async def append(self, session_id: str, stream: str, frame: bytes) -> str:
        """Keep a frame and return its event id."""
        ...

    async def finish(self, session_id: str, stream: str) -> None:
        """Nothing more will be appended to that stream; who follows it comes to its end."""
        ...

    def follow(self, session_id: str, stream: str, after: str | None) -> AsyncGenerator[Event, None]:
        """The events of a stream after that id, then each new one as it comes, until the stream is finished.

        `after` None means what nobody has been given yet (see `delivered`).
        """
        ...

    async def kept(self, session_id: str, stream: str, after: str) -> list[Event]:
        """The events of a stream after that one, as far as there are any yet. Raises `UnknownEvent`."""
        ...

    async def stream_of(self, session_id: str, event_id: str) -> str:
        """The stream that event belongs to. Raises `UnknownEvent`."""
        ...

    async def unfinished(self, session_id: str) -> list[str]:
        """The streams of a session that have not been finished, as far as events of them are still kept."""
        ...

    async def delivered(self, session_id: str, stream: str, event_id: str) -> None:
        """A client was given that event: a follower that names no event starts behind it."""
        ...

    async def drop(self, session_id: str) -> None:
        """Forget the session's streams; their followers come to an end."""
        ...


class Bus(Protocol):
    """Short messages between the processes that share a store, to those who listen now. Nothing is kept."""

    async def publish(self, topic: str, data: bytes) -> None:
        """Send to everyone who listens to that topic, this process included."""
        ...

    def listening(self, topic: str, hear: Callable[[bytes | None], None]) -> AbstractAsyncContextManager[None]:
        """Hear what is published inside the block. `hear(None)` means that messages may have been missed."""
        ...


class Directory(Protocol):
    """Which replicas live, and which of them owns a session."""

    async def beat(self, replica: str, address: str, lease_s: float) -> list[str]:
        """Live for another lease; the sessions that others have claimed from this replica since its last beat."""
        ...

    async def leave(self, replica: str) -> None:
        """End the lease at once."""
        ...

    async def address(self, replica: str) -> str | None:
        """Where that replica is reached; None when its lease has run out."""
        ...

    async def last_address(self, replica: str) -> str | None:
        """Where it was reached when it last lived: after an outage of the store no lease is left, and all may live."""
        ...

    async def replicas(self) -> dict[str, str]:
        """The addresses of all live replicas, by name."""
        ...

    async def claim(self, session_id: str, replica: str, *, epoch: int) -> int | None:
        """Become the owner if the session's epoch is still that one: the new epoch, or None when it is not."""
        ...

    async def told(self, replica: str, session_id: str) -> bool:
        """Whether that replica has heard, with a beat, that the session was claimed from it."""
        ...

    async def release(self, session_id: str, replica: str, *, epoch: int) -> bool:
        """Own it no longer; False when another has claimed it meanwhile. The epoch stays."""
        ...


class AuditTrail(Protocol):
    """What happened to sessions, in parts (`session_store.audit`): each is capped by itself, the oldest go first."""

    async def record(self, events: Sequence[AuditEvent]) -> None:
        """Keep these events."""
        ...

    async def recent(self, limit: int = 100) -> list[AuditEvent]:
        """The newest events, newest first."""
        ...


class Rates(Protocol):
    """How often something may happen, among all who share the store."""

    async def take(self, key: str, per_s: float, burst: int, times: int = 1) -> float:
        """Let it happen so many `times` more, and return 0; or return the seconds until it may, and change nothing.

        In the long run `per_s` times a second, `burst` times at once.
        """
        ...


class Quotas(Protocol):
    """How many of something may be held at once, among all who share the store."""

    async def hold(self, key: str, name: str, most: int, *, for_s: float) -> list[str]:
        """Hold one under that name, and return nothing; or, where `most` are held already, return the names of all.

        Holding what one holds is harmless. What nobody adds to for so many seconds is forgotten.
        """
        ...

    async def give_back(self, key: str, names: Sequence[str]) -> None:
        """Hold these no longer."""
        ...


class Marks(Protocol):
    """Names that stand for a while, the same for all who share the store. All may raise `StoreUnavailable`."""

    async def set(self, name: str, for_s: float) -> None:
        """Let it stand for so many seconds from now."""
        ...

    async def has(self, name: str) -> bool:
        """Whether it stands."""
        ...

    async def drop(self, name: str) -> None:
        """Take it away at once; harmless where there is none."""
        ...


class Backend(Protocol):
    """All that one URL gives."""

    @property
    def is_durable(self) -> bool:
        """Sessions outlive the process."""
        ...

    @property
    def is_shared(self) -> bool:
        """Many gateway processes may use it at once."""
        ...

    @property
    def sessions(self) -> SessionStore: ...

    @property
    def state(self) -> StateStore: ...

    @property
    def events(self) -> EventLog: ...

    @property
    def bus(self) -> Bus: ...

    @property
    def directory(self) -> Directory: ...

    @property
    def audit(self) -> AuditTrail: ...

    @property
    def rates(self) -> Rates: ...

    @property
    def quotas(self) -> Quotas: ...

    @property
    def marks(self) -> Marks: ...

    async def open(self) -> None:
        """Be ready for use. Raises `StoreError` with what is wrong and what to do."""
        ...

    async def ping(self) -> None:
        """Raises `StoreUnavailable` when the store does not answer."""
        ...

    async def try_write(self) -> None:
        """Write something small that is nobody's. Raises `StoreUnavailable` when the store takes nothing or is gone."""
        ...

    async def close(self) -> None:
        """Give everything back."""
        ...
