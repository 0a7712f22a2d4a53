"""Collect the timeline of each session (its calls and events), and write it to the store.

Entries are buffered for some seconds and written together. An idle session uses no memory here. A session that calls
without pause adds about a hundred entries to each write, because similar calls are combined into one entry.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from gateway.observability.audit import ENDS
from gateway.observability.escaped_text import shortened_line
from gateway.observability.request_outcomes import OK, EndedCall, Outcome
from session_store import (
    AuditEvent,
    Session,
    StoreUnavailable,
    TimelineEntry,
    TimelineHead,
    TimelinePart,
    TimelineStore,
)
from session_store.ports.timelines import MAX_ENTRIES, TimelineKind
from session_store.redaction import scrubbed_start
from session_store.session import redact
from transports.work_steps import let_others_run, slices

_NEWEST_ALONE: Final = 24
_FAILED_ALONE: Final = 24
"""How many calls of a session have entries of their own in one write: `_NEWEST_ALONE` of its newest calls (up to twice
as many), and `_FAILED_ALONE` of its older failed calls. All other calls are combined."""
_MOST_SUMS: Final = 40
_MOST_SESSIONS: Final = 20_000
_WRITTEN_AT_ONCE: Final = 64
_NAME_CHARS: Final = 128
_WHY_CHARS: Final = 300
_KINDS: Final[dict[str, TimelineKind]] = {
    "created": "session",
    "resumed": "session",
    "ended": "session",
    "expired": "session",
    "evicted": "session",
    "refused": "refusal",
    "blocked": "refusal",
    "task": "task",
}
"""The events of the audit trail that are added to timelines, with the kind of the entry."""
INITIALIZED_AGAIN: Final = "initialized again"
"""The reason of a `resumed` event if the client repeated the handshake, and the session did not change its replica."""


class _Sum:
    """Several calls with the same tool and outcome, combined into one entry."""

    __slots__ = ("began", "count", "ended", "took_s")

    def __init__(self, call: EndedCall) -> None:
        self.began = call.at - call.took_s
        self.count = 0
        self.took_s = self.ended = 0.0


class _Waiting:
    """The timeline entries of one session that are not written to the store yet."""

    __slots__ = """_calls _counted _entries _failed _sums ended ended_at failed session total""".split()

    def __init__(self) -> None:
        self.session: Session | None = None
        self._calls: list[EndedCall] = []  # the newest calls
        self._failed: deque[EndedCall] = deque()  # the newest failures before them
        self._sums: dict[tuple[str, str, Outcome], _Sum] = {}  # all others
        self._entries: list[TimelineEntry] = []
        self.total = self.failed = 0
        self._counted = (0, 0)
        self.ended = ""
        self.ended_at = 0.0

    def add_call(self, call: EndedCall) -> None:
        """Add an ended call. If there are too many calls, combine the oldest ones."""
        self._calls.append(call)
        if len(self._calls) >= 2 * _NEWEST_ALONE:
            calls, self._calls = self._calls[:_NEWEST_ALONE], self._calls[_NEWEST_ALONE:]
            self._sum_up(calls)

    def _sum_up(self, calls: list[EndedCall]) -> None:
        self.total += len(calls)
        for call in calls:
            if call.outcome is not OK and call.outcome.is_failure:
                self.failed += 1
                self._failed.append(call)
                if len(self._failed) <= _FAILED_ALONE:
                    continue
                call = self._failed.popleft()
            key = (call.server, call.tool or call.method, call.outcome)
            summed = self._sums.get(key)
            if summed is None:
                if len(self._sums) >= _MOST_SUMS:
                    key = ("", "(others)", OK)
                summed = self._sums.setdefault(key, _Sum(call))
            summed.count += 1
            summed.took_s += call.took_s
            summed.ended = call.at

    @property
    def known_session(self) -> Session | None:
        """Return the record of the session; None if no call or event had it."""
        return self._calls[-1].session if self._calls else self.session

    def add(self, entry: TimelineEntry) -> None:
        """Add an entry that is not a call. Drop the oldest entries if there are too many."""
        self._entries.append(entry)
        if len(self._entries) > 2 * MAX_ENTRIES:
            del self._entries[:-MAX_ENTRIES]

    def take_uncounted(self) -> tuple[int, int]:
        """Return how many calls were added since the last call of this method, and how many of these failed."""
        total, failed = self.total + len(self._calls), self.failed + _failures(self._calls)
        before, self._counted = self._counted, (total, failed)
        return total - before[0], failed - before[1]

    def part(self, name: str, replica: str) -> TimelinePart:
        """Return the entries, and the facts about their session, in the form that is added to the store. `name`: the
        shortened session id, as in logs. `replica`: the name of this replica, for each entry."""
        calls = [*self._failed, *self._calls]
        entries = [*self._entries, *map(_entry, calls)]
        entries += [_summed(key, some) for key, some in self._sums.items()]
        entries = sorted([replace(entry, replica=replica) for entry in entries], key=attrgetter("at"))
        head = replace(
            head_of(name, self.known_session),
            ended=self.ended,
            ended_at=self.ended_at,
            calls=self.total + len(self._calls),
            failed=self.failed + _failures(self._calls),
        )
        return TimelinePart(head=head, entries=entries[-MAX_ENTRIES:])

    def add_later(self, since: "_Waiting", later: TimelinePart) -> None:
        """Add the entries and counts of `since` to this object. Called if this object could not be written to the
        store; `since` was collected during the attempt. `later`: the result of `since.part`."""
        for entry in later.entries:
            self.add(entry)
        self.session = since.known_session or self.known_session
        self.total += later.head.calls
        self.failed += later.head.failed
        self._counted = (self._counted[0] + since._counted[0], self._counted[1] + since._counted[1])
        self.ended, self.ended_at = later.head.ended or self.ended, later.head.ended_at or self.ended_at


def _failures(calls: list[EndedCall]) -> int:
    return sum([call.outcome is not OK and call.outcome.is_failure for call in calls])


class Timelines:
    """Collect the timeline entries of all sessions, by the shortened session id.

    `replica`: the name of this replica. `count` is called before entries are written, with three arguments: a session,
    the number of its calls since the last time, and how many of these calls have failed.
    """

    def __init__(self, store: TimelineStore, replica: str, count: Callable[[Session, int, int], None]) -> None:
        self._store = store
        self._count = count
        self._replica = replica
        self._waiting: dict[str, _Waiting] = {}
        self._written: dict[str, TimelinePart] = {}  # being written now

    def _of(self, name: str) -> _Waiting | None:
        waiting = self._waiting.get(name)
        if waiting is None:
            if len(self._waiting) >= _MOST_SESSIONS:  # the store is away
                return None
            waiting = self._waiting[name] = _Waiting()
        return waiting

    def add_calls(self, calls: Sequence[EndedCall]) -> None:
        """Add ended calls to the timelines of their sessions."""
        for call in calls:
            if (waiting := self._of(redact(call.session.id))) is not None:
                waiting.add_call(call)

    def add(self, session: Session, entry: TimelineEntry) -> None:
        """Add an entry to the timeline of a session. The entry's text is cut, redacted and escaped."""
        if (waiting := self._of(redact(session.id))) is not None:
            waiting.session = session
            waiting.add(_harmless(entry))

    def add_event(self, event: AuditEvent, session: Session | None) -> None:
        """Add an event of the audit trail, if it is about a session. `session`: its record; None if the caller does not
        have it."""
        kind = _KINDS.get(event.event)
        if kind is None or not event.session or (waiting := self._of(event.session)) is None:
            return
        if session is not None:
            waiting.session = session
        server, name = "", str(event.event)
        if kind in ("task", "refusal"):
            is_server = "/" in event.tool or event.event == "blocked"
            server, _, name = event.tool.partition("/") if is_server else ("", "", event.tool)
        if event.event == "resumed" and event.reason != INITIALIZED_AGAIN:
            kind = "move"
        if event.event in ENDS:
            waiting.ended, waiting.ended_at = event.event, event.at
        entry = TimelineEntry(
            event.at,
            kind,
            server,
            name,
            event.outcome,
            count=event.count,
            correlation=event.correlation,
            why=": ".join(filter(None, (event.reason, event.why))),
        )
        waiting.add(_harmless(entry))

    def part_of(self, name: str) -> TimelinePart | None:
        """Return the part of a session's timeline that is not in the store yet; None if there is none. `name`: the
        shortened session id."""
        written, waiting = self._written.get(name), self._waiting.get(name)
        if waiting is None:
            return written
        part = waiting.part(name, self._replica)
        return part if written is None else replace(part, entries=[*written.entries, *part.entries])

    def count(self) -> None:
        """Pass all calls that were not counted yet to the callback `count` of this object, which counts them by
        principal and client."""
        self._count_of(self._waiting.values())

    def _count_of(self, some: Iterable[_Waiting]) -> None:
        for waiting in some:
            calls, failed = waiting.take_uncounted()
            if calls and (session := waiting.known_session) is not None:
                self._count(session, calls, failed)

    async def flush(self, *, ended_only: bool = False) -> None:
        """Write all buffered entries to the store, or only those of ended sessions. Entries that could not be written
        stay buffered, up to a limit. Raises `StoreUnavailable`."""
        wanted = [name for name, waiting in self._waiting.items() if waiting.ended or not ended_only]
        for names in slices(wanted, _WRITTEN_AT_ONCE):
            # Two may write at once: the regular write, and that for an operator who is looking.
            free = [name for name in names if name in self._waiting and name not in self._written]
            taken = {name: self._waiting.pop(name) for name in free}
            self._count_of(taken.values())
            parts = {name: waiting.part(name, self._replica) for name, waiting in taken.items()}
            self._written.update(parts)
            try:
                await self._store.add([*parts.values()])
            except StoreUnavailable:
                for name, before in taken.items():
                    if (since := self._waiting.get(name)) is not None:
                        before.add_later(since, since.part(name, self._replica))
                    self._waiting[name] = before
                raise
            finally:
                for name in parts:
                    del self._written[name]
            await let_others_run()


def head_of(name: str, session: Session | None) -> TimelineHead:
    """Return the facts of a timeline about its session (`TimelineHead`). `name`: the shortened session id. `session`:
    the session's record; if it is None, the facts have only this id."""
    if session is None:
        return TimelineHead(session=name)
    return TimelineHead(
        session=name,
        principal=shortened_line(str(session.principal), _NAME_CHARS),
        client=shortened_line(session.client.name, _NAME_CHARS),
        endpoint=session.endpoint,
        era=session.era,
        workspace=session.context.workspace,
        created_at=session.created_at,
    )


def _entry(call: EndedCall) -> TimelineEntry:
    took_s = call.took_s
    return _harmless(
        TimelineEntry(
            round(call.at - took_s, 3),
            "call",
            call.server,
            call.tool or call.method,
            str(call.outcome),
            round(took_s, 6),
            until=round(call.at, 3),
            correlation=call.correlation,
            why=call.why,
        )
    )


def _summed(key: tuple[str, str, Outcome], calls: _Sum) -> TimelineEntry:
    server, name, outcome = key
    took_s, until = round(calls.took_s, 6), round(calls.ended, 3)
    return _harmless(
        TimelineEntry(round(calls.began, 3), "call", server, name, str(outcome), took_s, calls.count, until)
    )


def _harmless(entry: TimelineEntry) -> TimelineEntry:
    why = entry.why and shortened_line(scrubbed_start(entry.why, _WHY_CHARS), _WHY_CHARS)
    return replace(entry, name=shortened_line(entry.name, _NAME_CHARS), why=why)
