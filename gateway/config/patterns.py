"""Match text against operators' shell patterns and regular expressions. Pure: no I/O.

The text comes from clients and servers. So RE2 is used for both kinds: its time is linear in the text for every
pattern. It has no look-around and no backreferences.
"""

import functools
import re
from collections.abc import Iterable
from string import ascii_letters
from typing import Annotated, Any, Final

import re2
from pydantic import AfterValidator

_MEMORY: Final = 8 << 20
"""The memory of one RE2 expression, in bytes. An expression that needs more is slower, but still linear."""
_MOST: Final = 4_096


def expression(*words: str) -> Any:
    """Return a compiled RE2 expression that finds any of the regular expressions `words` in UTF-8 text, ignoring case.

    Raises:
        ValueError: an expression is invalid; the message says which, and why.
    """
    for word in words:
        _compiled(word, ignore_case=True)
    return _compiled("|".join(f"(?:{word})" for word in words), ignore_case=True)


def matches(pattern: str, name: str) -> bool:
    """Return whether a name matches a shell pattern with `*`, `?`, `[abc]` and `[!abc]`.

    Raises:
        ValueError: the pattern is invalid.
    """
    return _glob(pattern).fullmatch(name.encode("utf-8", "replace")) is not None


def any_matches(patterns: Iterable[str], name: str) -> bool:
    return any(matches(pattern, name) for pattern in patterns)


def sample_of(pattern: str) -> str:
    """Return a name that matches the pattern. It contains the characters `*` and `?` themselves, so that it also
    matches broader patterns."""
    return "".join(
        piece if len(piece) == 1 else next((one for one in piece[1:-1] + ascii_letters if matches(piece, one)), "_")
        for piece in _pieces(pattern)
    )


def usable(pattern: str) -> str:
    """Check a shell pattern, and return it unchanged. Raises `ValueError` if it is invalid."""
    _glob(pattern)
    return pattern


@functools.lru_cache(maxsize=_MOST)  # by what the configuration says
def _glob(pattern: str) -> Any:
    return _compiled("(?s)" + "".join(map(_as_expression, _pieces(pattern))), ignore_case=False)


def _pieces(pattern: str) -> list[str]:
    return re.findall(r"\[!?\]?[^\]]*\]|.", pattern, re.DOTALL)


def _as_expression(piece: str) -> str:
    if piece == "*":
        return ".*"
    if piece == "?":
        return "."
    if len(piece) == 1:
        return str(re2.escape(piece))
    negated, members = piece[1] == "!", piece[1:-1].removeprefix("!")
    escaped = re.sub(r"([\\^\[\]&~|])", r"\\\1", members)
    return f"[{'^' * negated}{escaped}]"


def _compiled(word: str, *, ignore_case: bool) -> Any:
    options = re2.Options()
    options.max_mem = _MEMORY
    options.case_sensitive = not ignore_case
    options.log_errors = False
    try:
        return re2.compile(word.encode("utf-8"), options)
    except re2.error as error:
        why = error.args[0].decode("utf-8", "replace") if error.args else "it cannot be used"
        raise ValueError(f"{word!r} is not a valid RE2 expression: {why}") from None


Pattern = Annotated[str, AfterValidator(usable)]
"""A shell pattern with `*`, `?`, `[abc]` and `[!abc]`."""
