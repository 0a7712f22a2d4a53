"""What a server that failed has written last, as errors quote it. Pure.

The lines are redacted where they are read (`transports.upstream.stdio`), before anything is cut off.
"""

from collections.abc import Sequence
from typing import Final

__all__ = ["with_last_words", "without_last_words"]

_MOST_CHARS: Final = 200
_QUOTED: Final = "; its last output: "


def with_last_words(reason: str, lines: Sequence[str]) -> str:
    """The reason of a failure, with the last line of the server's output. Of a Python traceback it is the exception."""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"{reason}{_QUOTED}{last[:_MOST_CHARS]!r}" if last else reason


def without_last_words(reason: str) -> str:
    """The reason alone, which is the same for all sessions whose processes fail in the same way."""
    return reason.partition(_QUOTED)[0]
