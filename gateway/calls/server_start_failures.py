"""Limit the cost of servers that fail to start, and explain the failures: limit the wait for the first answer, delay
the next attempt, and quote the server's output in errors. Secrets were removed from the output when it was read
(`transports.upstream.stdio`), before lines were shortened."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

FIRST_S: Final = 1.0
MOST_S: Final = 60.0
"""The longest delay before the next attempt. A server that is up again after a long outage is noticed within this
time."""

_MOST_CHARS: Final = 200
_QUOTED: Final = "; its last output: "

MOST_LINES: Final = 40
"""Number of lines of output that are stored: enough for a long Python traceback with its cause."""
_MOST_KEPT_CHARS: Final = 8 << 10


class Backoff:
    """The failures in a row of one server, and the delay before the next attempt: a second, doubled after each failure
    up to a limit. After a success, a new object is used. Times are in seconds by the monotonic clock."""

    __slots__ = ("count", "failed_at", "reason")

    def __init__(self) -> None:
        self.count = 0
        self.failed_at = 0.0
        self.reason = ""

    def fail(self, reason: str, now: float) -> None:
        """Record one more failure at the time `now`. `reason` is for the client."""
        self.count += 1
        self.failed_at = now
        self.reason = reason

    @property
    def delay_s(self) -> float:
        """Return how many seconds after the last failure the next attempt may be made; 0 if nothing has failed."""
        return min(MOST_S, FIRST_S * 2.0 ** min(self.count - 1, 16)) if self.count else 0.0

    def left_s(self, now: float) -> float:
        """Return the seconds from `now` to the next attempt."""
        return max(0.0, self.failed_at + self.delay_s - now) if self.count else 0.0


class FirstAnswerTimeout:
    """Limits the wait for a server's first answer; one wait at a time. After the first output line that is no message,
    at most `noise_s` seconds are left. An MCP server that prints a banner answers soon after it; another program never
    answers."""

    __slots__ = ("_noise_s", "_timeout", "is_noisy")

    def __init__(self, noise_s: float) -> None:
        self.is_noisy = False
        self._noise_s = noise_s
        self._timeout: asyncio.Timeout | None = None

    @contextlib.asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """Limit the time of the `with` block to `seconds`, or less after `noise`. Raises `TimeoutError`."""
        self.is_noisy = False
        try:
            async with asyncio.timeout(seconds) as self._timeout:
                yield
        finally:
            self._timeout = None

    def noise(self) -> None:
        """Shorten the limit to `noise_s` from now, because the server has written a line that is no message."""
        timeout = self._timeout
        if timeout is None or self.is_noisy or (until := timeout.when()) is None:
            return
        self.is_noisy = True
        sooner = asyncio.get_running_loop().time() + self._noise_s
        if sooner < until:
            timeout.reschedule(sooner)

    def late(self, server: str, seconds: float) -> str:
        """Return the text of the timeout error for the client. `seconds` is the limit that was exceeded, unless `noise`
        has shortened it."""
        if self.is_noisy:
            return (
                f"server {server!r} writes lines to stdout that are not MCP messages, and did not answer within "
                f"{self._noise_s:g} s"
            )
        return f"server {server!r} did not start within {seconds:g} s"


def newest(lines: Sequence[str], most: int = MOST_LINES) -> list[str]:
    """Return the last of these output lines: at most `most`, and at most 8 Ki characters, but always the very last
    line."""
    left, found = _MOST_KEPT_CHARS, list[str]()
    for line in reversed(lines[-most:]):
        left -= len(line)
        if left < 0 and found:
            break
        found.append(line)
    return found[::-1]


def with_output_tail(reason: str, lines: Sequence[str]) -> str:
    """Return the reason of a failure with the last line of the server's output. In a Python traceback, that line is the
    exception."""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"{reason}{_QUOTED}{last[:_MOST_CHARS]!r}" if last else reason


def without_output_tail(reason: str) -> str:
    """Return the reason without the server's output, so that processes with the same failure have the same reason."""
    return reason.partition(_QUOTED)[0]
