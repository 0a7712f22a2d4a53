"""Recognize request heads that connections repeat, and count how requests were served. Pure: no I/O, parses no new
head.

A head is stored as bytes, after a parser has read it and its request was served. A later head repeats it if all bytes
are equal except the digits of Content-Length and the value of `traceparent`. So a parser would read the same from both,
except the length of the body and the trace. A program with many sessions sends the heads of all of them over each
connection of its pool, so connections from one address share their stored heads.
"""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Generic, Literal, TypeVar, get_args
from weakref import WeakSet, WeakValueDictionary

import msgspec

from transports.inbound.asgi_bypass_post import RepeatedHead
from transports.inbound.unauthenticated_limits import SMALL_BODY_BYTES, Limits
from transports.inbound_port import HeaderList

T = TypeVar("T")

MAX_HEADS: Final = 64
"""Maximum number of request heads that one connection stores. A 2026-07-28 client names the tool in the head, and calls
several tools. A program with many sessions repeats the heads of all of them on each connection."""

MAX_HEAD_BYTES: Final = 8 << 10
MAX_SEEN: Final = 4_096
"""The most hashes of heads that a listener stores, to recognize the second occurrence of a head."""

MAX_MEMORY_BYTES: Final = 512 << 10
"""The most bytes that one connection may use for its heads and their fast paths, by estimate
(`Template.memory_bytes`)."""

LEAST_MEMORY_BYTES: Final = 48 << 10
"""Maximum bytes that one connection may use for its heads while all connections together use `MAX_TOTAL_BYTES` or
more."""

MAX_TOTAL_BYTES: Final = 64 << 20

_DIGITS: Final = re.compile(rb"(?:0|[1-9][0-9]{0,6})(?![0-9])")
"""A number of at most 7 digits in its usual form."""

_END: Final = b"\r\n\r\n"
_PLAIN: Final = re.compile(
    rb"POST /[!-~]* HTTP/1\.1\r\n(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n)+\r\n"
)
"""A head that every parser divides into the same lines: without the bytes that only some parsers take for the end of a
line or of the head (RFC 9112 §2.2, §5.2)."""

_LENGTH: Final = re.compile(rb"\r\ncontent-length: ?([0-9]+)\r\n", re.IGNORECASE)
_TRACE: Final = re.compile(rb"\r\n(?i:traceparent): ?(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})\r\n")
"""Matches a `traceparent` header. Clients with tracing send a new value with each request (W3C Trace Context §3.2)."""

_TRACE_FORM: Final = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_BYTES: Final = 55
_ABOUT_FRAMING: Final = frozenset({b"expect", b"te", b"trailer", b"transfer-encoding", b"upgrade"})


class Template(msgspec.Struct, frozen=True):
    """A request head with holes for the digits of its Content-Length, and for a `traceparent` of the usual form."""

    before: tuple[tuple[bytes, int, bool], ...]
    """For each hole: the bytes in front of it, their number, and True if the hole is for the `traceparent`."""
    last: bytes
    """The bytes behind the last hole."""
    headers: int
    """The number of headers."""

    def read(self, data: bytes) -> tuple[int, int, bytes] | None:
        """Compare the head with the beginning of `data`. Return the size of the head, the length of the body, and the
        trace; empty if there is none. Return None if `data` begins with another head, or with an incomplete one."""
        place, length, trace = 0, 0, b""
        for part, size, is_trace in self.before:
            if not data.startswith(part, place):
                return None
            place += size
            if is_trace:
                end = place + _TRACE_BYTES
                trace = data[place:end]
                if _TRACE_FORM.fullmatch(trace) is None:
                    return None
            else:
                digits = _DIGITS.match(data, place)
                if digits is None:
                    return None
                end, length = digits.end(), int(digits[0])
            place = end
        last = self.last
        return (place + len(last), length, trace) if data.startswith(last, place) else None

    @property
    def memory_bytes(self) -> int:
        """Return an estimate of the memory for the head in bytes: its bytes, the headers as text, the objects around
        each, and the values that the handler keeps."""
        return 2_500 + 2 * sum([size for _, size, _ in self.before], len(self.last)) + 120 * self.headers


_Key = tuple[tuple[str, ...], Template]


class HeadMatch(msgspec.Struct, Generic[T], frozen=True):
    """A stored head with which received bytes begin, and what differs in these bytes."""

    known: "StoredHead[T]"
    head_bytes: int
    """The size of the received head."""
    body_bytes: int
    """The size of the body that follows it, as its Content-Length says."""
    trace: bytes = b""
    """The value of its `traceparent`; empty if it has none."""


def template_of(head: bytes, headers: HeaderList) -> Template | None:
    """Return the template of a head, which a parser has read as `headers` with lower-case names. Return None if the
    head must not be stored: its form is unusual, or it says more about body or connection than one Content-Length."""
    if len(head) > MAX_HEAD_BYTES or _PLAIN.fullmatch(head) is None or head.count(b"\r\n") != len(headers) + 2:
        return None
    lengths = [value for name, value in headers if name == b"content-length"]
    for name, value in headers:
        if name in _ABOUT_FRAMING or (name == b"connection" and value.strip(b" \t").lower() != b"keep-alive"):
            return None
    found = list(_LENGTH.finditer(head))
    if len(found) != 1 or lengths != [found[0][1]] or _DIGITS.fullmatch(lengths[0]) is None:
        return None
    if len({name for name, _ in headers}) < len(headers):
        return None
    return _cut(head)


def _cut(head: bytes) -> Template | None:
    length, trace = _LENGTH.search(head), _TRACE.search(head)
    if length is None:
        return None
    holes = sorted([(length.span(1), False)] + ([] if trace is None else [(trace.span(1), True)]))
    before, end = list[tuple[bytes, int, bool]](), 0
    for (begin, next_end), is_trace in holes:
        before.append((head[end:begin], begin - end, is_trace))
        end = next_end
    return Template(tuple(before), head[end:], head.count(b"\r\n") - 2)


class HeadMemory:
    """Count the bytes that are used for one stored head. They are subtracted from the total when no connection stores
    the head any more."""

    __slots__ = ("_shared", "bytes", "holders")

    def __init__(self, shared: "SharedHeads[Any]") -> None:
        self._shared = shared
        self.bytes = 0
        self.holders: WeakSet[ConnectionHeads[Any]] = WeakSet()
        """The objects of the connections that store the head."""

    def grow(self, size: int) -> None:
        """Add `size`, which may be negative, to the counted bytes. If they grow, the connections that store the head
        drop other heads to make room."""
        self.bytes += size
        self._shared.total += size
        if size > 0:
            for heads in list(self.holders):
                heads.make_room()

    def __del__(self) -> None:
        self._shared.total -= self.bytes


class StoredHead(Generic[T]):
    """A stored head and the value that is stored with it. `memory` counts the bytes of both."""

    __slots__ = ("__weakref__", "memory", "template", "value")

    def __init__(self, template: Template, value: T, memory: HeadMemory) -> None:
        self.template = template
        self.value = value
        self.memory = memory
        memory.grow(template.memory_bytes)


class SharedHeads(Generic[T]):
    """Share stored heads between the connections of a listener. A head is stored once, while any connection uses it."""

    __slots__ = ("_seen", "known", "total")

    def __init__(self) -> None:
        self.total = 0
        """The bytes that are held for all heads."""
        self.known: WeakValueDictionary[_Key, StoredHead[T]] = WeakValueDictionary()
        self._seen: dict[int, None] = {}

    @property
    def bound(self) -> int:
        """Return the maximum bytes that one connection may use for its heads now."""
        return MAX_MEMORY_BYTES if self.total < MAX_TOTAL_BYTES else LEAST_MEMORY_BYTES

    def is_repeated(self, seen: int) -> bool:
        """Return True if a head with the hash `seen` has come before. Otherwise store the hash, and return False."""
        if seen in self._seen:
            return True
        self._seen[seen] = None
        if len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        return False


class ConnectionHeads(Generic[T]):
    """The heads that one connection has stored. Also finds those that another connection from the same place has
    stored.

    `where` is the place: the address of the client, and the scheme. The meaning of a request depends only on its bytes
    and its place."""

    __slots__ = ("__weakref__", "_has_ended", "_known", "_last", "_seen", "_shared", "_where")

    def __init__(self, shared: SharedHeads[T], where: tuple[str, ...] = ()) -> None:
        self._shared = shared
        self._where = where
        self._known: dict[_Key, StoredHead[T]] = {}  # in the order of their last use
        self._last: StoredHead[T] | None = None
        self._seen: list[int] = []
        self._has_ended = False

    def __len__(self) -> int:
        return len(self._known)

    def match(self, data: bytes) -> HeadMatch[T] | None:
        """Return the stored head with which `data` begins. Return None if the head is not stored, or has not arrived
        completely."""
        last = self._last
        if last is not None and (read := last.template.read(data)) is not None:
            return HeadMatch(last, *read)
        end = data.find(_END, 0, MAX_HEAD_BYTES)
        template = _cut(data[: end + len(_END)]) if end >= 0 else None
        if template is None:
            return None
        key = (self._where, template)
        known = self._known.get(key) or self._shared.known.get(key)
        if known is None or (read := known.template.read(data)) is None:
            return None
        self._keep(key, known)
        return HeadMatch(known, *read)

    def is_repeated(self, head: bytes) -> bool:
        """Return True if the same head has come from this connection or place before. Store the hash of the head."""
        template = _cut(head)
        if template is None:
            return False
        # The connection has hashes of its own too: others that send ever new heads must not push these out.
        seen = hash((self._where, template))
        is_repeated = self._shared.is_repeated(seen) or seen in self._seen
        self._seen = [*self._seen[1 - MAX_HEADS * 2 :], seen]
        return is_repeated

    def add(self, template: Template, value: T) -> HeadMemory | None:
        """Store a head with a value, and return the counter of its bytes. Return None if the connection has ended."""
        if self._has_ended:
            return None
        known = StoredHead(template, value, HeadMemory(self._shared))
        key = (self._where, template)
        self._shared.known[key] = known
        self._keep(key, known)
        return known.memory

    def _keep(self, key: _Key, known: StoredHead[T]) -> None:
        before = self._known.pop(key, None)
        self._known[key] = self._last = known
        if before is known:
            return
        if before is not None:
            before.memory.holders.discard(self)
        known.memory.holders.add(self)
        self.make_room()

    def make_room(self) -> None:
        """Drop the least recently used heads while there are too many, or they use too many bytes."""
        size = sum(known.memory.bytes for known in self._known.values())
        while len(self._known) > MAX_HEADS or (self._known and size > self._shared.bound):
            oldest = self._known.pop(next(iter(self._known)))
            oldest.memory.holders.discard(self)
            size -= oldest.memory.bytes
            if oldest is self._last:
                self._last = None

    def forget(self, template: Template) -> None:
        """Drop a head, if it is stored. Connections that do not store it themselves cannot find it any more."""
        key = (self._where, template)
        known = self._known.pop(key, None)
        self._shared.known.pop(key, None)
        if known is not None:
            known.memory.holders.discard(self)
        if known is self._last:
            self._last = None

    def close(self) -> None:
        """Drop all heads, and store none from now on, because the connection has ended."""
        self._known.clear()
        self._seen.clear()
        self._last = None
        self._has_ended = True


# -- what connections share, and what the app offers them

HeadUse = Literal["fast", "direct", "new_head", "size", "pipelined", "no_request", "streamed", "refused", "interrupted"]
"""The ways in which POSTs were served. `fast`: by the decision on an earlier call like this one (the fast path).
`direct`: without parser and ASGI, because the head was stored. Each other name is a reason why a request was served in
the usual way. `new_head`: the head was new. `size`: the body was too large, or empty. `pipelined`: further bytes came
with it. `no_request`: it was not a single request. `streamed`: the answer was an event stream. `refused`: it was
refused, or belongs to another process. `interrupted`: the client did not read or left, or the process ended."""

OUTCOMES: Final[tuple[HeadUse, ...]] = get_args(HeadUse)


class HeadCache:
    """Share stored heads between the connections of a listener, and count in `counts` how requests were served
    (`OUTCOMES`).

    `may_serve` returns False while the process ends or hands over its work. Each response then has to end its
    connection, so no stored head is used. A body of more than `body_bytes` is left to parser and ASGI, too: they
    authenticate the sender before they read all of it.
    """

    def __init__(self, counts: Counter[str], may_serve: Callable[[], bool], limits: Limits) -> None:
        self.counts = counts
        self.may_serve = may_serve
        self.body_bytes = min(limits.body_bytes, SMALL_BODY_BYTES)
        self.heads: SharedHeads[RepeatedHead] = SharedHeads()


REPEATS: Final = "mcp.repeats"
"""The key in the scope of a POST that holds the `HeadOffer` of its connection."""


class HeadOffer:
    """Lets the app that has served a POST store the POST's head for its connection."""

    __slots__ = ("_head", "_headers", "_heads")

    def __init__(self, heads: ConnectionHeads[RepeatedHead], head: bytes, headers: HeaderList) -> None:
        self._heads = heads
        self._head = head
        self._headers = headers

    def store(self, describe: Callable[[], RepeatedHead]) -> None:
        """Store the head, with the value that `describe` returns, if the same head came before. Call this only for a
        served and authenticated request."""
        if self._heads.is_repeated(self._head) and (template := template_of(self._head, self._headers)) is not None:
            repeated = describe()
            if (memory := self._heads.add(template, repeated)) is not None:
                repeated.count_memory_with(memory.grow)
