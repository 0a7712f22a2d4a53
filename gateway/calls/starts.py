"""Limit the starts of servers: the wait for the first answer, the pause after a failed start, and the quote of the
server's output in errors.

The lines of the output are redacted where they are read (`transports.upstream.stdio`), before anything is cut off.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

FIRST_S: Final = 1.0
MOST_S: Final = 60.0
"""The longest pause: a server that comes back after a long outage is found within this time."""

_MOST_CHARS: Final = 200
_QUOTED: Final = "; its last output: "

MOST_LINES: Final = 40
"""Enough for a Python traceback that passes through a framework, with the exception that caused it."""
_MOST_KEPT_CHARS: Final = 8 << 10


class Backoff:
    """The failures in a row of one server. It is tried again after a second, then after twice as long each time. A
    success makes a new object. Times are seconds of a monotonic clock."""

    __slots__ = ("count", "failed_at", "reason")

    def __init__(self) -> None:
        self.count = 0
        self.failed_at = 0.0
        self.reason = ""

    def fail(self, reason: str, now: float) -> None:
        """Record one more failure. `reason` is for the client."""
        self.count += 1
        self.failed_at = now
        self.reason = reason

    @property
    def delay_s(self) -> float:
        """Return the seconds from the last failure to the next attempt; 0 if nothing has failed."""
        return min(MOST_S, FIRST_S * 2.0 ** min(self.count - 1, 16)) if self.count else 0.0

    def left_s(self, now: float) -> float:
        """Return the seconds until the next attempt."""
        return max(0.0, self.failed_at + self.delay_s - now) if self.count else 0.0


class FirstAnswerTimeout:
    """Limits the wait for a server's first answer. One wait at a time.

    `noise_s` is the limit from a server's first line that is no message. After a banner an answer follows, but a
    program that is no MCP server never answers.
    """

    __slots__ = ("_noise_s", "_timeout", "is_noisy")

    def __init__(self, noise_s: float) -> None:
        self.is_noisy = False
        self._noise_s = noise_s
        self._timeout: asyncio.Timeout | None = None

    @contextlib.asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """Limit the time of the `with` block. Raises `TimeoutError`."""
        self.is_noisy = False
        try:
            async with asyncio.timeout(seconds) as self._timeout:
                yield
        finally:
            self._timeout = None

    def noise(self) -> None:
        """Shorten the limit: the server has written a line that is no message."""
        timeout = self._timeout
        if timeout is None or self.is_noisy or (until := timeout.when()) is None:
            return
        self.is_noisy = True
        sooner = asyncio.get_running_loop().time() + self._noise_s
        if sooner < until:
            timeout.reschedule(sooner)

    def late(self, server: str, seconds: float) -> str:
        """Return the reason for the client why the start has timed out."""
        if self.is_noisy:
            return (
                f"server {server!r} writes lines to stdout that are not MCP messages, and did not answer within "
                f"{self._noise_s:g} s"
            )
        return f"server {server!r} did not start within {seconds:g} s"


def newest(lines: Sequence[str], most: int = MOST_LINES) -> list[str]:
    """Return the last lines, at most `most` and 8 KiB together. The last line is always included."""
    left, found = _MOST_KEPT_CHARS, list[str]()
    for line in reversed(lines[-most:]):
        left -= len(line)
        if left < 0 and found:
            break
        found.append(line)
    return found[::-1]


def with_output_tail(reason: str, lines: Sequence[str]) -> str:
    """Add the last line of the server's output to the reason of a failure. In a Python traceback, that line is the
    exception."""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"{reason}{_QUOTED}{last[:_MOST_CHARS]!r}" if last else reason


def without_output_tail(reason: str) -> str:
    """Return the reason without the server's output: the same text for all sessions whose processes fail alike."""
    return reason.partition(_QUOTED)[0]
