"""The request heads that connections repeat. Pure: no I/O, and no parsing of a head that no parser has read.

A head is remembered as bytes, after a parser has read it and its request was served. It is repeated if all bytes are
the same but the digits of Content-Length, and those of a `traceparent`. So a parser would find the same in it, another
end of the body and another trace. A program that has many sessions sends the heads of all of them over each connection
of its pool, so what one connection knows serves others from the same address.
"""

import re
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet, WeakValueDictionary

import msgspec

from transports.inbound_port import HeaderList

__all__ = [
    "LEAST_MEMORY_BYTES",
    "MAX_HEADS",
    "MAX_HEAD_BYTES",
    "MAX_MEMORY_BYTES",
    "MAX_SEEN",
    "MAX_TOTAL_BYTES",
    "Found",
    "HeldBytes",
    "KnownHead",
    "RememberedHeads",
    "SharedHeads",
    "Template",
    "template_of",
]

T = TypeVar("T")
_Key = tuple[tuple[str, ...], tuple[bytes, ...]]

MAX_HEADS: Final = 64
"""2026-07-28 clients name the tool in the head, and use some tools in turn. If a program has many sessions, each of its
connections repeats the heads of all of them."""

MAX_HEAD_BYTES: Final = 8 << 10
MAX_SEEN: Final = 4_096
"""Heads of a listener that came once, of which the hashes are kept."""

MAX_MEMORY_BYTES: Final = 512 << 10
"""What one connection may hold for its heads, by the estimate of `Template.memory_bytes`."""

LEAST_MEMORY_BYTES: Final = 48 << 10
"""What each may hold while all connections together hold `MAX_TOTAL_BYTES` or more."""

MAX_TOTAL_BYTES: Final = 64 << 20

_DIGITS: Final = re.compile(rb"(?:0|[1-9][0-9]{0,6})(?![0-9])")
"""The usual form of a number with few digits."""

_END: Final = b"\r\n\r\n"
_PLAIN: Final = re.compile(
    rb"POST /[!-~]* HTTP/1\.1\r\n(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n)+\r\n"
)
"""Nothing that readers could take for another end of a line or of the head (RFC 9112 §2.2, §5.2)."""

_LENGTH: Final = re.compile(rb"\r\ncontent-length: ?([0-9]+)\r\n", re.IGNORECASE)
_TRACE: Final = re.compile(rb"\r\n(?i:traceparent): ?(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})\r\n")
"""Tracing clients send another one with each request (W3C Trace Context §3.2)."""

_TRACE_FORM: Final = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_BYTES: Final = 55
_ABOUT_FRAMING: Final = frozenset({b"expect", b"te", b"trailer", b"transfer-encoding", b"upgrade"})


class Template(msgspec.Struct, frozen=True):
    """A head without the digits of its Content-Length, and without its `traceparent` if it has one of the usual form.

    `before` has the bytes before each of these holes, how many they are, and whether the hole is the trace. `last` are
    the bytes behind the last one. `headers` is how many headers it has.
    """

    before: tuple[tuple[bytes, int, bool], ...]
    last: bytes
    headers: int

    @property
    def parts(self) -> tuple[bytes, ...]:
        """The bytes around the holes."""
        return (*(part for part, _, _ in self.before), self.last)

    def read(self, data: bytes) -> tuple[int, int, bytes] | None:
        """Return where the head ends in data that begins with it, the length of its body, and its trace. None: the data
        begins with something else, or the head is not complete."""
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
        """About what is held for the head: these bytes, the headers as text, the objects around each, and what the
        handler keeps."""
        return 2_500 + 2 * sum(map(len, self.parts)) + 120 * self.headers


class Found(msgspec.Struct, Generic[T], frozen=True):
    """A repeated head: what is known of it, how many bytes it has, how many its body has, and its trace."""

    known: "KnownHead[T]"
    head_bytes: int
    body_bytes: int
    trace: bytes = b""


def template_of(head: bytes, headers: HeaderList) -> Template | None:
    """Return the template of a head from which a parser has read these headers, with lower-case names. None if the head
    must not be remembered: it says more about its body or its connection than one length, or it has an unusual form."""
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
    """Return a head without its length and its trace."""
    length, trace = _LENGTH.search(head), _TRACE.search(head)
    if length is None:
        return None
    holes = sorted([(length.span(1), False)] + ([] if trace is None else [(trace.span(1), True)]))
    ends = [0, *(end for (_, end), _ in holes)]
    begins = [*(begin for (begin, _), _ in holes), len(head)]
    parts = tuple(head[begin:end] for begin, end in zip(ends, begins, strict=True))
    before = tuple((part, len(part), is_trace) for part, (_, is_trace) in zip(parts, holes, strict=False))
    return Template(before, parts[-1], head.count(b"\r\n") - 2)


class HeldBytes:
    """What is held for one head, in bytes. They are given back when nobody has the head any more."""

    __slots__ = ("_shared", "bytes", "holders")

    def __init__(self, shared: "SharedHeads[Any]") -> None:
        self._shared = shared
        self.bytes = 0
        self.holders: WeakSet[RememberedHeads[Any]] = WeakSet()
        """Who has the head."""

    def hold(self, size: int) -> None:
        """Count these bytes; a negative size gives them back. Whoever has the head makes room for them."""
        self.bytes += size
        self._shared.total += size
        if size > 0:
            for heads in list(self.holders):
                heads.make_room()

    def __del__(self) -> None:
        self._shared.total -= self.bytes


class KnownHead(Generic[T]):
    """A head, and what is remembered of it. `held` counts what that takes."""

    __slots__ = ("__weakref__", "held", "remembered", "template")

    def __init__(self, template: Template, remembered: T, held: HeldBytes) -> None:
        self.template = template
        self.remembered = remembered
        self.held = held
        held.hold(template.memory_bytes)


class SharedHeads(Generic[T]):
    """What all connections of a listener remember. Each head is kept once, for as long as one of them has it."""

    __slots__ = ("_seen", "known", "total")

    def __init__(self) -> None:
        self.total = 0
        """What all heads take, in bytes."""
        self.known: WeakValueDictionary[_Key, KnownHead[T]] = WeakValueDictionary()
        self._seen: dict[int, None] = {}

    @property
    def bound(self) -> int:
        """Return what one connection may hold now, in bytes."""
        return MAX_MEMORY_BYTES if self.total < MAX_TOTAL_BYTES else LEAST_MEMORY_BYTES

    def is_repeated(self, seen: int) -> bool:
        """Return True if a head with that hash came before. Notes it for the next time."""
        if seen in self._seen:
            return True
        self._seen[seen] = None
        if len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        return False


class RememberedHeads(Generic[T]):
    """Finds the heads that one connection repeats, or that another one has had which comes from the same place.

    `where` is all but the bytes that a request's meaning depends on: the address of the client, and the scheme.
    """

    __slots__ = ("__weakref__", "_has_ended", "_known", "_last", "_seen", "_shared", "_where")

    def __init__(self, shared: SharedHeads[T], where: tuple[str, ...] = ()) -> None:
        self._shared = shared
        self._where = where
        self._known: dict[_Key, KnownHead[T]] = {}  # the one that was found last is the last one
        self._last: KnownHead[T] | None = None
        self._seen: list[int] = []
        self._has_ended = False

    def __len__(self) -> int:
        return len(self._known)

    def match(self, data: bytes) -> Found[T] | None:
        """Return the remembered head that these bytes begin with. The head has to be complete; the body need not be."""
        last = self._last
        if last is not None and (read := last.template.read(data)) is not None:
            return Found(last, *read)
        end = data.find(_END, 0, MAX_HEAD_BYTES)
        key = self._key(data[: end + len(_END)]) if end >= 0 else None
        if key is None:
            return None
        known = self._known.get(key) or self._shared.known.get(key)
        if known is None or (read := known.template.read(data)) is None:
            return None
        self._keep(key, known)
        return Found(known, *read)

    def _key(self, head: bytes) -> _Key | None:
        cut = _cut(head)
        return None if cut is None else (self._where, cut.parts)

    def is_repeated(self, head: bytes) -> bool:
        """Return True if a head like this has come from there before. Notes it for the next time."""
        key = self._key(head)
        if key is None:
            return False
        # Its own too: others that send ever new heads must not have those forgotten which are repeated here.
        seen = hash(key)
        is_repeated = self._shared.is_repeated(seen) or seen in self._seen
        self._seen = [*self._seen[1 - MAX_HEADS * 2 :], seen]
        return is_repeated

    def add(self, template: Template, remembered: T) -> HeldBytes | None:
        """Remember a head, and return what counts the bytes that are held for it. None: the connection has ended."""
        if self._has_ended:
            return None
        known = KnownHead(template, remembered, HeldBytes(self._shared))
        key = (self._where, template.parts)
        self._shared.known[key] = known
        self._keep(key, known)
        return known.held

    def _keep(self, key: _Key, known: KnownHead[T]) -> None:
        before = self._known.pop(key, None)
        self._known[key] = self._last = known
        if before is known:
            return
        if before is not None:
            before.held.holders.discard(self)
        known.held.holders.add(self)
        self.make_room()

    def make_room(self) -> None:
        """Forget the heads that were not repeated for longest, if there are too many, or too much is held for them."""
        size = sum(known.held.bytes for known in self._known.values())
        while len(self._known) > MAX_HEADS or (self._known and size > self._shared.bound):
            oldest = self._known.pop(next(iter(self._known)))
            oldest.held.holders.discard(self)
            size -= oldest.held.bytes
            if oldest is self._last:
                self._last = None

    def forget(self, template: Template) -> None:
        """Forget a head, if it is known. No other connection is told of it from now on."""
        key = (self._where, template.parts)
        known = self._known.pop(key, None)
        self._shared.known.pop(key, None)
        if known is not None:
            known.held.holders.discard(self)
        if known is self._last:
            self._last = None

    def close(self) -> None:
        """Forget all heads, and remember none from now on: the connection has ended."""
        self._known.clear()
        self._seen.clear()
        self._last = None
        self._has_ended = True
