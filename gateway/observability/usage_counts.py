"""Count calls by tool, by principal and by client for each minute, and write the counts to the store as a history.

Names come from clients, so their number is limited: further names are counted together as `OTHERS`. Tools that a
server does not list, and methods that MCP does not define, are counted as `UNLISTED`. One principal can add at most
`MOST_CLIENTS_EACH` client names. Only `Figures.flush` does I/O.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from gateway.observability.escaped_text import shortened_line
from gateway.observability.metrics import BUCKETS_S, STREAMS
from gateway.observability.request_outcomes import OK, EndedCall
from gateway.protocol.methods import METHODS
from session_store import HistoryRecord, HistoryStore, Session
from transports.jsonrpc import UNREADABLE

OTHERS: Final = "(others)"
"""The name under which all tools, principals and clients beyond the limits are counted together."""

UNLISTED: Final = "(not listed)"
"""The name for all tools that a server does not list, and all methods that MCP does not define."""

MOST_TOOLS: Final = 200
MOST_WHO: Final = 200
"""The maximum number of principals, and of client names, that are counted individually."""
MOST_CLIENTS_EACH: Final = 50
"""The maximum number of client names that one principal can add."""

_NAME_CHARS: Final = 128
_SHORT_S, _LONG_S = 60, 600
_MOST_UNWRITTEN: Final = 32


class ToolFigures(msgspec.Struct, array_like=True):
    """The figures of the calls of one tool, or of one method other than `tools/call`."""

    server: str
    name: str
    """The name of the tool or the method."""
    calls: int = 0
    failed: int = 0
    total_s: float = 0.0
    """The sum of the durations."""
    counts: list[int] = []
    """The number of calls in each bucket of durations (`BUCKETS_S`), without zeros at the end."""
    longest_s: float = 0.0
    """The longest duration; 0 in records of older releases."""

    def add(self, other: "ToolFigures") -> None:
        self.calls += other.calls
        self.failed += other.failed
        self.total_s += other.total_s
        self.longest_s = max(self.longest_s, other.longest_s or other.total_s)  # none is longer than all of them
        self.counts += [0] * (len(other.counts) - len(self.counts))
        for place, count in enumerate(other.counts):
            self.counts[place] += count


class WhoFigures(msgspec.Struct, array_like=True):
    """The figures of one principal, or of all clients that have one name."""

    name: str
    """The name of the principal or the client."""
    calls: int = 0
    failed: int = 0
    sessions: int = 0
    """The number of sessions that were opened."""

    def add(self, other: "WhoFigures") -> None:
        self.calls += other.calls
        self.failed += other.failed
        self.sessions += other.sessions


class FigureRecord(msgspec.Struct):
    """The usage figures (counts and durations of calls) of one replica for one minute or ten minutes, as they are
    stored."""

    tools: list[ToolFigures] = []
    principals: list[WhoFigures] = []
    clients: list[WhoFigures] = []
    live: int = 0
    """The number of live sessions of the replica at the end of this time."""


_records: Final = msgspec.json.Decoder(FigureRecord)


class _Counted:
    """The usage figures (counts and durations of calls) of one minute or ten minutes, while they are counted."""

    __slots__ = ("at", "brought", "clients", "is_written", "live", "principals", "tools")

    def __init__(self, at: int) -> None:
        self.at = at
        self.tools: dict[tuple[str, str], ToolFigures] = {}
        self.principals: dict[str, WhoFigures] = {}
        self.clients: dict[str, WhoFigures] = {}
        self.brought: dict[str, str] = {}  # by name of a client, the principal that was the first to have it
        self.live = 0
        self.is_written = True

    def tool(self, key: tuple[str, str]) -> ToolFigures:
        """Return the figures of a tool (`key`: server and name); those of `OTHERS` if there are too many tools."""
        found = self.tools.get(key)
        if found is None:
            key = (key[0], shortened_line(key[1], _NAME_CHARS))
            if key not in self.tools and len(self.tools) >= MOST_TOOLS:
                key = ("", OTHERS)
            found = self.tools.setdefault(key, ToolFigures(*key, counts=[]))
        return found

    def principal(self, name: str) -> WhoFigures:
        """Return the figures of a principal; the figures of `OTHERS` if there are too many principals."""
        return _who(self.principals, name)

    def client(self, name: str, principal: str) -> WhoFigures:
        """Return the figures of all clients with this name. `principal`: whose client it is. If the name is new, and
        this principal has brought too many new names or there are too many in all, return the figures of `OTHERS`."""
        found = self.clients.get(name)
        if found is None:
            name = shortened_line(name, _NAME_CHARS)
            if name not in self.clients:
                if list(self.brought.values()).count(principal) >= MOST_CLIENTS_EACH:
                    name = OTHERS
                elif len(self.clients) < MOST_WHO:
                    self.brought[name] = principal
            found = _who(self.clients, name)
        return found

    def add(self, other: "_Counted") -> None:
        """Add the usage figures of a shorter period to these."""
        for tool in other.tools.values():
            self.tool((tool.server, tool.name)).add(tool)
        for who in other.principals.values():
            self.principal(who.name).add(who)
        for who in other.clients.values():
            self.client(who.name, other.brought.get(who.name, "")).add(who)
        self.live = other.live

    def record(self) -> FigureRecord:
        return FigureRecord([*self.tools.values()], [*self.principals.values()], [*self.clients.values()], self.live)


def _who(among: dict[str, WhoFigures], name: str) -> WhoFigures:
    found = among.get(name)
    if found is None:
        name = shortened_line(name, _NAME_CHARS)
        if name not in among and len(among) >= MOST_WHO:
            name = OTHERS
        found = among.setdefault(name, WhoFigures(name))
    return found


class Figures:
    """Count the calls of this replica, and write the counts to the store: one record for each minute, and one for each
    ten minutes."""

    def __init__(self, store: HistoryStore, replica: str) -> None:
        self._store = store
        self._replica = replica
        self._short = _Counted(0)
        self._long = _Counted(0)
        self._unwritten: dict[tuple[int, int], bytes] = {}

    def add_calls(self, calls: Sequence[EndedCall]) -> None:
        now = self._short
        now.is_written = False
        tools, find, buckets = now.tools, bisect_left, BUCKETS_S
        for call in calls:
            key = (call.server, _name_of(call))
            figures = tools.get(key) or now.tool(key)
            figures.calls += 1
            if call.outcome is not OK and call.outcome.is_failure:
                figures.failed += 1
            if call.tool or call.method not in STREAMS:  # a stream lasts as long as its client likes
                took_s = call.took_s
                figures.total_s += took_s
                figures.longest_s = max(figures.longest_s, took_s)
                place, counts = find(buckets, took_s), figures.counts
                if place >= len(counts):
                    counts += [0] * (place + 1 - len(counts))
                counts[place] += 1

    def count(self, session: Session, *, calls: int = 0, failed: int = 0, opened: int = 0) -> None:
        """Add calls, failed calls and opened sessions to the figures of a session's principal and client."""
        self._short.is_written = False
        more = WhoFigures("", calls, failed, opened)
        principal = str(session.principal)
        self._short.principal(principal).add(more)
        self._short.client(session.client.name, principal).add(more)

    def ends_minute(self, at: float) -> bool:
        """Return True if the current minute is over at the Unix time `at`."""
        return int(at) // _SHORT_S * _SHORT_S != self._short.at

    def tick(self, at: float, live: int) -> None:
        """If the current minute is over at the Unix time `at`, keep its record for the next `flush` and begin another
        minute. `live`: the number of live sessions on this replica. Called once a second, after the ended calls were
        counted."""
        if self.ends_minute(at):
            self._close(int(at) // _SHORT_S * _SHORT_S)
        if live != self._short.live:
            self._short.live, self._short.is_written = live, False

    def _close(self, minute: int) -> None:
        before, live = self._short, self._short.live
        if not before.at:  # what came before the first second was over
            before.at = minute
            return
        self._keep(before)
        long_at = before.at // _LONG_S * _LONG_S
        if long_at != self._long.at:
            self._long = _Counted(long_at)
        self._long.add(before)
        self._short = _Counted(minute)
        self._short.live, self._short.is_written = live, not live

    def _keep(self, counted: _Counted) -> None:
        """Encode the figures `counted` of a minute, and those of the ten minutes around it, for the next `flush`. Do
        nothing if the figures have not changed since the last call. Drop the oldest records if too many wait."""
        if not counted.is_written:
            counted.is_written = True
            self._unwritten[_SHORT_S, counted.at] = msgspec.json.encode(counted.record())
            long = _Counted(counted.at // _LONG_S * _LONG_S)
            if self._long.at == long.at:
                long.add(self._long)
            long.add(counted)
            self._unwritten[_LONG_S, long.at] = msgspec.json.encode(long.record())
            while len(self._unwritten) > _MOST_UNWRITTEN:
                del self._unwritten[next(iter(self._unwritten))]

    async def flush(self) -> None:
        """Write all changed records, including the one of the current minute. Records that could not be written are
        kept for the next call. Raises `StoreUnavailable`."""
        if self._short.at:
            self._keep(self._short)
        for (step_s, at), body in list(self._unwritten.items()):
            await self._store.write(step_s, HistoryRecord(at, self._replica, body))
            if self._unwritten.get((step_s, at)) is body:
                del self._unwritten[step_s, at]


def _name_of(call: EndedCall) -> str:
    if call.tool:
        return call.tool if call.is_listed else UNLISTED
    return call.method if call.method in METHODS else UNLISTED


def read_record(body: bytes) -> FigureRecord:
    """Decode a stored record. Return an empty one if it is invalid, because another version of the gateway wrote it."""
    try:
        return _records.decode(body)
    except UNREADABLE:
        return FigureRecord()


def merged(records: Iterable[FigureRecord]) -> FigureRecord:
    """Return one record with the sums of several records, such as those of all replicas; `live` is summed, too. The
    number of names is not limited here, because it is limited in each record."""
    tools: dict[tuple[str, str], ToolFigures] = {}
    principals: dict[str, WhoFigures] = {}
    clients: dict[str, WhoFigures] = {}
    live = 0
    for record in records:
        for tool in record.tools:
            tools.setdefault((tool.server, tool.name), ToolFigures(tool.server, tool.name, counts=[])).add(tool)
        for own, others in ((principals, record.principals), (clients, record.clients)):
            for who in others:
                own.setdefault(who.name, WhoFigures(who.name)).add(who)
        live += record.live
    return FigureRecord([*tools.values()], [*principals.values()], [*clients.values()], live)
