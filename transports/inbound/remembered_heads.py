"""The request heads that one connection repeats. Pure: no I/O, and no parsing of a head that no parser has read.

A head is remembered as bytes, after a parser has read it and its request was served. It is repeated if all bytes are
the same but the digits of Content-Length, and those of a `traceparent`. So a parser would find the same in it, another
end of the body and another trace.
"""

import re
from typing import Final, Generic, TypeVar

import msgspec

__all__ = [
    "LEAST_MEMORY_BYTES",
    "MAX_HEADS",
    "MAX_HEAD_BYTES",
    "MAX_MEMORY_BYTES",
    "MAX_TOTAL_BYTES",
    "Found",
    "HeldHeads",
    "RememberedHeads",
    "Template",
    "template_of",
]

T = TypeVar("T")
HeaderList = list[tuple[bytes, bytes]]

MAX_HEADS: Final = 64
"""2026-07-28 clients name the tool in the head, and use some tools in turn. If a program has many sessions, each of its
connections repeats the heads of all of them."""

MAX_HEAD_BYTES: Final = 8 << 10
MAX_MEMORY_BYTES: Final = 256 << 10
"""What one connection may hold for its heads, by the estimate of `Template.memory_bytes`."""

LEAST_MEMORY_BYTES: Final = 48 << 10
"""What each may hold while all connections together hold `MAX_TOTAL_BYTES` or more."""

MAX_TOTAL_BYTES: Final = 64 << 20

_MAX_DIGITS: Final = 7
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
        """Where the head ends in data that begins with it, the length of its body, and its trace. None: the data begins
        with something else, or the head is not complete."""
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
                end = data.find(b"\r", place, place + _MAX_DIGITS + 1)
                if end < 0 or (length := _length(data[place:end])) < 0:
                    return None
            place = end
        last = self.last
        return (place + len(last), length, trace) if data.startswith(last, place) else None

    @property
    def memory_bytes(self) -> int:
        """About what is held for the head: these bytes, the headers as text, the objects around each, and what the
        handler keeps."""
        return 2_500 + 2 * sum(map(len, self.parts)) + 120 * self.headers


class Found(msgspec.Struct, Generic[T], frozen=True):
    """A repeated head: what is remembered of it, how many bytes it has, how many its body has, and its trace."""

    remembered: T
    head_bytes: int
    body_bytes: int
    trace: bytes = b""


def template_of(head: bytes, headers: HeaderList) -> Template | None:
    """The template of a head from which a parser has read these headers, with lower-case names. None if the head must
    not be remembered: it says more about its body or its connection than one length, or it has an unusual form."""
    if len(head) > MAX_HEAD_BYTES or _PLAIN.fullmatch(head) is None or head.count(b"\r\n") != len(headers) + 2:
        return None
    lengths = [value for name, value in headers if name == b"content-length"]
    for name, value in headers:
        if name in _ABOUT_FRAMING or (name == b"connection" and value.strip(b" \t").lower() != b"keep-alive"):
            return None
    found = list(_LENGTH.finditer(head))
    if len(found) != 1 or lengths != [found[0][1]] or _length(lengths[0]) < 0:
        return None
    if len({name for name, _ in headers}) < len(headers):
        return None
    return _cut(head)


def _cut(head: bytes) -> Template | None:
    """A head without its length and its trace."""
    length, trace = _LENGTH.search(head), _TRACE.search(head)
    if length is None:
        return None
    holes = sorted([(length.span(1), False)] + ([] if trace is None else [(trace.span(1), True)]))
    ends = [0, *(end for (_, end), _ in holes)]
    begins = [*(begin for (begin, _), _ in holes), len(head)]
    parts = tuple(head[begin:end] for begin, end in zip(ends, begins, strict=True))
    before = tuple((part, len(part), is_trace) for part, (_, is_trace) in zip(parts, holes, strict=False))
    return Template(before, parts[-1], head.count(b"\r\n") - 2)


def _length(digits: bytes) -> int:
    """The number that these digits are; -1 for anything but the usual form of a number with few digits."""
    if not digits.isdigit() or len(digits) > _MAX_DIGITS or (digits[0] == 0x30 and len(digits) > 1):
        return -1
    return int(digits)


class HeldHeads:
    """What all connections of a listener hold for their heads, in bytes."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0

    @property
    def bound(self) -> int:
        """What one connection may hold now."""
        return MAX_MEMORY_BYTES if self.total < MAX_TOTAL_BYTES else LEAST_MEMORY_BYTES

    def hold(self, size: int) -> None:
        """Count these bytes; a negative size gives them back."""
        self.total += size


class RememberedHeads(Generic[T]):
    """What is remembered of a connection's last heads. A connection that repeats none keeps only hashes."""

    __slots__ = ("_bytes", "_held", "_known", "_more", "_seen")

    def __init__(self, held: HeldHeads) -> None:
        self._known: list[tuple[Template, T]] = []
        self._seen: list[int] = []
        self._more: dict[Template, int] = {}
        self._bytes = 0
        self._held: HeldHeads | None = held

    def __len__(self) -> int:
        return len(self._known)

    def match(self, data: bytes) -> Found[T] | None:
        """The remembered head that these bytes begin with. The head has to be complete; the body need not be."""
        for place, (template, remembered) in enumerate(self._known):
            if (read := template.read(data)) is not None:
                if place:
                    self._known.insert(0, self._known.pop(place))
                return Found(remembered, *read)
        return None

    def is_repeated(self, head: bytes) -> bool:
        """Whether the connection has had a head like this before. Notes it for the next time."""
        cut = _cut(head)
        if cut is None:
            return False
        seen = hash(cut.parts)
        if seen in self._seen:
            return True
        self._seen = [*self._seen[1 - MAX_HEADS * 2 :], seen]
        return False

    def add(self, template: Template, remembered: T) -> None:
        """Remember a head. Those that were not repeated for longest make room."""
        if self._held is None:
            return
        self.forget(template)
        self._known.insert(0, (template, remembered))
        self._count(template.memory_bytes)
        self._make_room()

    def _make_room(self) -> None:
        while self._known and self._held and (len(self._known) > MAX_HEADS or self._bytes > self._held.bound):
            self.forget(self._known[-1][0])

    def forget(self, template: Template) -> None:
        """Forget a head, if it is known."""
        for place, (known, _) in enumerate(self._known):
            if known == template:
                del self._known[place]
                self._count(-template.memory_bytes - self._more.pop(template, 0))
                return

    def hold_more(self, template: Template, size: int) -> None:
        """Count bytes that are held for a known head beside what every head takes. A negative size gives them back."""
        if self._held is None or all(known != template for known, _ in self._known):
            return
        self._more[template] = self._more.get(template, 0) + size
        self._count(size)
        self._make_room()

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._held is not None:
            self._held.hold(size)

    def close(self) -> None:
        """Forget all heads, and remember none from now on: the connection has ended."""
        self._known.clear()
        self._seen.clear()
        self._more.clear()
        self._count(-self._bytes)
        self._held = None
