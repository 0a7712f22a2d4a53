"""Split the bytes of a pipe into lines. Pure: no I/O, no encoding. The meaning of a line is not known here."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

EXCERPT_BYTES: Final = 512
"""How many bytes are kept of the beginning, and of the end, of a line that is too long or is not a message."""

_CR: Final = 0x0D

_log = logging.getLogger(__name__)


class LineSplitter:
    """Cut chunks into lines, and pass each to `line` without its newline (or `\\r\\n`). Empty lines are skipped.

    A line of more than `max_bytes` is not kept: `oversized` gets its first and last 512 bytes instead. Memory is
    bounded by `max_bytes`, and time is linear in the bytes fed, however they are cut into chunks. An exception of a
    callback is logged, and only its own line is lost.
    """

    __slots__ = ("_ending", "_held", "_line", "_max_bytes", "_oversized", "_too_long")

    def __init__(
        self, line: Callable[[bytes], object], oversized: Callable[[bytes, bytes], object], *, max_bytes: int
    ) -> None:
        self._line = line
        self._oversized = oversized
        self._max_bytes = max_bytes
        self._held = bytearray()  # the line begun but not ended; only its head once it is too long
        self._ending = b""
        self._too_long = False

    def feed(self, data: bytes) -> None:
        """Add one chunk of data, and pass on the lines that it completes."""
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines:
            if self._held:
                self._hold(lines[0])
                lines[0] = b""
                self.end()
            for line in lines:
                if line:
                    self._deliver(line)
        if rest:
            self._hold(rest)

    def end(self) -> None:
        """Deliver the last line, which has no newline, at the end of the stream."""
        if self._too_long:
            head, ending = bytes(self._held), self._ending
            self._ending, self._too_long = b"", False
            self._held.clear()
            try:
                self._oversized(head, ending)
            except Exception:
                _log.exception("a line was lost: its receiver failed")
        elif self._held:
            line = bytes(self._held)
            self._held = bytearray()  # not clear(): a giant line's memory is given back
            self._deliver(line)

    def _deliver(self, line: bytes) -> None:
        if line[-1] == _CR:
            line = line[:-1]
        try:
            if len(line) > self._max_bytes:
                self._oversized(line[:EXCERPT_BYTES], line[-EXCERPT_BYTES:])
            elif line:
                self._line(line)
        except Exception:
            _log.exception("a line was lost: its receiver failed")

    def _hold(self, chunk: bytes) -> None:
        if self._too_long:
            self._ending = (self._ending + chunk)[-EXCERPT_BYTES:]
            return
        self._held += chunk
        if len(self._held) > self._max_bytes + 1:  # + 1: it may yet turn out to be the `\r` of the line's end
            self._too_long = True
            self._ending = bytes(self._held[-EXCERPT_BYTES:])
            self._held = self._held[:EXCERPT_BYTES]


@dataclass(eq=False, repr=False, slots=True)
class StderrTail:
    """Keep the last lines of a stream that may never end. In a large chunk, search for the last newlines only.

    With the defaults, the traceback of a tool that fails in the Python SDK fits: it has 126 lines, with the cause in
    the middle.
    """

    receive: Callable[[bytes], object] | None = None
    """Called with each line that is kept, also if the line is dropped later to make room."""
    lines: int = 150
    """The most lines that are kept."""
    max_bytes: int = 8_000
    """The most bytes of a line. Longer ones are cut."""
    max_total: int = 256_000
    """The most bytes of all kept lines together."""
    _total: int = field(default=0, init=False)
    _kept: list[bytes] = field(default_factory=list, init=False)  # an empty deque takes 600 bytes more
    _begun: bytes = field(default=b"", init=False)

    def feed(self, data: bytes) -> None:
        """Add one chunk of data, and keep the last ones (at most `lines`) of the lines that it completes."""
        first, *ended = data.rsplit(b"\n", self.lines + 1)
        if not ended:
            self._begin(first)
            return
        *lines, rest = ended
        if len(lines) < self.lines:
            self._begin(first)
            self.end()
        for line in lines:
            self._keep(line)
        self._begun = rest[: self.max_bytes]

    def end(self) -> None:
        """At the end of the stream, keep the unfinished last line like a complete one."""
        line, self._begun = self._begun, b""
        self._keep(line)

    def text(self, *, max_chars: int = 2_000) -> list[str]:
        """Return the kept lines and the unfinished one, with U+FFFD for invalid UTF-8 and cut at `max_chars`."""
        lines = [*self._kept, self._begun] if self._begun else self._kept
        return [line.decode(errors="replace")[:max_chars] for line in list(lines)[-self.lines :]]

    def _begin(self, data: bytes) -> None:
        if len(self._begun) < self.max_bytes:
            self._begun = (self._begun + data)[: self.max_bytes]

    def _keep(self, line: bytes) -> None:
        line = line[: self.max_bytes].rstrip(b"\r")
        if line:
            self._kept.append(line)
            self._total += len(line)
            while self._total > self.max_total or len(self._kept) > self.lines:
                self._total -= len(self._kept.pop(0))
            if self.receive is not None:
                try:
                    self.receive(line)
                except Exception:
                    _log.exception("a line of stderr was lost: its receiver failed")
