"""A name that tries to steer the terminal of whoever reads it."""

from typing import Final

HOSTILE: Final = "\x1b]0;owned\x07\x1b[2J[link=http://evil.example]click[/link]\x9b31m\u202edesrever\x7f\x08"
"""Terminal escapes, markup of rich, a right-to-left override and control characters."""
STEERING: Final = ("\x1b", "\x07", "\x9b", "\u202e", "\x7f", "\x08")
"""The characters of it that may reach no terminal."""


def shows_only_text(output: str) -> bool:
    """Whether the output has the hostile name as text: nothing that steers, and its markup as it was written."""
    return not any(character in output for character in STEERING) and "[link=http://evil.example]" in output
