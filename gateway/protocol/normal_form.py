"""Text in the form in which lookalikes are alike (NFKC), where that takes a bounded time. Pure."""

import functools
import re
import unicodedata
from typing import Final

__all__ = ["MOST_MARKS", "TooManyMarks", "normal"]

MOST_MARKS: Final = 64
"""On one character. To put them into order takes a time that grows with their square."""


class TooManyMarks(ValueError):
    """A text cannot be brought into that form in a bounded time."""


def normal(text: str) -> str:
    """The text in NFKC.

    Raises:
        TooManyMarks: a character has so many marks that nobody can have meant it.
    """
    if text.isascii():
        return text
    if _marks().search(text) is not None:
        raise TooManyMarks(f"a character has more than {MOST_MARKS} marks")
    return unicodedata.normalize("NFKC", text)


@functools.cache
def _marks() -> re.Pattern[str]:
    """Too many marks in a row. One class, repeated: nothing is tried twice.

    A mark is what begins with one once it is taken apart: some characters are no marks and are made of nothing else.
    """
    marks = "".join(mark for mark in map(chr, range(0x300, 0x1F000)) if _is_mark(mark))
    return re.compile(f"[{marks}]{{{MOST_MARKS + 1}}}")


def _is_mark(character: str) -> bool:
    if unicodedata.decomposition(character):
        character = unicodedata.normalize("NFKD", character)[0]
    return unicodedata.combining(character) > 0
