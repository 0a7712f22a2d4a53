"""Define the base class of all settings, and match names against shell patterns and regular expressions.

Pure: no I/O. Operators' patterns are matched against text of clients and servers. So RE2 matches both kinds, in time
linear in the text for every pattern. It has no look-around and no backreferences.
"""

import functools
import re
from collections.abc import Iterable
from string import ascii_letters
from typing import Annotated, Any, Final, Literal

import re2
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_MEMORY: Final = 8 << 20
"""Of one expression at work; with less than it would like, RE2 is slower, and still linear."""
_MOST: Final = 4_096


def expression(*words: str) -> Any:
    """Return what finds any of these regular expressions in UTF-8, whatever the case.

    Raises:
        ValueError: one of them cannot be used; which, and why.
    """
    for word in words:
        _compiled(word, ignore_case=True)
    return _compiled("|".join(f"(?:{word})" for word in words), ignore_case=True)


@functools.lru_cache(maxsize=_MOST)  # by what the configuration says
def whole(word: str) -> Any:
    """Return a regular expression for a whole text in UTF-8 (`fullmatch`).

    Raises:
        ValueError: the expression cannot be used.
    """
    return _compiled(word, ignore_case=False)


def matches(pattern: str, name: str) -> bool:
    """Return whether a name is among those that a pattern means: `*`, `?`, `[abc]`, `[!abc]`, as in shells.

    Raises:
        ValueError: the pattern cannot be used.
    """
    return _glob(pattern).fullmatch(name.encode("utf-8", "replace")) is not None


def any_matches(patterns: Iterable[str], name: str) -> bool:
    """Return True if one of the patterns matches."""
    return any(matches(pattern, name) for pattern in patterns)


def sample_of(pattern: str) -> str:
    """Return a name that the pattern matches. `*` and `?` stand for themselves, so that wider patterns match the name
    too."""
    return "".join(
        piece if len(piece) == 1 else next((one for one in piece[1:-1] + ascii_letters if matches(piece, one)), "_")
        for piece in _pieces(pattern)
    )


def usable(pattern: str) -> str:
    """Return the pattern, if names can be compared with it. Raises `ValueError`."""
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


Seconds = Annotated[float, Field(gt=0, le=31_536_000)]

Trust = Literal["direct", "sandboxed"]

Pattern = Annotated[str, AfterValidator(usable)]
"""As in shells: `*`, `?`, `[abc]`, `[!abc]`."""


class Frozen(BaseModel):
    """A part of the settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")


_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110 §5.1
_OF_EACH_REQUEST: Final = frozenset({"content-length", "traceparent"})
"""Requests that differ in these alone are taken for alike (`transports.inbound.head_cache`)."""


def fault_of_header(name: str) -> str:
    """Return why a header cannot say anything of a client; empty if it can."""
    if not _HEADER.fullmatch(name):
        return f"{name!r} is not a header name"
    return f"{name} is different in each request" if name.lower() in _OF_EACH_REQUEST else ""
