"""Converts text to NFKC, in which characters that look alike are equal, in a bounded time. Pure."""

import functools
import re
import unicodedata
from typing import Final

__all__ = ["MOST_MARKS", "TooManyMarks", "normal"]

MOST_MARKS: Final = 64
"""Combining marks of one character. Sorting them takes a time that grows with the square of their number."""


class TooManyMarks(ValueError):
    """A text cannot be converted to NFKC in a bounded time."""


def normal(text: str) -> str:
    """The text in NFKC.

    Raises:
        TooManyMarks: a character has more than `MOST_MARKS` marks.
    """
    if text.isascii():
        return text
    if _marks().search(text) is not None:
        raise TooManyMarks(f"a character has more than {MOST_MARKS} marks")
    return unicodedata.normalize("NFKC", text)


@functools.cache
def _marks() -> re.Pattern[str]:
    """Matches more than `MOST_MARKS` marks in a row. It is one repeated character class, so it never backtracks.

    Characters whose decomposition begins with a mark count as marks: some of them are not combining themselves.
    """
    marks = "".join(mark for mark in map(chr, range(0x300, 0x1F000)) if _is_mark(mark))
    return re.compile(f"[{marks}]{{{MOST_MARKS + 1}}}")


def _is_mark(character: str) -> bool:
    if unicodedata.decomposition(character):
        character = unicodedata.normalize("NFKD", character)[0]
    return unicodedata.combining(character) > 0
