"""What a server has written last: how much of it is kept, and as errors quote it. Pure.

The lines are redacted where they are read (`transports.upstream.stdio`), before anything is cut off.
"""

from collections.abc import Sequence
from typing import Final

__all__ = ["MOST_LINES", "newest", "with_output_tail", "without_output_tail"]

_MOST_CHARS: Final = 200
_QUOTED: Final = "; its last output: "

MOST_LINES: Final = 40
"""As many as a traceback of Python has that passes through a framework, with the exception that caused it."""
_MOST_KEPT_CHARS: Final = 8 << 10


def newest(lines: Sequence[str], most: int = MOST_LINES) -> list[str]:
    """Return the last lines, at most `most` and 8 KiB together. The last one is always there."""
    left, found = _MOST_KEPT_CHARS, list[str]()
    for line in reversed(lines[-most:]):
        left -= len(line)
        if left < 0 and found:
            break
        found.append(line)
    return found[::-1]


def with_output_tail(reason: str, lines: Sequence[str]) -> str:
    """Return the reason of a failure, with the last line of the server's output. Of a Python traceback it is the
    exception."""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"{reason}{_QUOTED}{last[:_MOST_CHARS]!r}" if last else reason


def without_output_tail(reason: str) -> str:
    """Return the reason alone, which is the same for all sessions whose processes fail in the same way."""
    return reason.partition(_QUOTED)[0]
